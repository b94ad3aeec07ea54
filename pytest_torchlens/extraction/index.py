"""What ``index.json`` in a folder of activations says: where each example is, and what was taken from where."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from typing import ClassVar

from pytest_torchlens.records import from_json
from pytest_torchlens.records import to_json
from pytest_torchlens.records import write_atomically
from pytest_torchlens.records.files import UnwritableError
from pytest_torchlens.records.files import check_folder
from pytest_torchlens.records.files import remove
from pytest_torchlens.records.files import why_no_path

FILE = "index.json"
LABELS = "labels"
"""Name of the stored labels, which no layer can have."""
_FORMAT = "pytest-torchlens activations"
_VERSION = 1
_LEFT_BEHIND = re.compile(r"\.[0-9a-f]{16}\.part")
"""The name of a file that a process was writing when it was killed."""


class ExtractError(ValueError):
    """Activations cannot be extracted or read; the message says why and what to do."""


@dataclass(frozen=True)
class Piece:
    """Examples of one layer that lie in one tensor: they have the same shape."""

    examples: int
    shape: tuple[int, ...]
    """Shape of one example."""
    dtype: str


@dataclass(frozen=True)
class Batch:
    """One batch of the loader."""

    examples: int
    inputs: str
    """Digest of the model's inputs."""


@dataclass(frozen=True)
class Shard:
    """One file, with whole batches."""

    WHOLE: ClassVar = True
    file: str
    first: int
    """Number of its first example."""
    batches: tuple[Batch, ...]
    pieces: dict[str, tuple[Piece, ...]]
    """By layer; piece 2 of ``relu_1_2`` is the tensor ``relu_1_2/2``."""

    @property
    def examples(self) -> int:
        """Number of its examples."""
        return sum(batch.examples for batch in self.batches)


@dataclass(frozen=True)
class LayerRecord:
    """One stored layer: what in the model it is.

    Attributes
    ----------
    keys
        Names that find it alone: labels and module addresses.
    function
        The function that computed it: ``"conv2d"``; ``""`` for an input or output of the model.
    modules
        The module calls that it ran in, outermost first, and those that returned it.
    source_line
        ``file:line, in function`` of the model's code.
    parameters
        Addresses of the parameters that it was computed with.
    parents
        Labels of the layers that it was computed from.
    shape, dtype
        Of the activation in the first batch, before the transform.
    transform
        Name of the function that was applied; ``""`` if none was.
    """

    keys: tuple[str, ...]
    function: str
    modules: tuple[str, ...]
    source_line: str
    parameters: tuple[str, ...]
    parents: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    transform: str = ""


@dataclass(frozen=True)
class Provenance:
    """Where activations come from.

    Attributes
    ----------
    model
        Class of the model, with its module.
    weights
        Digest of the names, shapes, types and values of all parameters and buffers before the first batch.
    parameters
        Number of the parameters' elements.
    evaluated
        Whether the model was in evaluation mode.
    random_seed
        The seed of the first batch; each later batch has the next number.  None if nothing was seeded.
    inputs, labels
        How inputs and labels were taken from a batch.
    device
        Device of the model.
    torch, python, pytest_torchlens
        Versions.
    threads, cpu_capability
        Of the process that began.
    created, resumed
        When it began, and when it was resumed: ISO 8601, UTC.
    random_operations
        Labels of the operations that drew random numbers in any batch, each as in its own batch.
    written
        Parameters, buffers and tensor attributes that the model's forward wrote to, and buffers that it replaced.
    """

    WHOLE: ClassVar = True
    model: str
    weights: str
    parameters: int
    evaluated: bool
    random_seed: int | None
    inputs: str
    labels: str
    device: str
    torch: str
    python: str
    pytest_torchlens: str
    threads: int
    cpu_capability: str
    created: str
    resumed: tuple[str, ...] = ()
    random_operations: tuple[str, ...] = ()
    written: tuple[str, ...] = ()


