"""Records each torch function of a forward pass in one thread, as a torch function mode.

The mode keeps its place in the stack of the model's modes.  It runs the bodies of composite functions, so that it sees
the calls inside them.  Each line here costs time for every operation.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import threading
import types
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from time import perf_counter_ns
from types import CodeType
from types import FrameType
from typing import TYPE_CHECKING
from typing import Any

import torch
import torch.overrides
from torch._C import _autograd
from torch._C import _get_function_stack_at
from torch._C import _len_torch_function_stack
from torch._C import _pop_torch_dispatch_stack
from torch._C import _push_on_torch_dispatch_stack
from torch.overrides import TorchFunctionMode
from torch.overrides import _pop_mode
from torch.overrides import _push_mode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode

from pytest_torchlens.capture.aliases import View
from pytest_torchlens.capture.autograd_nodes import AutogradNodes
from pytest_torchlens.capture.autograd_nodes import edges_in
from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.calls import Circumstances
from pytest_torchlens.capture.calls import Escape
from pytest_torchlens.capture.calls import Frames
from pytest_torchlens.capture.calls import Group
from pytest_torchlens.capture.calls import ModuleCall
from pytest_torchlens.capture.calls import Recording
from pytest_torchlens.capture.code_in_gradient import CodeInGradient
from pytest_torchlens.capture.code_in_gradient import GradientWatch
from pytest_torchlens.capture.composite_bodies import body_of
from pytest_torchlens.capture.dispatch_watch import call_under
from pytest_torchlens.capture.dispatch_watch import current_modes
from pytest_torchlens.capture.dispatch_watch import dispatch_depth
from pytest_torchlens.capture.dispatch_watch import dispatch_modes_removed
from pytest_torchlens.capture.dispatch_watch import makes_no_values
from pytest_torchlens.capture.fingerprint import fingerprint
from pytest_torchlens.capture.functions import Function
from pytest_torchlens.capture.functions import FunctionInfo
from pytest_torchlens.capture.functions import Kind
from pytest_torchlens.capture.functions import info_of
from pytest_torchlens.capture.functions import is_operator
from pytest_torchlens.capture.generators import has_drawn
from pytest_torchlens.capture.generators import state_before
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.capture.looks import may_run_users_code
from pytest_torchlens.capture.memory import Retention
from pytest_torchlens.capture.memory import duplicate
from pytest_torchlens.capture.opaque import WriteDetector
from pytest_torchlens.capture.origins import is_foreign
from pytest_torchlens.capture.storage import is_fake
from pytest_torchlens.capture.tensor_table import Named
from pytest_torchlens.capture.tensor_table import TensorTable
from pytest_torchlens.capture.tensor_table import UntracedTensorError
from pytest_torchlens.capture.tensor_table import torch_function_disabled
from pytest_torchlens.capture.values import Aliased
from pytest_torchlens.capture.values import Value
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.capture.write_log import overlaps_of

if TYPE_CHECKING:
    from pytest_torchlens.capture.dispatch_watch import DispatchWatch


__tracebackhide__ = True  # pytest leaves our frames out of the traceback of what a model raises


COMPOSITE, PLAIN, ESCAPE, UNTRACED = Kind.COMPOSITE, Kind.PLAIN, Kind.ESCAPE, Kind.UNTRACED
LEAF, GRADIENT, NODE = Kind.LEAF, Kind.GRADIENT, Kind.NODE
Tensor = torch.Tensor
Parameter = torch.nn.Parameter
_is_compiling = torch.compiler.is_compiling
_jit_traces = torch._C._get_tracing_state
_ARRAYS = frozenset(["numpy", "__array__", "__dlpack__"])
_COPY = info_of(Tensor.copy_)
_PICKLE = info_of(Tensor.__reduce_ex__)
_STORAGE_ITEM = info_of(torch.UntypedStorage.__getitem__)
_UNSHARED = contextlib.nullcontext()
_CALLER_OF_ESCAPE = 4  # above _frames, _note_escape, _escape and __torch_function__


class FunctionTracer(TorchFunctionMode):
    """Records calls of functions into a `Recording`.

    Parameters
    ----------
    recording
        The recording to fill.
    retention
        Saves the tensors of sources.
    keep
        Whether `retention` saves every activation too.
    named
        Parameters and buffers by id: the tensor, ``"parameter"`` or ``"buffer"``, its address.
    """

    def __init__(
        self,
        recording: Recording,
        retention: Retention,
        keep: bool,
        named: Named,
    ) -> None:
        self.recording = recording
        self.calls = recording.calls
        self._ambient = recording.ambient
        self.module: ModuleCall | None = None
        self.table = TensorTable(recording, retention, keep, named, self._record_view, self._record_write)
        self._template = self.table.template
        self._add_output = self.table.add_output
        self.nodes = AutogradNodes(self.table)
        self._group: Group | None = None
        self.watch: DispatchWatch | None = None
        self.reset_call_state()

    boundary: CodeType
    """Code of the frame around a module's forward, where the walk up the stack ends."""
    num_own_modes = 0
    """Dispatch modes of our own on the stack: the watch."""
    function_modes: tuple[str, ...] = ()
    """Class names of the function modes below this one on the stack: they see each call after it."""
    thorough = False
    """Whether to note the circumstances of calls under modes, with fingerprints of their arguments."""
    suspects: frozenset[str] = frozenset()
    """Names of functions whose arguments are fingerprinted."""
    over = False
    """Whether the pass is over: a thread may outlive it."""
    busy = False
    """Whether a recorded call, or our own work on it, is in progress."""
    transforming = False
    """Whether that call is a function transform; module calls inside it are recorded."""
    lock: threading.RLock | None = None
    """Where several threads record: held during our own work on a call, never while the model's functions run."""

    def reset_call_state(self) -> None:
        """Set the state to no call in progress, in a new tracer or in a copy for another thread."""
        self._expanding: list[Function] = []
        self._num_escapes = 0
        self.busy = self.transforming = False

    @property
    def is_trying_out(self) -> bool:
        """Whether forward traces code, or tries out shapes: a mode that it has entered makes tensors without values."""
        return makes_no_values() and not self.table.knows_fakes

    def on_fault(self, error: Exception) -> None:
        """Raise an error of our own code; a `GuardedTracer` ends the recording instead."""
        raise error

    def __torch_function__(
        self, func: Function, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = {} if kwargs is None else kwargs
        if _is_compiling() or _jit_traces() is not None:  # the compiler reads this method too
            return func(*args, **kwargs)
        info = info_of(func)
        kind = info.kind
        under_modes = dispatch_depth() > self.num_own_modes
        if under_modes and self.is_trying_out and kind is not ESCAPE:
            return self._plainly(info, args, kwargs)
        if types and not _PLAIN_TYPES.issuperset(types) and _is_left_to_objects(kinds := tuple(types)):
            return self._call_object(info, kinds, args, kwargs)
        if kind is COMPOSITE and func not in self._expanding and not any(overrides(kind) for kind in types):
            return self._expand(info, args, kwargs)
        self.busy = kind is not UNTRACED
        try:
            if kind is PLAIN or kind is UNTRACED:
                return func(*args, **kwargs)
            handle = self._leaf if kind is LEAF or kind is COMPOSITE else self._handler(kind)
            if under_modes or self.function_modes or (self.suspects and info.name in self.suspects):
                return self._under_modes(handle, info, args, kwargs)
            return handle(info, args, kwargs)
        finally:
            self.busy = False

    def _handler(self, kind: Kind) -> Callable[[FunctionInfo, tuple[Any, ...], dict[str, Any]], Any]:
        return self._escape if kind is ESCAPE else self._gradient if kind is GRADIENT else self._node

    def _plainly(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function under a mode that makes tensors without values, and record nothing but what it writes."""
        self.busy, writes = True, WriteDetector()
        if may_write := info.writer is not None or "out" in kwargs:
            self._apart_from_modes(self._note_before_write, writes, info, args, kwargs)
        try:
            return info.func(*args, **kwargs)
        finally:
            if may_write:
                self._apart_from_modes(self._note_changes, writes, f"what {info.name} wrote in traced code")
            self.busy = False

    def _note_before_write(
        self, writes: WriteDetector, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        written = tuple([tensor for tensor in self.table.about_to_write(info, args, kwargs) if not is_fake(tensor)])
        self._template(written)  # a parameter may be read for the first time
        self.table.before_write(writes((written,), {}))

    def _note_changes(self, writes: WriteDetector, origin: str) -> None:
        """Record a write of what each tensor holds that has changed since `writes` noted it."""
        for tensor in writes.changed_tensors():
            self.table.record_change(tensor, origin)

    def _apart_from_modes(self, note: Callable[..., None], *args: Any) -> None:
        """Call a function of ours where no mode of the model's sees it."""
        try:
            with self.lock or _UNSHARED, dispatch_modes_removed(), torch._C.DisableTorchFunction():
                note(*args)
        except UntracedTensorError:
            return
        except Exception as error:  # noqa: BLE001 - the model's call is still to be made
            self.on_fault(error)

    def _under_modes(
        self, handle: Callable[..., Any], info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Make and record a call under modes that are not ours: they see the function, and not our work.

        Also note the circumstances of the call, if they are asked for.
        """
        start = len(self.calls)
        names = (*self.function_modes, *(type(mode).__name__ for mode in current_modes() if mode is not self.watch))
        noted = self.thorough or info.name in self.suspects
        enabled = torch._C._is_torch_function_enabled()
        with dispatch_modes_removed() as modes, torch._C.DisableTorchFunction():
            circumstances = Circumstances(names, self._argument_digests(args, kwargs)) if noted else None
            under = copy.copy(info)
            under.func = functools.partial(_call_under, enabled, modes, info.func)
            try:
                return handle(under, args, kwargs)
            finally:
                for number, call in enumerate(self.calls[start:], start):
                    if call.info is under:
                        call.info = info
                        if circumstances is not None:
                            self.recording.circumstances[number] = circumstances

    def _argument_digests(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, str]:
        try:
            with torch._C.DisableTorchFunction():
                return {path: fingerprint(tensor) for path, tensor in [*walk(args), *walk(kwargs)]}
        except Exception as error:  # noqa: BLE001 - the model's call is still to be made
            self.on_fault(error)
            return {}

    def _leaf(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record one call: note its arguments, run the function, note its outputs."""
        try:
            read = tuple(map(self._template, (args[0], {}) if info.copies else args))
            named = {key: self._template(arg) for key, arg in kwargs.items()} if kwargs else kwargs
        except UntracedTensorError:
            self.busy = False  # so the completeness check counts it as missed
            return self._call_unlocked(info, args, kwargs)
        ambient = self._ambient.number(info.depends_on_settings)
        call = Call(info, read, named, self.module, self._frames(), ambient, self._group)
        written = () if info.writer is None and not kwargs else self._about_to_write(call, args, kwargs)
        random = state_before("" if info.opaque else info.name, args, kwargs) if info.draws else None
        is_alone = self.watch is None and self.lock is None
        start = perf_counter_ns()
        try:
            result = info.func(*args, **kwargs) if is_alone else self._call(info, args, kwargs)
        except Exception:
            for tensor in _tensors_written(info, written):  # it may have written before it raised
                self.table.check_for_change(tensor, f"what {info.name} had written when it raised")
            raise
        call.elapsed = perf_counter_ns() - start
        if info.writer is not None:
            written = _tensors_written(info, written)
        if random is not None and has_drawn(random):
            call.random = random
        if info.borrows and is_foreign(result):  # registered when it is read, like from_numpy, which no mode sees
            return result
        aliased = bool(read) and (type(read[0]) is Aliased or bool(self.table.reads_of_bases))
        if type(result) is Tensor and not (written or aliased or info.uninitialised):  # nearly all calls
            self.calls.append(call)
            call.outputs = (self._add_output(result, len(self.calls) - 1, 0),)
        elif outputs := (returned := _with_shape(tensors(result))) or written:
            call.returned = bool(returned)
            self._finish(call, outputs, written)
        return result

    def _about_to_write(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the tensors that a call will overwrite, and note what else it reads of their memory."""
        written = self.table.about_to_write(call.info, args, kwargs)
        if written:
            call.overlaps = overlaps_of(written, call, args, kwargs)
        return written

    def _new_call(
        self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any], group: Group | None = None
    ) -> Call:
        ambient = self._ambient.number(info.depends_on_settings)
        return Call(info, args, kwargs, self.module, self._frames(), ambient, group or self._group)

    def _finish(self, call: Call, outputs: tuple[Tensor, ...], written: tuple[Tensor, ...]) -> None:
        number = len(self.calls)
        self.calls.append(call)
        add_output = self._add_output
        with torch_function_disabled():
            if call.info.moves:
                self.table.follow_move(outputs[0])
            call.outputs = tuple([add_output(tensor, number, place) for place, tensor in enumerate(outputs)])
            if written:
                self.table.log_writes(call, number, written)
            elif call.args:
                self.table.narrow_read(call, outputs[0])
            if call.uninitialised:
                self.recording.uninitialised[number] = tuple([duplicate(output) for output in outputs])
            elif isinstance(watch := call.info.writer, GradientWatch):
                code = watch.code or self._code_in_graph()
                if code or watch.has_unknown_edge:
                    changed = tuple(zip(call.writes, map(duplicate, written), strict=True))
                    results = CodeInGradient(code, tuple(map(duplicate, outputs)), changed, watch.has_unknown_edge)
                    self.recording.code_in_gradients[number] = results

    def _gradient(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a gradient that forward takes; autograd may run code of the model, which may change buffers."""
        start, watched = len(self.calls), copy.copy(info)
        model, lock = self.recording.model(), self.lock or _UNSHARED
        watched.writer = watch = GradientWatch(model, self.table, lock, self.on_fault)
        if edges_in((args, kwargs)):
            call_of_model = functools.partial(info.func, *args, **kwargs)
            watched.func = lambda *_, **__: call_of_model()
            args, kwargs = self._without_edges(watch, args, kwargs)
        try:
            return self._leaf(watched, args, kwargs)
        finally:
            watch.stop()
            for call in self.calls[start:]:
                call.info = info if call.info is watched else call.info

    def _without_edges(
        self, watch: GradientWatch, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments of a gradient with tensors in place of edges; note in `watch` if one is not known."""
        try:
            with self.lock or _UNSHARED:
                shown: tuple[tuple[Any, ...], dict[str, Any]] = self.nodes.without_edges((args, kwargs))
        except Exception as error:  # noqa: BLE001 - the model's call is still to be made
            self.on_fault(error)
            return args, kwargs
        watch.has_unknown_edge = edges_in(shown)
        return shown

    def _node(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Read a node of the autograd graph, from which a gradient may begin."""
        node = info.func(*args, **kwargs)
        try:
            with self.lock or _UNSHARED:
                self.nodes.note(node, args[0])
        except UntracedTensorError:
            return node
        except Exception as error:  # noqa: BLE001 - the model's call has been made
            self.on_fault(error)
        return node

    def _code_in_graph(self) -> str:
        """Return the code in an earlier gradient that made a graph: a later gradient may go through that."""
        gradients = self.recording.code_in_gradients.items()
        made_graph = (
            code.name for number, code in gradients if any(value.requires_grad for value in self.calls[number].outputs)
        )
        return next(made_graph, "")

    def _expand(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the Python body of a composite function, so that the calls inside it are recorded."""
        outer = self._group
        self._group = Group(info.name, outer)
        self._expanding.append(info.func)
        try:
            with self:
                return self._body(info.func)(*args, **kwargs)
        finally:
            self._expanding.pop()
            self._group = outer

    _body: Callable[[Any], Callable[..., Any]] = staticmethod(body_of)

    def _call_object(
        self, info: FunctionInfo, kinds: tuple[type, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Let the class of an argument that is no tensor run its own Python, and record the calls inside it."""
        outer = self._group
        self._group = Group(info.name, outer)
        try:
            with self:
                answers = (kind.__torch_function__(info.func, kinds, args, kwargs) for kind in kinds)  # type: ignore[attr-defined]
                answer = next((one for one in answers if one is not NotImplemented), NotImplemented)
        finally:
            self._group = outer
        return info.func(*args, **kwargs) if answer is NotImplemented else answer  # PyTorch's own error

    def _escape(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = info.func(*args, **kwargs)
        self._num_escapes += 1
        self._note_escape(info, args, result)
        return result

    def escape_by_pickle(self, func: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call the function by which ``pickle`` and `torch.save` take a plain tensor apart, which no mode sees."""
        result = func(*args)
        self._num_escapes += 1
        self._note_escape(_PICKLE, args, result)
        return result

    def escape_from_storage(self, func: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call a method by which Python reads the bytes of a storage."""
        self.busy = True
        try:
            with mode_disabled(self):
                result = func(*args)
        finally:
            self.busy = False
        self._num_escapes += 1
        self._note_escape(_STORAGE_ITEM, args, result)
        return result

    def _note_escape(self, info: FunctionInfo, args: tuple[Any, ...], result: Any) -> None:
        frames = self._frames(_CALLER_OF_ESCAPE)
        known = isinstance(result, bool | int | float | complex) and info.name != "data_ptr"  # which returns an address
        plain = result if known else None
        with self.lock or _UNSHARED:
            source = args[0] if args else None
            if info is _STORAGE_ITEM and args[0].device.type != "meta":
                source = self.table.tensor_over(args[0].data_ptr())
            read = self._read_if_seen(source) if isinstance(source, Tensor) else None
            second = (self._read_if_seen(arg) for arg in args[1:] if isinstance(arg, Tensor))
            others = tuple(value_of(other) for other in second if other is not None)
            if info.name in _ARRAYS and read is not None:
                self.table.expose(args[0], result)
            value = None if read is None else value_of(read)
            self.recording.escapes.append(Escape(info.name, value, len(self.calls), plain, self.module, frames, others))

    def _read_if_seen(self, tensor: Tensor) -> Value | Aliased | None:
        try:
            return self.table.read(tensor)
        except UntracedTensorError:
            return None

    def _call(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of the model; the dispatcher is watched inside it only where a tensor may be kept.

        What else runs inside belongs to the call, and some functions compute in another way when they are watched.
        In code that PyTorch compiles the watch stays: without a mode the compiler would take each call for itself.
        """
        watch = self.watch
        if watch is not None and may_run_users_code(info.name, args, kwargs):
            with watch.inside((args, kwargs)):
                return self._call_unlocked(info, args, kwargs)
        if watch is None or self._must_stay_watched(info) or _get_current_dispatch_mode() is not watch:
            return self._call_unlocked(info, args, kwargs)
        _pop_torch_dispatch_stack(None)
        try:
            return self._call_unlocked(info, args, kwargs)
        finally:
            _push_on_torch_dispatch_stack(watch)

    def _must_stay_watched(self, info: FunctionInfo) -> bool:
        return self.recording.compiled or _may_keep_tensors(info)

    def _call_unlocked(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of the model with the lock released, if there is one."""
        return info.func(*args, **kwargs)

    def _record_view(self, view: View, tensor: Tensor) -> None:
        call = self._new_call(*view, {}, Group("alias", self._group))
        self._finish(call, (tensor,), ())

    def _record_write(self, tensor: Tensor, contents: Tensor) -> None:
        reads = self.table.read(tensor), self.table.read(contents)
        # PyTorch writes to an inference tensor in inference mode only, and to a leaf of autograd without gradients only
        with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
            call = self._new_call(_COPY, reads, {}, Group("array", self._group))
        self._finish(call, (tensor,), (tensor,))

    def _frames(self, depth: int = 3) -> Frames:
        """Return code and instruction of the frames from `depth` calls up to the innermost module call."""
        frame: FrameType | None = sys._getframe(depth)
        boundary = self.boundary
        frames: list[CodeType | int] = []
        while frame is not None and (code := frame.f_code) is not _MODULE_CALL and code is not boundary:
            frames += (code, frame.f_lasti)
            frame = frame.f_back
        return tuple(frames)


def function_modes() -> tuple[str, ...]:
    """Return the class names of the function modes on the stack, except the default device."""
    modes = [_get_function_stack_at(place) for place in range(_len_torch_function_stack())]
    return tuple(type(mode).__name__ for mode in modes if not isinstance(mode, DeviceContext))


def _may_keep_tensors(info: FunctionInfo) -> bool:
    """Return whether a tensor made inside a function may be kept: by code of the model, or because it is its result.

    Custom operators, autograd and the hooks for saved tensors run code of the model.
    """
    if info.opaque or info.borrows or info.kind is GRADIENT or is_operator(info.func):
        return True
    return torch.is_grad_enabled() and _topmost_hooks(True) is not None


_topmost_hooks: Callable[[bool], Any] = getattr(_autograd, "_top_saved_tensors_default_hooks", lambda _: None)
"""Returns the hooks for saved tensors; PyTorch before 2.9 cannot list them."""


_MODULE_CALL = torch.nn.Module._call_impl.__code__
_PLAIN_TYPES = frozenset([Tensor, Parameter])
_NO_OVERRIDE = (getattr(Tensor.__torch_function__, "__func__", None), torch._C._disabled_torch_function_impl)


def _call_under(enabled: bool, modes: list[Any], func: Function, /, *args: Any, **kwargs: Any) -> Any:
    """Call a function as the model did: under dispatch modes, and with subclasses of tensors `enabled` or not."""
    subclasses = contextlib.nullcontext() if enabled else torch._C.DisableTorchFunctionSubclass()
    with torch._C._EnableTorchFunction(), subclasses:
        return call_under(modes, func, *args, **kwargs)


def overrides(kind: type) -> bool:
    """Return whether a tensor class defines its own ``__torch_function__``."""
    own = getattr(kind, "__torch_function__", None)
    return getattr(own, "__func__", own) not in _NO_OVERRIDE


def _is_left_to_objects(kinds: tuple[type, ...]) -> bool:
    """Return whether PyTorch leaves a call to the class of an argument that is no tensor, and to no tensor's class."""
    own = [kind for kind in kinds if overrides(kind)]
    return bool(own) and all(
        not issubclass(kind, Tensor) and isinstance(kind.__torch_function__, types.MethodType)  # type: ignore[attr-defined]
        for kind in own
    )


def _tensors_written(info: FunctionInfo, expected: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the tensors that a call has overwritten, of which some are `expected` by its function."""
    return info.writer.changed_tensors() if isinstance(info.writer, WriteDetector) else expected


def _with_shape(outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Leave out parameters that a lazy layer has not created yet."""
    return tuple([tensor for tensor in outputs if not is_lazy(tensor)])


@contextlib.contextmanager
def mode_disabled(mode: TorchFunctionMode) -> Iterator[None]:
    """Remove a mode from the stack, wherever it is, and put it back in its place at the end."""
    place = next(
        (at for at in reversed(range(_len_torch_function_stack())) if _get_function_stack_at(at) is mode), None
    )
    if place is None:
        yield
        return
    above = _pop_modes_above(place + 1)
    _pop_mode()  # type: ignore[no-untyped-call]
    _push_modes(above)
    try:
        yield
    finally:
        above = _pop_modes_above(place)
        _push_modes([mode, *above])


def dispatch_enabled(func: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `func` so that ``__torch_function__`` dispatch is enabled while it runs, though it is disabled around it."""

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with torch._C._EnableTorchFunction():
            return func(*args, **kwargs)

    return wrapped


def _pop_modes_above(height: int) -> list[TorchFunctionMode]:
    """Pop all modes above `height`; return them, the lowest first."""
    return [_pop_mode() for _ in range(_len_torch_function_stack() - height)][::-1]  # type: ignore[no-untyped-call]


def _push_modes(modes: list[TorchFunctionMode]) -> None:
    for mode in modes:
        _push_mode(mode)  # type: ignore[no-untyped-call]
