"""Saves all activations of a forward pass in local files, so that operations can run again on them later."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path

import torch
import xxhash

from pytest_torchlens.baseline.run_alone import ALIGNMENT
from pytest_torchlens.baseline.run_alone import results_in_float64
from pytest_torchlens.baseline.snapshot import Numbers
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Call
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.memory import with_layout
from pytest_torchlens.capture.tensor_files import TensorReader
from pytest_torchlens.capture.tensor_files import TensorWriter
from pytest_torchlens.capture.tensor_files import why_not_storable
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import from_json
from pytest_torchlens.records import to_json
from pytest_torchlens.records import write_atomically
from pytest_torchlens.records.files import remove_folder
from pytest_torchlens.records.files import rename
from pytest_torchlens.replay import Player
from pytest_torchlens.replay.calls import replay_for

_INDEX = "index.json"


class SavedActivationsError(ValueError):
    """Activations cannot be read; the message says why."""


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """One tensor: its name in the files, which is its digest, and its memory layout.

    Attributes
    ----------
    offset
        Bytes from the last multiple of 64 to its first element.
    """

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class _Index:
    tensors: dict[str, StoredTensor] = field(default_factory=dict)


def folder_name(numbers: dict[str, Numbers]) -> str:
    """Return the name of the folder of the activations that have these numbers: a digest of their digests."""
    lines = sorted(f"{name} {found.digest}\n" for name, found in numbers.items())
    return str(xxhash.xxh3_64_hexdigest("".join(lines).encode()))


def names_of(history: ModelHistory, snapshot: Snapshot) -> dict[int, str]:
    """Return the ids of the snapshot's steps, by the ``id()`` of each step's recorded value."""
    nodes = [node for node in history.nodes if node.kind != "buffer"]
    pairs = list(zip(nodes, snapshot.steps, strict=True))
    return {
        id(node.value): step.id for node, step in reversed(pairs)
    }  # an output has the name of the step that made it


def argument_name(step_id: str, path: str) -> str:
    """Return the name of a saved argument that was written to through an alias after it was made."""
    return f"{step_id} < {path}"


def _rounding_name(step_id: str) -> str:
    """Return the name of what a result lacks to that in float64, of which bfloat16 tells enough."""
    return f"{step_id} > float64"


def save_activations(folder: Path, history: ModelHistory, snapshot: Snapshot) -> None:
    """Replay a pass and save all its activations; equal tensors are stored once.

    Parameters
    ----------
    folder
        The model's folder.
    history, snapshot
        The pass; the model and its inputs must hold the values that they had before the pass.

    Raises
    ------
    OSError, ValueError
        If it cannot be written.
    """
    (block,) = snapshot.measured.values()
    whole = folder / folder_name(block.numbers)
    if whole.is_dir():
        return
    part = folder / f"{os.getpid()}.part"
    remove_folder(part)
    try:
        _ActivationWriter(part, names_of(history, snapshot)).write(history)
        rename(part, whole)
    finally:
        remove_folder(part)


def tidy(folder: Path, wanted: Collection[str]) -> None:
    """Delete all activations of a model except those with these names."""
    for old in folder.iterdir() if folder.is_dir() else ():
        if old.name not in wanted:
            remove_folder(old)


class _ActivationWriter:
    def __init__(self, folder: Path, names: dict[int, str]) -> None:
        self._writer = TensorWriter(folder)
        self._names = names
        self._index: dict[str, StoredTensor] = {}
        self._exact: tuple[torch.Tensor, ...] = ()

    def write(self, history: ModelHistory) -> None:
        for source in history.recording.sources:
            if (name := self._names.get(id(source.value))) and source.value.tensor is not None:
                self._add(name, source.value.tensor)
        replay_for(self, history.recording)
        self._writer.flush()
        write_atomically(self._writer.folder / _INDEX, to_json(_Index(tensors=self._index)))

    def after(self, number: int, call: Call, outputs: tuple[torch.Tensor, ...]) -> None:
        """Write the outputs of a call."""
        for value, output in zip(call.outputs, outputs, strict=True):
            self._add(self._names.get(id(value), ""), output)
        for value, output, exact in zip(call.outputs, outputs, self._exact, strict=False):
            if (name := self._names.get(id(value))) and exact.shape == output.shape and exact.dtype is torch.float64:
                self._add(_rounding_name(name), (exact.detach() - output.detach()).to(torch.bfloat16))
        self._exact = ()

    def before(self, player: Player, call: Call) -> None:
        """Write the arguments of a call that other tensors were written through since they were made.

        Run it in float64 too, on its arguments as they are now.
        """
        name = next((self._names[id(value)] for value in call.outputs if id(value) in self._names), "")
        self._exact = results_in_float64(player, call) if name else ()
        for path, read in edges_in(call) if name else ():
            if isinstance(read, Aliased) and read.writes:
                self._add(argument_name(name, path), player.at(read.value.slot))

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        digest = "" if not name or why_not_storable(tensor) else fingerprint(tensor)
        if not digest:
            return
        stored = f"{digest} {tensor.dtype}"
        if stored not in self._writer.names:
            self._writer.write(stored, tensor.detach().reshape(-1))
        self._index[name] = StoredTensor(
            name=stored, shape=tuple(tensor.shape), stride=tensor.stride(), offset=tensor.data_ptr() % ALIGNMENT
        )


class SavedActivations:
    """The saved activations of one pass.

    Parameters
    ----------
    folder
        Of that pass.

    Raises
    ------
    KeptError
        If it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._index = from_json((folder / _INDEX).read_text(encoding="utf-8"), _Index).tensors
            self._reader = TensorReader(folder)
        except (OSError, ValueError) as error:
            raise SavedActivationsError(f"the activations in {folder} cannot be used: {error}") from None

    def __contains__(self, name: str) -> bool:
        return name in self._index

    def tensor(self, name: str, device: torch.device) -> torch.Tensor:
        """Return an activation in its original memory layout.

        Raises
        ------
        KeptError
            If it was not saved, or is damaged.
        """
        stored = self._index.get(name)
        if stored is None:
            raise SavedActivationsError(f"{name} was not saved")
        try:
            contents = self._reader.read(stored.name)
            if f"{fingerprint(contents)} {contents.dtype}" != stored.name:
                raise SavedActivationsError(f"{name} is damaged: its digest differs from the stored one")
            return with_layout(contents.to(device).reshape(stored.shape), stored.stride, stored.offset)
        except (RuntimeError, ValueError) as error:
            raise SavedActivationsError(f"{name} cannot be read: {error}") from None

    def in_float64(self, name: str, device: torch.device) -> torch.Tensor | None:
        """Return an activation as the pass that was saved computed it in float64; None if it could not."""
        if _rounding_name(name) not in self:
            return None
        return self.tensor(name, device).double() + self.tensor(_rounding_name(name), device).double()
