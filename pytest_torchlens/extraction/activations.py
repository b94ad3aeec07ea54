"""Reads stored activations as memory-mapped arrays: slices over all files, of which only what is used is read."""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors import safe_open

from pytest_torchlens.capture.tensor_files import TensorFileError
from pytest_torchlens.capture.tensor_files import check_plain_file
from pytest_torchlens.extraction.exports import to_parquet
from pytest_torchlens.extraction.exports import to_zarr
from pytest_torchlens.extraction.index import LABELS
from pytest_torchlens.extraction.index import ExtractError
from pytest_torchlens.extraction.index import Index
from pytest_torchlens.extraction.index import LayerRecord
from pytest_torchlens.extraction.index import Piece
from pytest_torchlens.extraction.index import Provenance
from pytest_torchlens.extraction.index import Shard
from pytest_torchlens.extraction.index import folder_of
from pytest_torchlens.extraction.index import read_index
from pytest_torchlens.history import LookupKeyError
from pytest_torchlens.records import nearest

_NAME = re.compile(r"shard-\d{5,}\.safetensors")
_MOST_OPEN = 32


def load_activations(path: Path | str) -> Activations:
    """Read what `extract` stored in a folder; nothing is loaded into memory.

    Parameters
    ----------
    path
        The folder.

    Returns
    -------
    Activations
        Arrays by label, short label or module address.

    Raises
    ------
    ExtractError
        If the folder has no activations, or its index is damaged.

    Examples
    --------
    >>> acts = load_activations("acts")  # doctest: +SKIP
    >>> acts["layer4"][17]  # doctest: +SKIP
    """
    return Activations(folder_of(path))