@dataclass(frozen=True)
class Index:
    """The content of ``index.json``, without the format's name and version."""

    WHOLE: ClassVar = True
    provenance: Provenance
    layers: dict[str, LayerRecord]
    """By label."""
    shards: tuple[Shard, ...] = ()
    finished: bool = False
    """Whether the loader came to its end."""

    @property
    def examples(self) -> int:
        """Number of the stored examples."""
        return sum(shard.examples for shard in self.shards)

    @property
    def batches(self) -> list[Batch]:
        """The stored batches in order."""
        return [batch for shard in self.shards for batch in shard.batches]

    def pieces(self, name: str) -> Iterator[tuple[Shard, int, Piece]]:
        """Yield shard, number and piece of all pieces of a layer, in the order of the examples."""
        for shard in self.shards:
            for number, piece in enumerate(shard.pieces[name]):
                yield shard, number, piece


def folder_of(path: object) -> Path:
    """Return a user's path as a `Path`.

    Raises
    ------
    TypeError
        If it is not a path.
    ExtractError
        If it has a character that a path cannot have.
    """
    if not isinstance(path, str | Path) or path == "":
        raise TypeError(f"expected the path of a folder, as 'acts/', got {path!r:.80}")
    if why := why_no_path(path):
        raise ExtractError(f"{str(path)!r:.80} is not a valid path: {why}")
    return Path(path)


class IndexFile:
    """Writes the index; a reader sees the old one or the new one.

    Parameters
    ----------
    folder, index
        Where, and what it says.
    """

    def __init__(self, folder: Path, index: Index) -> None:
        self._file = folder / FILE
        self.index = index
        self.examples = index.examples
        self._shards = [to_json(shard) for shard in index.shards]
        """As text, because there may be thousands and each new one changes the file."""

    def add(self, shard: Shard) -> None:
        """Add a shard, and write."""
        self._shards.append(to_json(shard))
        self.examples += shard.examples
        self.update(shards=(*self.index.shards, shard), finished=False)

    def update(self, **fields: Any) -> None:
        """Change fields, and write."""
        self.index = dataclasses.replace(self.index, **fields)
        self.write()

    def write(self) -> None:
        """Write it."""
        rest = json.loads(to_json(dataclasses.replace(self.index, shards=())))
        text = json.dumps({"format": _FORMAT, "version": _VERSION, **rest}, indent=1)
        shards = ",\n  ".join(self._shards)
        write_atomically(self._file, text.replace(_NO_SHARDS, f'"shards": [\n  {shards}\n ]', 1))


_NO_SHARDS = '"shards": []'
"""In JSON, no text has these characters: its quotes have a backslash."""


def read_index(folder: Path) -> Index:
    """Read the index of a folder.

    Raises
    ------
    ExtractError
        If there is none, or it is damaged.
    """
    file = folder / FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ExtractError(f"{folder} has no activations: {FILE} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise ExtractError(f"{file} is damaged: {error}") from None
    if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
        raise ExtractError(f"{file} is not an index of activations: its format is not {_FORMAT!r}")
    if (version := content.pop("version", None)) != _VERSION:
        raise ExtractError(f"{file}: expected version {_VERSION}, got {version!r}: update pytest-torchlens")
    try:
        return from_json(json.dumps(content), Index)
    except ValueError as error:
        raise ExtractError(f"{file} is damaged: {error}") from None


def begun(folder: Path) -> Index | None:
    """Return the index of what an earlier run stored in a folder; None if it stored nothing.

    What a killed process has left is removed.

    Raises
    ------
    ExtractError
        If the folder cannot be written, or has files of others.
    """
    try:
        check_folder(folder)
    except UnwritableError as error:
        raise ExtractError(str(error)) from None
    found = sorted(folder.iterdir()) if folder.exists() else []
    index = read_index(folder) if (folder / FILE).exists() else None
    others = [path.name for path in found if not _LEFT_BEHIND.fullmatch(path.name)]
    if index is None and others:
        raise ExtractError(
            f"{folder} is not empty, and has no {FILE}: {others[0]!r} is not ours; name a new folder, or empty this one"
        )
    for path in found:
        if _LEFT_BEHIND.fullmatch(path.name):
            remove(path)
    return index if index is not None and index.shards else None
