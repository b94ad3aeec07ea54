"""Records a forward pass in one thread: functions, modules, and opaque calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
import torch.utils.checkpoint

from pytest_torchlens.capture.autograd_nodes import edges_in
from pytest_torchlens.capture.backward import BackwardPass
from pytest_torchlens.capture.backward import BackwardWatch
from pytest_torchlens.capture.backward import backward
from pytest_torchlens.capture.calls import Frames
from pytest_torchlens.capture.calls import Group
from pytest_torchlens.capture.calls import ModuleCall
from pytest_torchlens.capture.calls import RandomState
from pytest_torchlens.capture.calls import Recording
from pytest_torchlens.capture.dispatch_watch import call_under
from pytest_torchlens.capture.dispatch_watch import dispatch_depth
from pytest_torchlens.capture.dispatch_watch import dispatch_modes_removed
from pytest_torchlens.capture.function_tracer import FunctionTracer
from pytest_torchlens.capture.function_tracer import dispatch_enabled
from pytest_torchlens.capture.function_tracer import mode_disabled
from pytest_torchlens.capture.functions import FunctionInfo
from pytest_torchlens.capture.functions import Kind
from pytest_torchlens.capture.functions import leaf_of
from pytest_torchlens.capture.generators import has_drawn
from pytest_torchlens.capture.generators import state_before
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.capture.memory import Retention
from pytest_torchlens.capture.opaque import OpaqueModule
from pytest_torchlens.capture.opaque import Pullback
from pytest_torchlens.capture.opaque import Transform
from pytest_torchlens.capture.opaque import WriteDetector
from pytest_torchlens.capture.opaque import constants_in
from pytest_torchlens.capture.opaque import custom_info
from pytest_torchlens.capture.opaque import is_opaque
from pytest_torchlens.capture.opaque import may_write
from pytest_torchlens.capture.opaque import steps_of_operator
from pytest_torchlens.capture.origins import tensors_used_by
from pytest_torchlens.capture.storage import memory_place
from pytest_torchlens.capture.tensor_table import Named
from pytest_torchlens.capture.tensor_table import UntracedTensorError

__tracebackhide__ = True  # pytest leaves our frames out of the traceback of what a model raises

_UNSHARED = contextlib.nullcontext()


def swap_tensors(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two tensors in the other order: what `torch.utils.swap_tensors` does, for a replay."""
    return other, one


