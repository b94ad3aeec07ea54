"""Watches the dispatcher during a recording, and notes each operation that runs outside any recorded call."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING
from typing import Any

import torch
from torch._ops import _len_torch_dispatch_stack_pre_dispatch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._python_dispatch import _pop_mode
from torch.utils._python_dispatch import _push_mode

from pytest_torchlens.capture.autograd_nodes import may_call_node
from pytest_torchlens.capture.calls import Frames
from pytest_torchlens.capture.calls import MissedOperation
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.looks import looked_at
from pytest_torchlens.capture.origins import Makers
from pytest_torchlens.capture.origins import storages_of
from pytest_torchlens.capture.storage import is_fake

if TYPE_CHECKING:
    from pytest_torchlens.capture.tracer import Tracer


__tracebackhide__ = True  # pytest leaves our frames out of the traceback of what a model raises


dispatch_depth = torch._C._len_torch_dispatch_stack
_depth_before_dispatch: Callable[[], int] = _len_torch_dispatch_stack_pre_dispatch
current_modes = _get_current_dispatch_mode_stack


@contextlib.contextmanager
def dispatch_modes_removed() -> Iterator[list[Any]]:
    """Take all dispatch modes off the stack, also those of PyTorch's own compilers and fakes, and yield them."""
    modes = [_pop_mode(_BEFORE_DISPATCH) for _ in range(_depth_before_dispatch())][::-1]
    modes += [_pop_mode() for _ in range(dispatch_depth())][::-1]
    try:
        yield modes
    finally:
        for mode in modes:
            _push_mode(mode)


def makes_no_values() -> bool:
    """Return whether a mode makes tensors without values: code is traced, or shapes are tried out."""
    return _mode_of(_FAKE) is not None or _mode_of(_FUNCTIONAL) is not None


_mode_of = torch._C._get_dispatch_mode
_FAKE, _FUNCTIONAL = torch._C._TorchDispatchModeKey.FAKE, torch._C._TorchDispatchModeKey.FUNCTIONAL