class _Files:
    """The shards of a folder; the last ones used stay open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open = functools.lru_cache(maxsize=_MOST_OPEN)(self._opened)

    def _opened(self, name: str) -> Any:
        file = self._folder / name
        if not _NAME.fullmatch(name):
            raise ExtractError(f"{self._folder}: the index is damaged: {name!r} is not the name of a shard")
        try:
            check_plain_file(file)
            return safe_open(file, framework="pt")
        except TensorFileError as error:
            raise ExtractError(str(error)) from None
        except (SafetensorError, OSError) as error:
            raise ExtractError(f"{file} is missing or damaged: {error}") from None

    def read(self, shard: Shard, name: str, piece: Piece) -> torch.Tensor:
        """Return a tensor of a shard; its memory is the file."""
        try:
            tensor: torch.Tensor = self._open(shard.file).get_tensor(name)
        except SafetensorError as error:
            raise ExtractError(f"{self._folder / shard.file} is damaged: {error}") from None
        if piece.dtype.startswith("torch.complex"):
            tensor = torch.view_as_complex(tensor)
        if (tuple(tensor.shape), str(tensor.dtype)) != ((piece.examples, *piece.shape), piece.dtype):
            raise ExtractError(f"{self._folder / shard.file} is damaged: {name} is not what the index says")
        return tensor


class ActivationArray:
    """The activations of one layer for all examples, in the order of the loader.

    Indexing returns tensors: ``array[17]`` one example, ``array[10:20]`` several, ``array[[3, 1, 4]]`` those of these
    numbers.  Examples of different shapes (sequences of several lengths) are returned as a list of tensors.  What
    lies in one file is not copied; a write to it does not reach the file.

    Attributes
    ----------
    name
        The label.
    """

    def __init__(self, name: str, index: Index, files: _Files) -> None:
        self.name = name
        self._files = files
        self._pieces = [(shard, f"{name}/{number}", piece) for shard, number, piece in index.pieces(name)]
        self._first = [0]
        for _, _, piece in self._pieces:
            self._first.append(self._first[-1] + piece.examples)

    def __len__(self) -> int:
        """Return the number of examples."""
        return self._first[-1]

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Number of examples, and shape of an example; None for a size that differs between examples."""
        shapes = {piece.shape for _, _, piece in self._pieces}
        if len({len(shape) for shape in shapes}) > 1:
            return (len(self), None)
        return (len(self), *(size[0] if len(set(size)) == 1 else None for size in zip(*shapes, strict=True)))

    @property
    def dtype(self) -> torch.dtype:
        """Type of the elements."""
        name = self._pieces[0][2].dtype if self._pieces else "torch.float32"
        return getattr(torch, name.removeprefix("torch."))  # type: ignore[no-any-return]

    @property
    def is_ragged(self) -> bool:
        """Whether examples have different shapes."""
        return len({piece.shape for _, _, piece in self._pieces}) > 1

    def __getitem__(self, key: int | slice | Sequence[int]) -> torch.Tensor | list[torch.Tensor]:
        """Return one example, or several."""
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            return self._several(range(start, stop, step))
        if isinstance(key, int | np.integer) and not isinstance(key, bool):
            return self._example(self._number(int(key)))
        if isinstance(key, list | range | np.ndarray | torch.Tensor):
            numbers = self._numbers(key)
            return self._several(numbers) if isinstance(numbers, list) else self._example(numbers)
        if isinstance(key, tuple):
            raise TypeError(f"{self.name}: indexing takes examples alone: array[examples], and then [what of each]")
        raise TypeError(f"{self.name}: expected the number of an example, a slice or several numbers, got {key!r:.60}")

    def _numbers(self, given: Any) -> list[int] | int:
        """Return the numbers of examples, also of a mask; of an array without dimensions the number."""
        array = np.asarray(given)
        if array.dtype == bool and array.shape == (len(self),):
            return np.flatnonzero(array).tolist()
        if array.dtype == bool or array.ndim > 1:
            expected = f"expected numbers of examples, or {len(self)} booleans"
            raise IndexError(f"{self.name}: {expected}, got {array.dtype} of shape {list(array.shape)}")
        if array.size and array.dtype.kind not in "iu":
            raise TypeError(f"{self.name}: expected numbers of examples, got {array.dtype}")
        numbers = [self._number(number) for number in array.reshape(-1).tolist()]
        return numbers if array.ndim else numbers[0]

    def _number(self, number: int) -> int:
        if not -len(self) <= number < len(self):
            raise IndexError(f"{self.name}: example {number} is out of range: there are {len(self)}")
        return number % len(self)

    def _example(self, number: int) -> torch.Tensor:
        place = bisect.bisect_right(self._first, number) - 1
        return self._piece(place)[number - self._first[place]]

    def _piece(self, place: int) -> torch.Tensor:
        shard, name, piece = self._pieces[place]
        return self._files.read(shard, name, piece)

    def _several(self, numbers: Sequence[int]) -> torch.Tensor | list[torch.Tensor]:
        """Return examples as one tensor, which is not copied if they follow each other in one file."""
        parts = list(self._runs(numbers))
        if len({part.shape[1:] for part in parts}) > 1:
            return [example for part in parts for example in part]
        if not parts:
            return torch.empty((0, *(size or 0 for size in self.shape[1:])), dtype=self.dtype)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _runs(self, numbers: Sequence[int]) -> Iterator[torch.Tensor]:
        """Yield tensors with the examples, each with those that follow each other in one piece."""
        at = 0
        while at < len(numbers):
            place = bisect.bisect_right(self._first, numbers[at]) - 1
            end = at + 1
            while end < len(numbers) and numbers[end] == numbers[end - 1] + 1 and numbers[end] < self._first[place + 1]:
                end += 1
            start = numbers[at] - self._first[place]
            yield self._piece(place)[start : start + end - at]
            at = end

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield the examples."""
        return (example for chunk in self.chunks() for example in chunk)

    def chunks(self) -> Iterator[torch.Tensor]:
        """Yield all examples in order, as tensors of many; memory holds none of them."""
        return map(self._piece, range(len(self._pieces)))

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return all examples as a NumPy array; it is the memory-mapped file if there is only one.

        Raises
        ------
        TypeError
            If NumPy does not have the type (``bfloat16``), or examples have different shapes.
        """
        whole = self[:]
        if isinstance(whole, list):
            raise TypeError(f"{self.name}: examples have different shapes {self.shape}; take them one by one")
        try:
            return whole.numpy()
        except TypeError:
            raise TypeError(f"{self.name}: NumPy has no {self.dtype}; take array[...].float().numpy()") from None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return `numpy`, for ``np.asarray``."""
        array = self.numpy()
        wanted = array if dtype is None else array.astype(dtype, copy=False)
        return wanted.copy() if copy and wanted is array else wanted

    def __repr__(self) -> str:
        """Return one line."""
        return f"<{self.name}: {self.dtype} {self.shape}>"


class Activations(Mapping[str, ActivationArray]):
    """What `extract` stored: arrays by label, short label or module address, in the order of execution.

    Attributes
    ----------
    folder
        Where it is.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._index = read_index(folder)
        self._files = _Files(folder)
        self._keys: dict[str, list[str]] = {}
        for label, layer in self._index.layers.items():
            for key in layer.keys:
                self._keys.setdefault(key, []).append(label)

    @property
    def provenance(self) -> Provenance:
        """The model, its weights, the versions, the seed, the date."""
        return self._index.provenance

    @property
    def layers(self) -> Mapping[str, LayerRecord]:
        """For each label what in the model it is: function, modules, line of code, shape, transform."""
        return self._index.layers

    @property
    def finished(self) -> bool:
        """Whether the loader came to its end."""
        return self._index.finished

    @property
    def examples(self) -> int:
        """Number of examples."""
        return self._index.examples

    @property
    def labels(self) -> ActivationArray | None:
        """Labels of the examples; None if none were stored."""
        return self.array(LABELS) if self.provenance.labels else None

    def __getitem__(self, key: str) -> ActivationArray:
        """Return the array of a layer.

        Raises
        ------
        LookupKeyError
            If no stored layer has the key, or several have; the message has the nearest ones.
        """
        labels = [key] if key in self._index.layers else self._keys.get(key, [])
        if not labels:
            raise LookupKeyError(f"no stored layer {key!r}; {nearest(str(key), self._keys)}")
        if len(labels) > 1:
            raise LookupKeyError(f"{key!r} names several stored layers; name one of {', '.join(labels)}")
        return self.array(labels[0])

    @property
    def shards(self) -> list[slice]:
        """The examples of each file."""
        return [slice(shard.first, shard.first + shard.examples) for shard in self._index.shards]

    def to_parquet(self, path: Path | str) -> Path:
        """Write a Parquet file with a row for each example; needs the extra ``parquet``.

        A column has the numbers of one layer, flattened; the file's metadata have the shapes.  Where examples have
        different shapes, a second column has them.

        Parameters
        ----------
        path
            The file; it is replaced.

        Raises
        ------
        ExtractError
            If pyarrow is not installed, or has no such type (``bfloat16``).
        UnwritableError
            If the file cannot be written.
        """
        return to_parquet(self, path)

    def to_zarr(self, path: Path | str) -> Path:
        """Write a zarr group with an array for each layer, in chunks as large as the files; needs the extra ``zarr``.

        Parameters
        ----------
        path
            A folder that does not exist.

        Raises
        ------
        ExtractError
            If zarr is not installed, the folder exists, or examples have different shapes.
        UnwritableError
            If the folder cannot be written.
        """
        return to_zarr(self, path)

    def array(self, name: str) -> ActivationArray:
        """Return the array with a label."""
        return ActivationArray(name, self._index, self._files)

    def __iter__(self) -> Iterator[str]:
        """Yield the labels in the order of execution."""
        return iter(self._index.layers)

    def __len__(self) -> int:
        """Return the number of layers."""
        return len(self._index.layers)

    def __repr__(self) -> str:
        """Return the model, and a line for each layer."""
        state = "" if self.finished else ", unfinished"
        lines = [f"<Activations of {self.provenance.model} in {self.folder}: {self.examples} examples{state}"]
        for label, array in self.items():
            modules = self._index.layers[label].modules
            lines.append(f"  {label}{f' ({modules[-1]})' if modules else ''}: {array.dtype} {array.shape}")
        return "\n".join(lines) + ">"