def resize_storage_(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """Give the memory of a tensor a number of bytes, and return the tensor."""
    tensor.untyped_storage().resize_(size)
    return tensor


def _write_to_storage(name: str) -> FunctionInfo:
    """Return the facts about a method of storages that writes, as a function of tensors over them."""

    def storage_of(arg: Any) -> Any:
        return arg.untyped_storage() if is_a(arg, torch.Tensor) else arg

    def write(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        named = {key: storage_of(value) for key, value in kwargs.items()}
        getattr(torch.UntypedStorage, name)(tensor.untyped_storage(), *map(storage_of, args), **named)
        return tensor

    write.__name__ = f"{name.strip('_')}_storage_"
    return leaf_of(write)


STORAGE_WRITES = {name: _write_to_storage(name) for name in ("fill_", "copy_", "__setitem__", "byteswap")}
"""Methods of storages that write, by name."""
_RESIZE = leaf_of(resize_storage_)
_RESIZE.moves = _RESIZE.uninitialised = _RESIZE.bookkeeping = True
_SWAP = leaf_of(swap_tensors)
_RUNS_THE_MODEL = torch.utils.checkpoint.CheckpointFunction.__name__


class Tracer(FunctionTracer):
    """Records all calls into a `Recording`.

    Each method ``call_...`` makes and records one call of the model.  Its first parameters are ``func, args, kwargs``:
    ``func(*args, **kwargs)`` is the same call without a tracer.  Further parameters describe the call.  `GuardedTracer`
    relies on this to guard all these methods.

    Parameters
    ----------
    recording, retention, keep, named
        As in `FunctionTracer`.
    addresses
        Address of each registered module by id.
    """

    def __init__(
        self, recording: Recording, retention: Retention, keep: bool, named: Named, addresses: dict[int, str]
    ) -> None:
        super().__init__(recording, retention, keep, named)
        self._addresses = addresses
        self._module_calls: dict[str, int] = {}

    def call_module(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a module, the first of `args`, and record its place in the stack of module calls."""
        module: torch.nn.Module = args[0]
        outer = self.module
        frames = self._frames() if outer is not None else ()
        call = self._enter(module, frames, args[1:], kwargs)
        self.module = call
        start = perf_counter()
        try:
            if is_opaque(module) and not self.transforming:
                result = self._call_opaque_module(func, args, kwargs)
            else:
                result = func(*args, **kwargs)
        finally:
            self.module = outer
            call.last = len(self.calls)
            call.seconds = perf_counter() - start
        self._leave(call, result)
        return result

    boundary = call_module.__code__

    def _enter(
        self, module: torch.nn.Module, frames: Frames, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> ModuleCall:
        kind = type(module).__name__
        address = self._addresses.get(id(module))
        if address is None:
            address = f"<{kind}>"
        if kind != self.recording.modules.get(address, kind):
            self.recording.other_classes.setdefault(address, set()).add(kind)
        number = self._module_calls[address] = self._module_calls.get(address, 0) + 1
        call = ModuleCall(address, kind, number, self.module, frames, len(self.calls))
        self.recording.module_calls.append(call)
        call.inputs = self.table.recorded_values((args, kwargs) if kwargs else args)
        return call

    def _leave(self, call: ModuleCall, result: Any) -> None:
        call.outputs = self.table.recorded_values(result)

    def _call_opaque_module(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module: torch.nn.Module = args[0]
        self.busy = True  # reading scripted code runs operations
        try:
            with mode_disabled(self):
                opaque = OpaqueModule(func, module, id(module) in self._addresses)
                info = opaque.info()
        finally:
            self.busy = False
        return self._opaque(info, (opaque.own_tensors, *args[1:]), kwargs)

    def call_custom(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
        """Call a custom autograd function.

        Its steps become a group.  It becomes one operation where the steps do not account for its outputs, or where
        values went to Python or to code in C++ inside; that of a checkpoint runs the model's code, and is its steps.
        """
        outer, num_escapes, first, watch = self._group, self._num_escapes, len(self.calls), self.watch
        num_missed = 0 if watch is None else len(watch.missed_here)
        try:
            with self.lock or _UNSHARED:
                # registers the arguments before the steps can change them
                self._unrecorded(self._template, (args, kwargs))
        except UntracedTensorError:
            return func(*args, **kwargs)
        random = self._unrecorded(state_before, "", args, kwargs)
        self._group = Group(name, outer, custom=True)
        try:
            result = func(*args, **kwargs)
        finally:
            self._group = outer
        outputs = tensors(result)
        with self.lock or _UNSHARED:
            escaped = self._num_escapes != num_escapes and not self._overwrote((args, kwargs), first)
            in_extension = watch is not None and not self.over and watch.missed_by_extension(num_missed)
            whole = (escaped or in_extension) and name != _RUNS_THE_MODEL
            if whole or not self._unrecorded(self._account_for, outputs):
                self._unrecorded(self._finish_custom, custom_info(func, name), args, kwargs, outputs, random)
            if whole and in_extension and watch is not None:
                watch.put_inside(num_missed, name)
        return result

    def _overwrote(self, arguments: Any, first: int) -> bool:
        """Return whether a call since the one numbered `first` wrote to arguments, so that no replay can begin anew."""
        slots = {value.slot for value in self.table.recorded_values(arguments)}
        return any(slots.intersection(call.writes) for call in self.calls[first:])

    def _account_for(self, outputs: tuple[torch.Tensor, ...]) -> bool:
        return all(map(self.table.accounts_for, outputs))

    def _finish_custom(
        self,
        info: FunctionInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outputs: tuple[torch.Tensor, ...],
        random: RandomState | None,
    ) -> None:
        """Record a custom function that has run as one operation; `random` is the state from before."""
        # the arguments are read again: a step may have returned one
        call = self._new_call(info, self._template(args), self._template(kwargs))
        call.random = random if random is not None and has_drawn(random) else None
        self._finish(call, outputs, ())

    def _unrecorded(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function of ours that runs operations, which are not the model's."""
        self.busy = True
        try:
            with mode_disabled(self), torch._C.DisableTorchFunction():
                return function(*args)
        finally:
            self.busy = False

    def call_opaque(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
        """Call a function that runs no Python, and record it as one operation."""
        writer = WriteDetector() if may_write(func, training=True) else None
        return self._opaque(custom_info(func, name, writer), args, kwargs)

    def call_operator(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
        """Call an operator with functions inside (`torch.cond`), as one operation that names its steps."""
        info = custom_info(func, name.removesuffix("_impl"))
        info.steps = self._unrecorded(steps_of_operator, name, args)
        return self._opaque(info, args, kwargs)

    def call_transform(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call `vmap`, `grad` or another transform of the function ``args[0]``, and record it as one operation."""
        return self._transform(Transform(func, args[0]), args[1:], kwargs)

    def call_vjp(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], record: Callable[..., Any]
    ) -> Any:
        """Call the implementation of `torch.func.vjp`; calls of the pullback that it returns go to `record`."""
        transform = Transform(func, args[0])
        results, pull, *aux = self._transform(transform, args[1:], kwargs)
        return results, Pullback(transform, (args[1:], kwargs), pull, record), *aux

    def _transform(self, transform: Transform, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a transform as one operation, which also reads the outer tensors that the transformed function uses."""
        info = transform.info(self.on_fault)
        self.transforming = True
        try:
            result = self._opaque(info, args, kwargs)
        finally:
            self.transforming = False
        with self.lock or _UNSHARED:
            call = next((call for call in reversed(self.calls) if call.info is info), None)
            if call is not None:  # None if it returned no tensor, or read an untracked one
                with mode_disabled(self), torch._C.DisableTorchFunction():  # our own read of memory is not an escape
                    call.args = (tuple(map(self.table.read, transform.outer_tensors)), *call.args)
        info.func, info.steps = transform.replay, transform.steps
        return result

    def call_pullback(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], back: Pullback
    ) -> Any:
        """Call the pullback that `torch.func.vjp` returned, as one operation that also reads what the vjp call read."""

        def pull(_sources: Any, /, *args: Any, **kwargs: Any) -> Any:
            return func(*args, **kwargs)

        info = custom_info(pull, "pullback")
        result = self._opaque(info, (back.sources, *args), kwargs)
        info.func = back.replay
        return result

    def _opaque(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.busy, func = True, info.func
        info.func = dispatch_enabled(func)
        try:
            with mode_disabled(self), torch._C.DisableTorchFunction():
                if dispatch_depth() > self.num_own_modes:
                    return self._under_modes(self._leaf, info, args, kwargs)
                return self._leaf(info, args, kwargs)
        finally:
            self.busy, info.func = False, func

    def call_backward(self, func: Callable[..., Any], args: tuple[()], kwargs: dict[str, Any]) -> None:
        """Call `torch.autograd.backward`, and record it as an operation that returns the gradients of the leaves.

        All arguments have names; the signature is that of the other calls.
        """
        with self.lock or _UNSHARED:
            shown = self._unrecorded(self.nodes.without_edges, kwargs)
            back = self._unrecorded(lambda: BackwardPass(func, kwargs, shown, self._keepers_of_gradients()))
        info, start = custom_info(back.run, "backward"), len(self.calls)
        info.kind, info.opaque = Kind.GRADIENT, False
        info.writer = watch = BackwardWatch(self.recording.model(), self.table, self.lock or _UNSHARED, self.on_fault)
        watch.has_unknown_edge = edges_in(shown)
        try:
            self._opaque(info, back.arguments, {})
        finally:
            watch.stop()
        info.func, info.writer = backward, None
        for call in self.calls[start:]:
            if call.info is info:
                call.args = back.changed_arguments(call.args)

    def _keepers_of_gradients(self) -> list[torch.Tensor]:
        """Return the parameters of the model, and the results that retain their gradients."""
        model = self.recording.model()
        parameters = [] if model is None else [one for _, one in named_parameters(model) if not is_lazy(one)]
        return parameters + [tensor for tensor in self.table.live() if tensor.retains_grad]

    def call_unseen(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a builtin that no mode sees, and record it like one that modes see."""
        with mode_disabled(self):
            return self.__torch_function__(func, (), args, kwargs)

    def call_jit_tracing(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a graph of code of the model, which runs as without a recording; what it changed is found afterwards."""
        writes = WriteDetector()
        with self.lock or _UNSHARED:
            self._unrecorded(self._note_before_tracing, writes, args, kwargs)
        self.busy = True
        try:
            with mode_disabled(self), dispatch_modes_removed() as modes:
                result = call_under([mode for mode in modes if mode is not self.watch], func, *args, **kwargs)
        finally:
            self.busy = False
        with self.lock or _UNSHARED:
            self._unrecorded(self._note_tracing, writes, result)
        return result

    def _note_before_tracing(self, writes: WriteDetector, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note what code to trace, the first of `args`, may change: the recorded tensors, and those that it uses."""
        for tensor in tensors_used_by(args[0]) if args else ():
            self._template(tensor)
        known = tuple(tensor for tensor in self.table.live() if self.table.accounts_for(tensor))
        self.table.before_write(writes((known,), {}))

    def _note_tracing(self, writes: WriteDetector, traced: Any) -> None:
        """Note what tracing wrote, and whether the graph holds results of operations."""
        self._note_changes(writes, "what torch.jit.trace wrote when it ran the code")
        constants = self.table.recorded_values(constants_in(traced))
        if any(value.call >= 0 or self.recording.sources[value.position].kind == "input" for value in constants):
            message = "code that torch.jit.trace made here holds computed tensors as constants, which have no edges"
            self.recording.detours.append((len(self.calls), message))

    def call_set(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call ``Tensor.set_``; if the tensor is over other memory then, it is another view of it."""
        self.busy = True
        try:
            place = memory_place(args[0]) if is_a(args[0], torch.Tensor) else None
            result = func(*args, **kwargs)
            moved = memory_place(args[0]) != place
        finally:
            self.busy = False
        if moved:
            with self.lock or _UNSHARED:
                self._unrecorded(self.table.forget, args[0])
        return result

    def call_resize(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call ``UntypedStorage.resize_``, and record it as a write to a tensor over the storage, if one is known."""
        storage, size = args
        with self.lock or _UNSHARED:
            tensor, read = self._unrecorded(self.table.before_resize, storage)
        result = func(*args, **kwargs)
        if tensor is not None:
            with self.lock or _UNSHARED:
                self._unrecorded(self._finish_resize, tensor, read, size)
        return result

    def _finish_resize(self, tensor: torch.Tensor, read: Any, size: int) -> None:
        self._finish(self._new_call(_RESIZE, (read, size), {}), (tensor,), (tensor,))

    def call_storage_write(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], name: str
    ) -> Any:
        """Call a method of a storage that writes to it, and record it as a write to a tensor over all of it."""
        if args[0].device.type == "meta":
            return func(*args, **kwargs)
        with self.lock or _UNSHARED:
            over = self._unrecorded(self._tensors_over_storages, args, kwargs)
            start = len(self.calls)
            reads, named_reads = self._unrecorded(self._before_storage_write, over, args, kwargs)
            num_views = len(self.calls) - start
        try:
            result = self._unrecorded(lambda: func(*args, **kwargs))
        except Exception:
            with self.lock or _UNSHARED:
                self._unrecorded(self._after_failed_write, name, over, start, num_views)
            raise
        with self.lock or _UNSHARED:
            call = self._new_call(STORAGE_WRITES[name], reads, named_reads)
            self._unrecorded(self._finish, call, over[:1], over[:1])
        return result

    def _tensors_over_storages(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        storages = (value for value in (*args, *kwargs.values()) if is_a(value, torch.UntypedStorage))
        return tuple(map(self.table.over_all_of, storages))

    def _before_storage_write(
        self, over: tuple[torch.Tensor, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with the read of the tensor over it in place of each storage."""
        others = iter(over)
        values = [*args, *kwargs.values()]
        reads = [self._template(next(others) if is_a(value, torch.UntypedStorage) else value) for value in values]
        self.table.before_write(over[:1])
        return tuple(reads[: len(args)]), dict(zip(kwargs, reads[len(args) :], strict=True))

    def _after_failed_write(self, name: str, over: tuple[torch.Tensor, ...], start: int, num_views: int) -> None:
        """Record what a method that raised has written; forget how the tensors over its storages were made."""
        self.table.check_for_change(over[0], f"what {name} of a storage had written when it raised")
        if len(self.calls) == start + num_views:
            del self.calls[start:]
            self.table.drop(over)

    def call_swap(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call ``torch.utils.swap_tensors``: each tensor then holds the value of the other one."""
        pair = tensors(args)
        with self.lock or _UNSHARED:
            reads = self._unrecorded(self.table.let_go, pair)
        try:
            result = func(*args, **kwargs)
        finally:
            self._unrecorded(self.table.take_back, pair)
        with self.lock or _UNSHARED:
            self._unrecorded(self._finish_swap, reads, pair)
        return result

    def _finish_swap(self, reads: tuple[Any, ...], pair: tuple[torch.Tensor, ...]) -> None:
        self._finish(self._new_call(_SWAP, reads, {}), pair, ())

    def close(self) -> None:
        """Stop recording: the pass is over."""
        self.table.close()
        self.watch = None  # breaks a cycle: recorded data must be freed with the recording
        self.over = True
