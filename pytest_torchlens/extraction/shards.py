"""Collects the activations of batches, and writes whole batches into one file whenever they are large enough."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path

import torch

from pytest_torchlens.capture.tensor_files import TensorFileError
from pytest_torchlens.capture.tensor_files import save_tensors
from pytest_torchlens.capture.tensor_files import why_not_storable
from pytest_torchlens.extraction.index import Batch
from pytest_torchlens.extraction.index import ExtractError
from pytest_torchlens.extraction.index import Index
from pytest_torchlens.extraction.index import IndexFile
from pytest_torchlens.extraction.index import Piece
from pytest_torchlens.extraction.index import Shard
from pytest_torchlens.records.files import make_folder


@dataclass
class _Column:
    """The tensors of one layer that the next shard will have, grouped by the shape of an example."""

    runs: list[list[torch.Tensor]] = field(default_factory=list)

    def add(self, tensor: torch.Tensor) -> None:
        if not self.runs or _kind(self.runs[-1][0]) != _kind(tensor):
            self.runs.append([])
        self.runs[-1].append(tensor)

    def pieces(self) -> tuple[Piece, ...]:
        return tuple(Piece(sum(map(len, run)), tuple(run[0].shape[1:]), str(run[0].dtype)) for run in self.runs)


def _kind(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape[1:], tensor.dtype


class ShardWriter:
    """Writes shards of whole batches, and the index after each of them.

    Parameters
    ----------
    folder
        Created if it does not exist.
    index
        What is stored already.
    shard_bytes
        A shard is written as soon as it has as many bytes.
    """

    def __init__(self, folder: Path, index: Index, shard_bytes: int) -> None:
        self._folder = folder
        self._index_file = IndexFile(folder, index)
        self._limit = shard_bytes
        self._columns: dict[str, _Column] = {}
        self._batches: list[Batch] = []
        self._bytes = 0
        if not index.shards:
            make_folder(folder)
            self._index_file.write()

    def add(self, batch: Batch, tensors: dict[str, torch.Tensor]) -> None:
        """Add the activations of a batch, which are CPU tensors that nothing else writes to."""
        for name, tensor in tensors.items():
            self._columns.setdefault(name, _Column()).add(tensor)
            self._bytes += tensor.nbytes
        self._batches.append(batch)
        if self._bytes >= self._limit:
            self.flush()

    def flush(self) -> None:
        """Write the batches that are still in memory."""
        if not self._batches:
            return
        file = f"shard-{len(self._index_file.index.shards):05d}.safetensors"
        pieces = {name: column.pieces() for name, column in self._columns.items()}
        try:
            save_tensors(self._joined(), self._folder / file)
        except TensorFileError as error:
            raise ExtractError(str(error)) from None
        shard = Shard(file, self._index_file.examples, tuple(self._batches), pieces)
        self._columns, self._batches, self._bytes = {}, [], 0
        self._index_file.add(shard)

    def _joined(self) -> dict[str, torch.Tensor]:
        """Return each piece as one tensor, by its name in the file; let go of what it was made from."""
        joined = {}
        for name, column in self._columns.items():
            for number, run in enumerate(column.runs):
                joined[f"{name}/{number}"] = _real(torch.cat(run) if len(run) > 1 else run[0])
                run.clear()
        return joined

    def note(self, written: Iterable[str], random: Iterable[str]) -> None:
        """Note the state that forward wrote to, and the operations that drew; on disk with the next shard."""
        index = self._index_file.index
        known = index.provenance
        provenance = dataclasses.replace(
            known,
            written=tuple(dict.fromkeys((*known.written, *sorted(written)))),
            random_operations=tuple(dict.fromkeys((*known.random_operations, *random))),
        )
        self._index_file.index = dataclasses.replace(index, provenance=provenance)

    def end(self) -> None:
        """Write what is still in memory, and that the loader has no more batches."""
        self.flush()
        if not self._index_file.index.finished:
            self._index_file.update(finished=True)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def stored(tensor: torch.Tensor, examples: int, what: str) -> torch.Tensor:
    """Return a copy to store of the activations of a batch.

    Raises
    ------
    ExtractError
        If it cannot be stored, or its first dimension does not count the examples; `what` names the layer and batch.
    """
    if why := why_not_storable(tensor):
        raise ExtractError(
            f"{what}: safetensors cannot store a tensor that is {why}; give a transform that converts it"
        )
    if tensor.dim() == 0 or len(tensor) != examples:
        raise ExtractError(
            f"{what}: expected {examples} examples in the first dimension, as the batch has, got the shape "
            f"{tuple(tensor.shape)}; give a transform that puts the examples first, or leave this layer out"
        )
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.to("cpu", copy=True, memory_format=torch.contiguous_format)
