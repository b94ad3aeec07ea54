"""The mode that sees every torch function of a forward pass, in one thread.  Each line here is paid per operation."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from collections.abc import Iterable
from time import perf_counter
from time import perf_counter_ns
from types import CodeType
from types import FrameType
from typing import TYPE_CHECKING
from typing import Any

import numpy as np
import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode

from pytest_torchlens.capture.calls import Aliased
from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.calls import Escape
from pytest_torchlens.capture.calls import Frames
from pytest_torchlens.capture.calls import Group
from pytest_torchlens.capture.calls import ModuleCall
from pytest_torchlens.capture.calls import Recording
from pytest_torchlens.capture.calls import Source
from pytest_torchlens.capture.calls import Value
from pytest_torchlens.capture.edges import edges_in
from pytest_torchlens.capture.edges import edges_of
from pytest_torchlens.capture.expand import body_of
from pytest_torchlens.capture.fingerprint import dense_digest
from pytest_torchlens.capture.fingerprint import fingerprint
from pytest_torchlens.capture.functions import Function
from pytest_torchlens.capture.functions import FunctionInfo
from pytest_torchlens.capture.functions import Kind
from pytest_torchlens.capture.functions import info_of
from pytest_torchlens.capture.leaves import ATOMS
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.memory import Extent
from pytest_torchlens.capture.memory import Retention
from pytest_torchlens.capture.memory import overlap
from pytest_torchlens.capture.opaque import captured
from pytest_torchlens.capture.opaque import custom_info
from pytest_torchlens.capture.opaque import is_opaque
from pytest_torchlens.capture.opaque import module_info
from pytest_torchlens.capture.opaque import transform_info
from pytest_torchlens.capture.randomness import drew
from pytest_torchlens.capture.randomness import state_before
from pytest_torchlens.capture.storage import storage_key

if TYPE_CHECKING:
    from pytest_torchlens.capture.watch import Watch

COMPOSITE, PLAIN, ESCAPE = Kind.COMPOSITE, Kind.PLAIN, Kind.ESCAPE
Tensor = torch.Tensor
Parameter = torch.nn.Parameter
Entry = tuple["weakref.ref[torch.Tensor]", Value, int, int]
"""Tensor, its present value, its storage key, and the number of the call that made the value."""


_CALLER_OF_MODULE = 4  # above _frames, _enter, call_module and what stands in for __call__


class Tracer(TorchFunctionMode):
    """Records calls into a `Recording`.

    Parameters
    ----------
    recording
        What to fill.
    keep
        Whether to keep every activation.
    named
        Parameters and buffers by id: the tensor, ``"parameter"`` or ``"buffer"``, its address.
    addresses
        Address of each registered module by id.
    """

    def __init__(
        self,
        recording: Recording,
        keep: bool,
        named: dict[int, tuple[Tensor, str, str]],
        addresses: dict[int, str],
    ) -> None:
        self.recording = recording
        self.calls = recording.calls
        self.keep = keep
        self._ambient = recording.ambient
        self.module: ModuleCall | None = None
        self._named = named
        self._addresses = addresses
        self._live: dict[int, Entry] = {}
        self._owners: dict[int, tuple[weakref.ref[Tensor], Value]] = {}
        self._writes: dict[int, list[tuple[int, Value, Extent | None]]] = {}
        self._retention = Retention()
        self._module_calls: dict[str, int] = {}
        self._group: Group | None = None
        self._expanding: list[Function] = []
        self.slots = 0
        self.busy = False
        """Whether a recorded call, or our own work on it, is in progress."""
        self.watch: Watch | None = None

    # -- functions ---------------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Function, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = {} if kwargs is None else kwargs
        info = info_of(func)
        kind = info.kind
        if kind is COMPOSITE and func not in self._expanding and not any(_overrides(kind) for kind in types):
            return self._expand(info, args, kwargs)
        self.busy = True
        try:
            if kind is PLAIN:
                return func(*args, **kwargs)
            return self._escape(info, args, kwargs) if kind is ESCAPE else self._leaf(info, args, kwargs)
        finally:
            self.busy = False

    def _leaf(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            read_args = tuple([self._template(arg) for arg in args])
            read_kwargs = {key: self._template(arg) for key, arg in kwargs.items()} if kwargs else kwargs
        except _OutOfSightError:
            self.busy = False  # for the completeness check to see that it was missed
            return info.func(*args, **kwargs)
        written = () if info.writer is None and not kwargs else self._about_to_write(info, args, kwargs)
        random = state_before(args, kwargs) if info.draws else None
        ambient = self._ambient.number()
        start = perf_counter_ns()
        result = info.func(*args, **kwargs)
        elapsed = perf_counter_ns() - start
        kind = type(result)
        outputs = (result,) if kind is Tensor else written if result is None else tensors(result)
        if outputs:
            random = random if random is not None and drew(random) else None
            where = self.module, self._frames(), ambient, elapsed, self._group, random
            self._finish(Call(info, read_args, read_kwargs, result is not None, where), outputs, written)
            if info.uninitialised:
                garbage = tuple([output.detach().clone() for output in outputs])
                self.recording.uninitialised[len(self.calls) - 1] = garbage
        return result

    def _about_to_write(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return what the call will overwrite, after copies were made of what is kept of it."""
        written = info.writer(args, kwargs) if info.writer is not None else ()
        if "out" in kwargs:
            written += tensors(kwargs["out"])
        written = tuple([target for target in written if not is_lazy(target)])
        for target in written:
            self._retention.before_write(storage_key(target))
        return written

    def _finish(self, call: Call, outputs: tuple[Tensor, ...], written: tuple[Tensor, ...]) -> None:
        number = len(self.calls)
        self.calls.append(call)
        call.outputs = tuple([self._made(tensor, number, place) for place, tensor in enumerate(outputs)])
        if written:
            self._log_writes(call, number, written)

    def _expand(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outer = self._group
        self._group = Group(info.name, outer)
        self._expanding.append(info.func)
        try:
            with self:
                return body_of(info.func)(*args, **kwargs)  # type: ignore[arg-type]
        finally:
            self._expanding.pop()
            self._group = outer

    def _escape(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = info.func(*args, **kwargs)
        read = self.read(args[0]) if args and isinstance(args[0], Tensor) else None
        value = read.value if isinstance(read, Aliased) else read
        plain = result if isinstance(result, bool | int | float | complex) else None
        escape = Escape(info.name, value, len(self.calls), plain, self.module, self._frames())
        self.recording.escapes.append(escape)
        return result

    # -- values ------------------------------------------------------------------------------------------------

    def _template(self, arg: Any) -> Any:
        kind = type(arg)
        if kind is Tensor or kind is Parameter:
            return self.read(arg)
        if kind in ATOMS:
            return arg
        return substitute(arg, self._swap)

    def _swap(self, leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf if is_lazy(leaf) else self.read(leaf)
        return leaf.copy() if isinstance(leaf, np.ndarray) else leaf

    def read(self, tensor: Tensor) -> Value | Aliased:
        """Return the value that a tensor holds now, with the writes that reached it through other tensors."""
        entry = self._live.get(id(tensor))
        if entry is None or entry[0]() is not tensor:
            entry = self._register(tensor)
        if self._writes:
            log = self._writes.get(entry[2])
            if log is not None and log[-1][0] > entry[3]:
                return self._with_writes(tensor, entry, log)
        return entry[1]

    def known(self, value: Any) -> tuple[Value, ...]:
        """Return the present values of the tensors in a module's arguments or result, as far as they have one."""
        found = (value,) if type(value) is Tensor else tensors(value)
        entries = [(self._live.get(id(tensor)), tensor) for tensor in found]
        return tuple([entry[1] for entry, tensor in entries if entry is not None and entry[0]() is tensor])

    def _made(self, tensor: Tensor, number: int, place: int) -> Value:
        old = self._live.get(id(tensor))
        if old is not None and old[0]() is tensor:
            ref, slot = old[0], old[1].slot
        else:
            ref, slot = weakref.ref(tensor), self._new_slot()
        value = Value(slot, number, place, tensor)
        dense = dense_digest(tensor, value) if type(tensor) is Tensor else None
        if dense is not None:
            value.digest, key = dense
        else:
            value.digest, key = fingerprint(tensor), storage_key(tensor)
        self._live[id(tensor)] = (ref, value, key, number)
        owner = self._owners.get(key)
        if owner is None or owner[0]() is None or owner[0] is ref:
            self._owners[key] = (ref, value)
        if self.keep:
            self._retention.keep(value, tensor, key)
        return value

    def _new_slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    def _with_writes(
        self, tensor: Tensor, entry: Entry, log: list[tuple[int, Value, Extent | None]]
    ) -> Value | Aliased:
        extent = Extent.of(tensor)
        later = [value for number, value, written in log if number > entry[3] and overlap(extent, written)]
        return Aliased(entry[1], tuple(later)) if later else entry[1]

    def _log_writes(self, call: Call, number: int, written: tuple[Tensor, ...]) -> None:
        by_slot = {value.slot: value for value in call.outputs}
        slots = []
        for target in written:
            entry = self._live[id(target)]
            slots.append(entry[1].slot)
            value = by_slot.get(entry[1].slot, call.outputs[0])
            self._writes.setdefault(storage_key(target), []).append((number, value, Extent.of(target)))
        call.writes = tuple(slots)

    # -- sources -----------------------------------------------------------------------------------------------

    def _register(self, tensor: Tensor) -> Entry:
        """Find out where a tensor that no recorded call made comes from."""
        named = self._named.get(id(tensor))
        if named is not None and named[0] is tensor:
            return self.add_source(tensor, named[1], named[2])
        if is_functorch_wrapped_tensor(tensor):
            raise _OutOfSightError
        key = storage_key(tensor)
        if key and key in self._owners and (view := self._as_view(tensor, *self._owners[key])) is not None:
            return self._alias(tensor, *view)
        return self.add_source(tensor, "constant", "")

    def add_source(self, tensor: Tensor, kind: str, name: str) -> Entry:
        """Enter a tensor as one that comes from outside, with the value it has now."""
        key = storage_key(tensor)
        value = Value(self._new_slot(), -1, len(self.recording.sources), tensor)
        if kind != "parameter":  # large, and their version counters tell
            value.digest = fingerprint(tensor)
        self._retention.keep(value, tensor, key)
        version = -1 if tensor.is_inference() else tensor._version
        self.recording.sources.append(Source(kind, name, value, tensor, version))
        ref = weakref.ref(tensor)
        entry = self._live[id(tensor)] = (ref, value, key, len(self.calls) - 1)
        self._owners[key] = (ref, value)
        return entry

    def _as_view(
        self, tensor: Tensor, ref: weakref.ref[Tensor], last: Value
    ) -> tuple[FunctionInfo, tuple[Any, ...]] | None:
        """Return the call that makes `tensor` from the tensor known to own its memory; None if it cannot be told.

        Of an owner that is gone the memory may live on in `tensor`: told by the values in it.
        """
        owner = ref()
        read = self.read(owner) if owner is not None else last if _holds(tensor, last) else None
        if read is None or last.dtype != tensor.dtype or last.stride is None:
            return None
        if owner is None or type(owner) is not type(tensor):
            whole = last.shape == tensor.shape and last.stride == tensor.stride()
            same = info_of(torch.Tensor.as_subclass), (read, type(tensor))
            return same if whole and (owner is None or owner.data_ptr() == tensor.data_ptr()) else None
        offset = (tensor.data_ptr() - owner.data_ptr()) // tensor.itemsize + owner.storage_offset()
        return info_of(torch.as_strided), (read, tuple(tensor.shape), tensor.stride(), offset)

    def _alias(self, tensor: Tensor, info: FunctionInfo, args: tuple[Any, ...]) -> Entry:
        """Record a tensor that shares memory with a known one, though no call was seen to make it, as a view."""
        where = self.module, self._frames(), self._ambient.number(), 0, Group("alias", self._group), None
        self._finish(Call(info, args, {}, True, where), (tensor,), ())
        return self._live[id(tensor)]

    # -- modules -----------------------------------------------------------------------------------------------

    def call_module(
        self,
        original: Callable[..., Any],
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call a module with its place in the stack of module calls noted."""
        outer = self.module
        call = self._enter(module, outer)
        call.entered = self.known((args, kwargs) if kwargs else args)
        self.module = call
        start = perf_counter()
        try:
            if is_opaque(module):
                result = self._opaque(module_info(original, module), args, kwargs)
            else:
                result = original(module, *args, **kwargs)
        finally:
            self.module = outer
            call.last = len(self.calls)
            call.seconds = perf_counter() - start
        call.exited = self.known(result)
        return result

    def call_custom(self, apply: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a custom autograd function: its steps make a group, or one operation if they hide where results are from."""
        outer, first = self._group, len(self.calls)
        self._group = Group(name, outer)
        read = self._template(args), self._template(kwargs)
        try:
            result = apply(*args, **kwargs)
        finally:
            self._group = outer
        outputs = tensors(result)
        steps = self.calls[first:]
        if any(step.writes for step in steps) or self._lead_to(steps, read, outputs):
            return result
        where = self.module, self._frames(4), self._ambient.number(), 0, outer, None
        self._finish(Call(custom_info(apply, name), *read, True, where), outputs, ())
        return result

    def _lead_to(self, steps: list[Call], inputs: Any, outputs: tuple[Tensor, ...]) -> bool:
        """Return whether recorded steps lead from each of `outputs` back to one of the values in `inputs`."""
        given = {id(edge) for _, edge in edges_of(inputs)}
        reached = set(given)
        for step in steps:
            if any(id(edge) in reached for _, edge in edges_in(step)):
                reached.update(map(id, step.outputs))
        return not given or all(id(self.read(output)) in reached for output in outputs)

    def call_opaque(self, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function whose inside cannot be seen, as one operation."""
        return self._opaque(custom_info(func, name), args, kwargs)

    def call_transform(
        self, transform: Callable[..., Any], func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call vmap, grad or their like on `func`, as one operation that also reads what `func` captured."""
        return self._opaque(transform_info(transform, func), (captured(func), *args), kwargs)

    def _opaque(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.busy = True
        try:
            with torch.overrides._pop_mode_temporarily():
                return self._leaf(info, args, kwargs)
        finally:
            self.busy = False

    def _enter(self, module: torch.nn.Module, outer: ModuleCall | None) -> ModuleCall:
        kind = type(module).__name__
        address = self._addresses.get(id(module), f"<{kind}>")
        number = self._module_calls[address] = self._module_calls.get(address, 0) + 1
        frames = self._frames(_CALLER_OF_MODULE) if outer is not None else ()
        call = ModuleCall(address, kind, number, outer, frames, len(self.calls))
        self.recording.module_calls.append(call)
        return call

    # -- code positions ----------------------------------------------------------------------------------------

    def _frames(self, depth: int = 3) -> Frames:
        """Return code and instruction of the frames from `depth` calls up to the innermost module call."""
        frame: FrameType | None = sys._getframe(depth)
        frames: list[CodeType | int] = []
        while frame is not None and (code := frame.f_code) is not _MODULE_CALL and code is not _BOUNDARY:
            frames += (code, frame.f_lasti)
            frame = frame.f_back
        return tuple(frames)


# the walk up the stack ends at the frame around a module's forward
_MODULE_CALL = torch.nn.Module._call_impl.__code__
_BOUNDARY = Tracer.call_module.__code__


class _OutOfSightError(Exception):
    """A tensor of a function transform that was not seen to begin: what is computed with it cannot be recorded."""


def _holds(tensor: Tensor, value: Value) -> bool:
    """Return whether a tensor has the bytes of a value."""
    return bool(value.digest) and tensor.dtype == value.dtype and fingerprint(tensor) == value.fingerprint


def _overrides(kind: type) -> bool:
    """Return whether a tensor class has a ``__torch_function__`` of its own."""
    return kind is not Tensor and kind is not Parameter and "__torch_function__" in kind.__dict__
