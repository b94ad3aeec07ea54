"""Makes the recording of an edited pass of that of the pass itself: other values behind the edits, the rest shared."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import SaveOptions
from pytest_torchlens.capture import Source
from pytest_torchlens.capture import Value
from pytest_torchlens.capture.calls import ModuleCall
from pytest_torchlens.capture.fingerprint import digest_and_key
from pytest_torchlens.capture.leaves import ATOMS
from pytest_torchlens.capture.leaves import UnpackedObject
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.leaves import unpacked
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.edit.function import CallEdits


class EditedRecording:
    """Copies a recording with other values.

    Parameters
    ----------
    recording
        That of the pass itself.
    affected
        Ids of the values that differ.
    tensors
        The new tensors of some of these, by id.
    saving
        What is saved of each.
    """

    def __init__(
        self, recording: Recording, affected: set[int], tensors: Mapping[int, torch.Tensor], saving: SaveOptions
    ) -> None:
        self._recording = recording
        self._tensors = tensors
        self._saving = saving
        made = [value for call in recording.calls for value in call.outputs]
        sources = [source.value for source in recording.sources]
        self._values = {id(value): self._value(value) for value in (*sources, *made) if id(value) in affected}
        self._module_calls: dict[int, ModuleCall] = {}
        self._unpacked: dict[int, UnpackedObject] = {}

    def with_edits(self, edits: Mapping[int, CallEdits], outputs: Mapping[str, torch.Tensor]) -> Recording:
        """Return the copy, in which the calls of these numbers are edited, and that returns these outputs by path."""
        old = self._recording
        module_calls = [self._module_call(call) for call in old.module_calls]
        calls = [self._call(call, edits.get(number)) for number, call in enumerate(old.calls)]
        escapes = [
            dataclasses.replace(
                escape,
                value=self._read(escape.value),
                others=tuple(map(self._read, escape.others)),
                module=self._of_module(escape.module),
            )
            for escape in old.escapes
        ]
        return dataclasses.replace(
            old,
            calls=calls,
            module_calls=module_calls,
            escapes=escapes,
            sources=[self._source(source) for source in old.sources],
            outputs=[(path, self._read(read)) for path, read in old.outputs],
            output=output_with(old, outputs),
            gradients=None,
        )

    def _value(self, value: Value) -> Value:
        """Return the new value, with its tensor if it is known."""
        tensor = self._tensors.get(id(value))
        if tensor is None:
            new = copy.copy(value)
            new.tensor, new.digest = None, ""
            return new
        new = Value(value.slot, value.call, value.position, tensor)
        new.digest, _ = digest_and_key(tensor, new)
        new.tensor = tensor if self._saving == SaveOptions() else self._saving.apply(tensor)
        return new

    def _read(self, read: Any) -> Any:
        """Return a value, or a read of one, as it is now."""
        if type(read) is Aliased:
            writes = tuple(map(self._read, read.writes))
            return Aliased(self._read(read.value), writes, base=self._read(read.base))
        return self._values.get(id(read), read)

    def _template(self, leaf: Any) -> Any:
        """Return recorded arguments with the new values."""
        kind = type(leaf)
        if kind in ATOMS:
            return leaf
        if kind is Value or kind is Aliased:
            return self._read(leaf)
        if kind is UnpackedObject:
            if id(leaf) not in self._unpacked:
                other = self._unpacked[id(leaf)] = UnpackedObject(leaf.original, {})
                other.parts.update({key: self._template(part) for key, part in leaf.parts.items()})
            return self._unpacked[id(leaf)]
        return substitute(leaf, self._template) if is_a(leaf, (list, tuple, dict, slice)) else leaf

    def _call(self, call: Call, edits: CallEdits | None) -> Call:
        new = copy.copy(call)
        new.known_edges = None
        new.args, new.kwargs = self._template(call.args), self._template(call.kwargs)
        new.outputs = tuple(map(self._read, call.outputs))
        new.module = self._of_module(call.module)
        if edits is not None:
            new.info = edits.info(call.info)
        return new

    def _module_call(self, call: ModuleCall) -> ModuleCall:
        new = self._module_calls[id(call)] = copy.copy(call)
        new.parent = self._of_module(call.parent)
        new.inputs, new.outputs = tuple(map(self._read, call.inputs)), tuple(map(self._read, call.outputs))
        return new

    def _of_module(self, call: ModuleCall | None) -> ModuleCall | None:
        return None if call is None else self._module_calls[id(call)]

    def _source(self, source: Source) -> Source:
        value = self._read(source.value)
        if value is source.value:
            return source
        tensor = self._tensors[id(source.value)]
        value.tensor = tensor
        return dataclasses.replace(source, value=value, live=tensor, version=-1, memory=0, wrapper=None)


def output_with(recording: Recording, new: Mapping[str, torch.Tensor]) -> Any:
    """Return what the model returned, with other tensors at these paths; objects with tensors inside are copied."""
    by_id = {id(tensor): new[path] for path, tensor in walk(recording.output)}
    opened: dict[int, UnpackedObject] = {}
    copies: dict[int, Any] = {}

    def swap(leaf: Any) -> Any:
        if is_a(leaf, torch.Tensor):
            return by_id[id(leaf)]
        whole = unpacked(leaf, lambda part: part, opened)
        return whole.repacked(swap, copies) if type(whole) is UnpackedObject else leaf

    return substitute(recording.output, swap)