def call_under(modes: list[Any], func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function under dispatch modes that were removed."""
    for mode in modes:
        _push_mode(mode)
    try:
        return func(*args, **kwargs)
    finally:
        for mode in reversed(modes):
            _pop_mode(getattr(mode, "_dispatch_key", None))


_BEFORE_DISPATCH = torch._C.DispatchKey.PreDispatch


class DispatchWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts and notes dispatcher operations outside recorded calls.

    Attributes
    ----------
    missed_here
        Operations outside any recorded call in this thread.
    makers
        The operation that allocated each tensor's memory.
    """

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return whether to import PyTorch's compiler, which takes over a second, to keep it out of the handler."""
        return False

    def __init__(self, tracer: Tracer, thread: str = "") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tracer = tracer
        self._thread = thread
        self._count = 0
        self._thread_watches: list[DispatchWatch] = []
        self.missed_here: list[MissedOperation] = []
        self.makers = Makers()
        self._has_exited = False
        self._given: frozenset[int] | None = None
        """Storages of the arguments of the call in progress, if it may run code of the user's."""

    @contextlib.contextmanager
    def inside(self, arguments: Any) -> Iterator[None]:
        """Look for recorded tensors that code of the user's reads inside a call, though they are not its arguments."""
        self._given = storages_of(arguments)
        try:
            yield
        finally:
            self._given = None

    def _note_hidden_reads(self, number: int, arguments: tuple[Any, ...]) -> None:
        for tensor in () if self._given is None else tensors(arguments):
            is_hidden = self._tracer.table.may_know(tensor) and self.makers.of(tensor)[1] != number
            if is_hidden and self._given is not None and not storages_of(tensor) <= self._given:
                self._tracer.recording.detours.append((number, _HIDDEN_READ))
                self._given = None

    def exit_early(self) -> None:
        """Exit the mode before its regular end, if it is on top of the stack."""
        if _get_current_dispatch_mode() is self:
            self.__exit__(None, None, None)
            self._has_exited = True

    def __exit__(self, *error: object) -> None:
        if not self._has_exited:
            super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if self._tracer.over:  # this thread outlives the pass
            return func(*args, **(kwargs or {}))
        missed, number, busy, by_pytorch = None, len(self._tracer.calls), self._tracer.busy, False
        try:
            self._note_hidden_reads(number, (args, kwargs))
            self._count += not busy
            by_pytorch = not busy and _pytorch_calls(sys._getframe(1))
            if not (busy or by_pytorch or self._is_harmless(func, args)):
                missed = self._missed_operation(_name(func), number)
        except Exception as error:  # noqa: BLE001 - the model's call is still to be made
            self._tracer.on_fault(error)
        if isinstance(func, torch._ops.HigherOrderOperator):
            result = func(*args, **(kwargs or {}))
            if len(self._tracer.calls) > number:  # it ran a function (`torch.cond`) whose calls were recorded
                return result
        else:
            with torch._C.DisableTorchFunction():  # else the tracer would record the operation that it missed
                result = func(*args, **(kwargs or {}))
        try:
            self._note_missed(missed, result)
            if not busy and missed is None and _name(func) == _SETS_MEMORY:
                self.makers.note_given(_name(func), args[0])
            if not by_pytorch:  # what it makes for itself has no maker: a recorded call that reads it is found
                self.makers.note(_name(func), number if busy else -1, (*args, *(kwargs or {}).values()), result)
        except Exception as error:  # noqa: BLE001 - the model's call has been made
            self._tracer.on_fault(error)
        return result

    def _is_harmless(self, func: torch._ops.OpOverload, args: tuple[Any, ...]) -> bool:
        """Return whether an operation computes nothing: autograd passes tensors on, constructors allocate memory.

        Subclasses of tensors are asked for their shape by way of the dispatcher.  A constructor gives memory that
        exists to a new tensor: what this tensor is a view of is found when it is read.
        """
        name = _name(func)
        return name in _HARMLESS or (name == _SETS_MEMORY and not self._tracer.table.may_know(args[0]))

    def _note_missed(self, missed: MissedOperation | None, result: Any) -> None:
        if missed is not None and not _is_without_values(result):
            self.missed_here.append(missed)

    def _missed_operation(self, name: str, number: int) -> MissedOperation:
        frame = sys._getframe(2)
        mode, in_backward, disabled = _calling_mode(frame), _is_in_backward(frame), _is_dispatch_disabled()
        may_have_called = bool(self._tracer.nodes) and not (mode or in_backward or disabled)
        return MissedOperation(
            name=name,
            call=number,
            where=self._where(),
            frames=frames_from(frame),
            mode=mode,
            in_backward=in_backward,
            dispatch_disabled=disabled,
            by_node=looked_at(_may_call_node, frame, may_have_called, otherwise=may_have_called),
            by_transform=_is_in_transform(frame),
        )

    def missed_by_extension(self, start: int) -> bool:
        """Return whether this thread missed operations from place `start` on, and C++ called each past Python."""
        missed = self.missed_here[start:]
        return bool(missed) and all(one.by_extension for one in missed)

    def put_inside(self, start: int, name: str) -> None:
        """Note that the operations that this thread missed from `start` on belong to the custom function `name`."""
        missed = self.missed_here
        missed[start:] = [dataclasses.replace(one, inside=name) for one in missed[start:]]

    def _where(self) -> str:
        if self._thread:
            return f"thread {self._thread!r}"
        module = self._tracer.module
        if module is None:
            return ""
        return f"module {module.label!r}" if module.address else "the model's own forward"

    @property
    def num_operations(self) -> int:
        """Number of operations that the dispatcher ran outside recorded calls, in all threads."""
        return self._count + sum(watch._count for watch in self._thread_watches)

    @property
    def missed_operations(self) -> list[MissedOperation]:
        """Operations outside any recorded call, in all threads, in the order of the recorded calls around them."""
        missed = [*self.missed_here, *(one for watch in self._thread_watches for one in watch.missed_here)]
        return sorted(missed, key=lambda one: one.call)

    def for_thread(self, tracer: Tracer, name: str) -> DispatchWatch:
        """Return a watch for another thread; its operations are counted here too."""
        watch = type(self)(tracer, name)
        watch.makers, watch._thread_watches = self.makers, self._thread_watches
        self._thread_watches.append(watch)
        return watch


class _WatchBesideCompiler(DispatchWatch):  # type: ignore[no-untyped-call]
    """A watch whose handler the compiler leaves alone."""

    __torch_dispatch__ = DispatchWatch.__torch_dispatch__

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return True


def dispatch_watch(tracer: Tracer) -> DispatchWatch:
    """Return a watch; if the compiler is loaded, one that it leaves alone."""
    return (_WatchBesideCompiler if is_compiler_loaded() else DispatchWatch)(tracer)


def is_compiler_loaded() -> bool:
    """Return whether PyTorch's compiler has been imported: only then may it compile what runs."""
    return "torch._dynamo" in sys.modules


def _name(func: torch._ops.OpOverload) -> str:
    schema = getattr(func, "_schema", None)  # higher-order operators have none
    return str(schema.name if schema is not None else func)


def _is_without_values(result: Any) -> bool:
    """Return whether the results of an operation are tensors without values, which nothing was computed for."""
    found = tensors(result)
    return bool(found) and all(one.is_meta or is_fake(one) or type(one) is FunctionalTensor for one in found)


_is_dispatch_disabled: Callable[[], bool] = torch._C._is_torch_function_all_disabled
_HIDDEN_READ = "it reads a recorded tensor that is not among its arguments: it has no edge to it"
_SETS_MEMORY = "aten::set_"
_HARMLESS = frozenset(
    [
        *("aten::detach", "aten::detach_", "aten::alias", "aten::lift_fresh", "aten::empty", "c10d::barrier"),
        *("prim::device", "prim::layout", "aten::dim", "aten::size", "aten::stride", "aten::numel"),
        *("aten::sym_size", "aten::sym_stride", "aten::sym_storage_offset", "aten::sym_numel"),
        *("aten::is_contiguous", "aten::is_strides_like_format", "aten::is_non_overlapping_and_dense"),
    ]
)


def frames_from(frame: FrameType | None) -> Frames:
    """Return code and instruction of a frame and all frames around it."""
    return tuple([item for frame in _stack(frame) for item in (frame.f_code, frame.f_lasti)])


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_in_backward(frame: FrameType) -> bool:
    """Return whether autograd runs, or ``torch.autograd.backward`` prepares what it starts from."""
    code = torch.autograd.backward.__code__
    return torch._C._current_graph_task_id() != -1 or any(caller.f_code is code for caller in _stack(frame))


def _pytorch_calls(frame: FrameType) -> bool:
    """Return whether PyTorch runs an operation for itself, and not one of a model's.

    The compiler does, as on a copy of an input, and the reducer of gradients, which C++ calls in the first pass after a
    backward one.
    """
    in_module = False
    for caller in _stack(frame):
        name = str(caller.f_globals.get("__name__"))
        if (name.startswith(_COMPILER) and name != _AROUND_HANDLERS) or (name == _AROUND_REDUCER and not in_module):
            return True
        if name.partition(".")[0] not in ("torch", _PACKAGE):
            break
        in_module = in_module or name == torch.nn.Module.__module__
    return False


_PACKAGE = __name__.partition(".")[0]
_AROUND_HANDLERS = "torch._dynamo.eval_frame"
"""Module of the frames that PyTorch puts around the handler of each mode, and around compiled functions."""
_AROUND_REDUCER = "torch.nn.parallel.distributed"
_COMPILER = ("torch._dynamo.", "torch.export._trace", "torch._export.")


def _may_call_node(frame: FrameType, has_read: bool) -> bool:
    """Return whether the frame outside PyTorch and this package is calling a node of the autograd graph, or may be."""
    for caller in _stack(frame):
        if str(caller.f_globals.get("__name__")).partition(".")[0] not in ("torch", _PACKAGE):
            return may_call_node(caller, has_read)
    return False


def _is_in_transform(frame: FrameType) -> bool:
    """Return whether the pass runs code of a function transform, as that of `torch.func.functionalize`."""
    for caller in _stack(frame):
        name = str(caller.f_globals.get("__name__"))
        if name in _TRANSFORMS:
            return True
        if name == _AROUND_PASS:
            break
    return False


_TRANSFORMS = frozenset(f"torch._functorch.{name}" for name in ("apis", "eager_transforms", "pyfunctorch", "vmap"))
_AROUND_PASS = f"{_PACKAGE}.capture.record"
"""Module whose frame calls the model."""


def _calling_mode(frame: FrameType) -> str:
    """Return the class name of the mode whose handler called into PyTorch; ``""`` if other code did."""
    for caller in _stack(frame):
        if mode := _mode_of_handler(caller):
            return mode
        if str(caller.f_globals.get("__name__")).partition(".")[0] not in ("torch", _PACKAGE):
            break
    return ""


def _mode_of_handler(frame: FrameType) -> str:
    """Return the class name of the mode whose handler runs in a frame; ``""`` for ours, and for any other frame."""
    code = frame.f_code
    if code.co_name not in ("__torch_function__", "__torch_dispatch__") or not code.co_argcount:
        return ""
    mode = frame.f_locals.get(code.co_varnames[0])
    if not isinstance(mode, TorchFunctionMode | TorchDispatchMode):
        return ""
    return "" if type(mode).__module__.partition(".")[0] == _PACKAGE else type(mode).__name__
