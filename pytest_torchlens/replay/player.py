"""Runs the calls of a recording again, one by one, from its sources.

`Player` replaces recorded values by tensors, restores settings and random state, runs each call and frees each tensor
after its last use.  `CurrentValues` tracks which recorded value each tensor holds now, to check recorded edges.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING
from typing import Any

import torch
from torch.autograd import forward_ad

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Source
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import ambient
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.calls import values_read
from pytest_torchlens.capture.functions import is_of_torch
from pytest_torchlens.capture.leaves import ATOMS
from pytest_torchlens.capture.leaves import UnpackedObject
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.memory import copies_of
from pytest_torchlens.capture.memory import duplicate
from pytest_torchlens.capture.memory import overwrite
from pytest_torchlens.capture.memory import rekey
from pytest_torchlens.capture.memory import with_layout
from pytest_torchlens.capture.storage import Extent
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.capture.values import base_of
from pytest_torchlens.capture.values import strides_of
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.capture.values import values_in
from pytest_torchlens.capture.wrappers import held_tensors
from pytest_torchlens.capture.write_log import WriteLog

if TYPE_CHECKING:
    from typing_extensions import Self

    from pytest_torchlens.capture.code_in_gradient import CodeInGradient


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Player:
    """Replays a recording: ``for number, call in player`` with `arguments`, `run` and `store` for each call.

    Views stay views and in-place calls write to the same places, so every value is reproduced.  Sources that a call
    overwrites are copied first, so the user's tensors do not change.  Use it as a context manager: at the end it
    restores global settings and generators, and the gradient mode in which it was entered, whatever ran inside.

    Parameters
    ----------
    recording
        The recording.  Its model and inputs must hold the values from before the recorded call, except where recorded
        calls overwrote them.
    numbers
        Numbers of the calls that will run; None for all.
    """

    def __init__(self, recording: Recording, numbers: Collection[int] | None = None) -> None:
        self.recording = recording
        self._tensors: dict[int, torch.Tensor] = _source_tensors(recording.sources)
        self._free_after = _last_uses(recording, range(len(recording.calls)) if numbers is None else sorted(numbers))
        self._currents = CurrentValues(recording.sources)
        self._ambient = -1
        self._had_grad = True
        self._settings = contextlib.ExitStack()
        self._dual_level = contextlib.ExitStack()
        self._generators: dict[int, tuple[torch.Generator, torch.Tensor]] = {}
        self.not_replayed: set[int] = set()
        """Numbers of the calls whose recorded results were taken in place of replayed ones."""

    def __enter__(self) -> Self:
        self._had_grad = torch.is_grad_enabled()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._settings.close()
        # a call that ran inside a `no_grad`, left since, has noted that mode as the one to go back to
        torch.set_grad_enabled(self._had_grad)
        self._dual_level.close()
        for generator, state in self._generators.values():
            generator.set_state(state)
        self._tensors.clear()

    def at(self, slot: int) -> torch.Tensor:
        """Return the tensor that is in a slot now."""
        return self._tensors[slot]

    def put(self, value: Value, tensor: torch.Tensor, number: int = -1) -> None:
        """Put a tensor in the place of a value that call `number`, which does not run, would make."""
        self._tensors[value.slot] = tensor
        self._currents.put(value, number)

    def replace(self, slot: int, tensor: torch.Tensor) -> None:
        """Put a tensor in the place of the one in a slot, of the same value."""
        self._tensors[slot] = tensor

    def was_written(self, slot: int) -> bool:
        """Return whether a call so far is recorded to overwrite the memory of the tensor in a slot."""
        return self._currents.was_written(self._tensors[slot])

    def has(self, slot: int) -> bool:
        """Return whether there is a tensor in a slot now."""
        return slot in self._tensors

    def missing_arguments(self, call: Call) -> list[str]:
        """Return the paths of arguments that do not exist: no call made them, or they were freed."""
        return [path for path, value in values_read(call) if value.slot not in self._tensors]

    def wrong_edges(self, call: Call) -> dict[str, list[int]]:
        """Return the arguments of a call with a wrong recorded parent, except the one that `wrong_base` checks.

        For each path: the calls that overwrote the tensor though the record does not name them.  The list is empty if
        the tensor holds another value than recorded, or if the record names a write that did not happen.
        """
        holds = self._currents.is_unwritten
        reads = [(path, read) for path, read in edges_in(call) if not holds(read) and not _is_base(call, read)]
        if not reads:
            return {}
        return self._wrong((path, read, self._tensors.get(value_of(read).slot)) for path, read in reads)

    def wrong_base(self, call: Call, outputs: tuple[torch.Tensor, ...]) -> dict[str, list[int]]:
        """Return the same for the first argument of a call that may have returned a view of it, after it has run."""
        if not (call.args and call.may_be_view) or len(outputs) != 1:
            return {}
        base = call.args[0]
        if type(base) is Value and self._currents.is_unwritten(base):
            if self._tensors[base.slot] is outputs[0]:
                self._currents.note_view(call.outputs[0], base)
            return {}
        reads = [(path, read) for path, read in edges_in(call) if _is_base(call, read)]
        bases = [(path, read, self._tensors[value_of(read).slot]) for path, read in reads]
        shown = [(path, read, self._currents.shows_in(base, outputs[0])) for path, read, base in bases]
        for _, read, tensor in shown:
            if tensor is outputs[0]:
                self._currents.note_view(call.outputs[0], base_of(read))
        return self._wrong(shown)

    def _wrong(self, reads: Iterable[tuple[str, Value | Aliased, torch.Tensor | None]]) -> dict[str, list[int]]:
        return {
            path: self._currents.unrecorded_writers(read, tensor)
            for path, read, tensor in reads
            if tensor is not None and not self._currents.agrees(read, tensor)
        }

    def agrees(self, read: Value | Aliased) -> bool:
        """Return whether a slot holds the value that is recorded to be read, with the writes that are to show in it."""
        return self._currents.agrees(read, self._tensors[value_of(read).slot])

    def arguments(self, call: Call, swap: Callable[[Value], torch.Tensor] | None = None) -> Arguments:
        """Return a call's arguments with tensors in place of values: the current ones, or those of ``swap(value)``."""
        tensor_of = swap or (lambda value: self._tensors[value.slot])
        repacked: dict[int, Any] = {}
        args = tuple([arg if type(arg) in ATOMS else _filled(tensor_of, repacked, arg) for arg in call.args])
        return args, {name: _filled(tensor_of, repacked, arg) for name, arg in call.kwargs.items()}

    def run(self, call: Call, arguments: Arguments) -> tuple[torch.Tensor, ...]:
        """Call the function under the recorded settings and random state; return the tensors that it returned.

        The tuple is empty for a call that only overwrites its arguments.
        """
        self.apply_settings(call)
        if call.random is not None:
            generator = call.random.generator
            self._generators.setdefault(id(generator), (generator, generator.get_state()))
            generator.set_state(call.random.state)
        if call.info.layer_type == "make_dual" and forward_ad._current_level < 0:
            self._dual_level.enter_context(forward_ad.dual_level())  # until the end: leaving it drops the tangents
        with torch._C._EnableTorchFunction():  # the caller may have disabled it for its own work
            return tensors(self.result(call, arguments))

    def result(self, call: Call, arguments: Arguments) -> Any:
        """Return what the function returns."""
        args, kwargs = arguments
        return call.info.func(*args, **kwargs)

    def play(
        self, number: int, call: Call, arguments: Arguments
    ) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """Run call `number`; return the tensors it returned, to be stored, and the tensors for its recorded outputs."""
        former = {id(tensor): storage_key(tensor) for tensor in tensors(arguments)} if call.info.moves else {}
        code = self.recording.code_in_gradients.get(number)
        uninitialised = number in self.recording.uninitialised
        kept = _elements_kept(call, arguments) if uninitialised else 0
        returned = self.run(call, arguments) if code is None else self._gradient(number, call, arguments, code)
        if call.info.moves:
            self._currents.follow_move(former[id(returned[0])], storage_key(returned[0]))
        outputs = self.outputs(call, returned)
        if uninitialised:
            self._fill_memory(number, outputs, kept)
        return returned, outputs

    def _gradient(
        self, number: int, call: Call, arguments: Arguments, code: CodeInGradient
    ) -> tuple[torch.Tensor, ...]:
        """Run a gradient in which autograd ran Python code; take what is recorded if it comes out otherwise."""
        if not code.written and not code.at_unknown_edge:
            try:
                returned = self.run(call, arguments)
            except RuntimeError:  # such as a custom function that alone made a tensor differentiable
                returned = ()
            if [*map(fingerprint, returned)] == [*map(fingerprint, code.outputs)]:
                return returned
        self.not_replayed.add(number)
        for slot, contents in code.written:
            overwrite(self._tensors[slot], contents)
        return tuple(map(_result_of_record, call.outputs, code.outputs)) if call.returned else ()

    def _fill_memory(self, number: int, outputs: tuple[torch.Tensor, ...], kept: int) -> None:
        """Fill uninitialised memory of call `number`, after the elements that it kept, with its recorded contents."""
        for output, contents in zip(outputs, self.recording.uninitialised[number], strict=False):
            if not kept:
                overwrite(output, contents)
            elif kept < output.numel():
                overwrite(_in_memory(output)[kept:], _in_memory(contents)[kept:])

    def store(self, number: int, call: Call, returned: tuple[torch.Tensor, ...]) -> None:
        """Store the tensors that call `number` returned, and free those that no later call uses."""
        self.store_all(number, call, returned)
        self.free(number)

    def store_all(self, number: int, call: Call, returned: tuple[torch.Tensor, ...]) -> None:
        """Store the tensors that call `number` returned."""
        if call.returned:
            for value, tensor in zip(call.outputs, returned, strict=True):
                self._tensors[value.slot] = tensor
        self._currents.note(number, call, {slot: self._tensors[slot] for slot in call.writes} if call.writes else {})

    def free(self, number: int) -> None:
        """Free the tensors that no call after call `number` uses."""
        for slot in self._free_after.get(number, ()):
            self._tensors.pop(slot, None)

    def outputs(self, call: Call, returned: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Return the tensors for ``call.outputs``: those it returned, or else those it overwrote."""
        return returned if call.returned else tuple([self._tensors[value.slot] for value in call.outputs])

    def renew_settings(self) -> None:
        """Set the recorded settings anew at the next call: another player has set its own since."""
        self._ambient = -1

    def apply_settings(self, call: Call) -> None:
        """Set the settings that a call ran under."""
        if call.ambient != self._ambient:
            self._settings.close()
            self._settings.enter_context(ambient.in_force(self.recording.ambient.rows[call.ambient]))
            self._ambient = call.ambient


def _elements_kept(call: Call, arguments: Arguments) -> int:
    """Return how many elements in memory a call that resizes its argument keeps; 0 for other calls."""
    if call.info.layer_type not in ("resize", "resize_as") or not (call.writes and is_of_torch(call.info.func)):
        return 0
    tensor = tensors(arguments)[0]
    if tensor.layout is not torch.strided or storage_key(tensor) <= 0:
        return 0
    return max(tensor.untyped_storage().nbytes() // tensor.itemsize - int(tensor.storage_offset()), 0)


def _in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor without gaps in the order in which they are in memory."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def _filled(tensor_of: Callable[[Value], torch.Tensor], repacked: dict[int, Any], template: Any) -> Any:
    """Return recorded arguments with tensors in place of values; `repacked` has the objects rebuilt so far."""
    kind = type(template)
    if kind is Value:
        return tensor_of(template)
    if kind in ATOMS:
        return template
    if kind is Aliased:
        return tensor_of(template.value)
    if kind is tuple or kind is list:
        return kind([_filled(tensor_of, repacked, item) for item in template])
    fill = partial(_filled, tensor_of, repacked)
    if kind is UnpackedObject:
        return template.repacked(fill, repacked)
    return substitute(template, fill) if is_a(template, (list, tuple, dict, slice)) else template


def _is_base(call: Call, read: Value | Aliased) -> bool:
    return call.may_be_view and bool(call.args) and read is call.args[0]


def _source_tensors(sources: list[Source]) -> dict[int, torch.Tensor]:
    untouched = {source.value.slot: _as_read(source) for source in sources if not source.written}
    written = [source.value for source in sources if source.written]
    copies = zip(written, copies_of(written), strict=True)
    return untouched | {value.slot: as_non_leaf(copy) if _is_non_leaf(value, copy) else copy for value, copy in copies}


def _as_read(source: Source) -> torch.Tensor:
    """Return the tensor of a source, with what it held when it was first read if it wraps others."""
    return source.live if source.wrapper is None else source.wrapper.in_wrapper(source.live)


def _is_non_leaf(value: Value, copy: torch.Tensor) -> bool:
    """Return whether a source that requires gradients was not a leaf."""
    return value.gradfunc not in ("", "NoneType") and not copy.is_inference()


def _result_of_record(value: Value, saved: torch.Tensor) -> torch.Tensor:
    """Return a copy of a saved result, without its graph."""
    copy = duplicate(saved)
    if value.stride is not None and strides_of(copy) not in (None, value.stride):  # it was expanded
        copy = with_layout(copy, value.stride)
    return as_non_leaf(copy) if _is_non_leaf(value, copy) else copy.requires_grad_(value.requires_grad)


def as_non_leaf(copy: torch.Tensor) -> torch.Tensor:
    """Return a tensor over the same memory that is not a leaf: autograd refuses writes to leaves."""
    with torch.enable_grad():
        non_leaf: torch.Tensor = _NonLeaf.apply(copy.detach(), torch.ones((), device="cpu", requires_grad=True))
    return non_leaf


class _NonLeaf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def _last_uses(recording: Recording, numbers: Iterable[int]) -> dict[int, list[int]]:
    """Return, for each call that runs, the slots whose last use it is; the model's outputs stay to the end."""
    last: dict[int, int] = {}
    for number in numbers:
        call = recording.calls[number]
        for _, value in values_read(call):
            last[value.slot] = number
        for value in call.outputs:
            last[value.slot] = number
        for slot in call.writes:
            last[slot] = number
    for _, output in recording.outputs:
        last.pop(value_of(output).slot, None)
    for source in recording.sources:
        if source.written:  # its final state is checked
            last.pop(source.value.slot, None)
    free: dict[int, list[int]] = {}
    for slot, number in last.items():
        free.setdefault(number, []).append(slot)
    return free


class CurrentValues:
    """Tracks which recorded value each tensor holds, and which writes reached it, from call to call."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._values = {source.value.slot: source.value for source in sources}
        self._since = {id(source.value): source.since for source in sources}
        self._writes: dict[int, WriteLog] = {}
        self._bases: dict[int, Value] = {}

    def is_unwritten(self, read: Value | Aliased) -> bool:
        """Return whether nothing was written to memory so far, and a slot holds just the value that is read."""
        return not self._writes and type(read) is Value and self._values.get(read.slot) is read

    def note_view(self, view: Value, base: Value) -> None:
        """Note that a value is that of a view of the tensor of `base`."""
        self._bases[id(view)] = base

    def _is_view(self, value: Value | None, base: Value) -> bool:
        """Return whether a value is `base`, or that of a view of it, of a view of a view, and so on."""
        while value is not None and value is not base:
            value = self._bases.get(id(value))
        return value is base

    def agrees(self, read: Value | Aliased, tensor: torch.Tensor) -> bool:
        """Return whether a recorded read of `tensor` names the value that it holds and all later writes to it."""
        base, *writes = values_in(read)
        # a call may have returned the base's tensor itself, as `flatten` does with one dimension
        is_current = self._is_view(self._values.get(base.slot), base)
        is_view = is_current and self._is_view(value_of(read), base)
        return is_view and set(map(id, writes)) == set(map(id, self._later_writes(tensor, base)))

    def unrecorded_writers(self, read: Value | Aliased, tensor: torch.Tensor) -> list[int]:
        """Return the numbers of the calls that overwrote `tensor` though a recorded read does not name them."""
        base, *writes = values_in(read)
        current = self._values.get(base.slot, base)
        named = {id(base), *map(id, writes)}
        overwritten = [current] if current is not base and current.slot == base.slot else []
        later = [*overwritten, *self._later_writes(tensor, current)]
        return [write.call for write in later if id(write) not in named]

    def shows_in(self, base: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """Return the tensor whose bytes a call read: `output` if it is a view of `base`, else `base`."""
        return output if self._writes and storage_key(output) == storage_key(base) else base

    def put(self, value: Value, number: int) -> None:
        """Note the value that a slot holds from call `number` on."""
        self._values[value.slot] = value
        self._since[id(value)] = number

    def follow_move(self, old: int, new: int) -> None:
        """Find the writes to memory `old` at `new` from now on."""
        rekey(self._writes, old, new)

    def was_written(self, tensor: torch.Tensor) -> bool:
        """Return whether a recorded call overwrote a tensor's memory; of a wrapper that of any tensor it holds."""
        return any(storage_key(part) in self._writes for part in (tensor, *held_tensors(tensor)))

    def _later_writes(self, tensor: torch.Tensor, value: Value) -> list[Value]:
        """Return the writes that show in a tensor, of those after a value was made."""
        log = self._writes.get(storage_key(tensor)) if self._writes else None
        since = self._since.get(id(value), value.call)
        return [] if log is None or log.latest <= since else log.since(since, Extent.of(tensor))

    def note(self, number: int, call: Call, written: dict[int, torch.Tensor]) -> None:
        """Note the outputs of call `number`, and the tensors, by slot, that it overwrote."""
        for value in call.outputs:
            self._values[value.slot] = value
        if not written:
            return
        by_slot = {value.slot: value for value in call.outputs}
        for slot, tensor in written.items():
            value = by_slot.get(slot, call.outputs[0])
            self._writes.setdefault(storage_key(tensor), WriteLog()).add(number, value, Extent.of(tensor))
