"""Writes stored activations as Parquet and as zarr, one shard at a time."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import torch

from pytest_torchlens.extraction.index import LABELS
from pytest_torchlens.extraction.index import ExtractError
from pytest_torchlens.extraction.index import folder_of
from pytest_torchlens.records.files import check_folder
from pytest_torchlens.records.files import replacing
from pytest_torchlens.records.files import writing

if TYPE_CHECKING:
    from pytest_torchlens.extraction.activations import ActivationArray
    from pytest_torchlens.extraction.activations import Activations


def to_parquet(acts: Activations, path: Path | str) -> Path:
    """Write a table with a row for each example; return its path."""
    pyarrow, parquet = _imported("pyarrow", "parquet"), _imported("pyarrow.parquet", "parquet")
    file, arrays = folder_of(path), _arrays(acts)
    shapes = {name: str(array.shape) for name, array in arrays.items()}
    schema = pyarrow.schema([field for name, array in arrays.items() for field in _fields(pyarrow, name, array)])
    with replacing(file) as part, parquet.ParquetWriter(part, schema.with_metadata(shapes)) as writer:
        for rows in acts.shards:
            columns = [column for array in arrays.values() for column in _columns(array, rows)]
            writer.write_table(pyarrow.table(columns, schema.with_metadata(shapes)))
    return file


def _fields(pyarrow: Any, name: str, array: ActivationArray) -> list[Any]:
    """Return a column of flattened examples, and one of their shapes where these differ."""
    numbers = _parquet_type(array, pyarrow)
    if array.is_ragged:
        shape = pyarrow.field(f"{name} shape", pyarrow.list_(pyarrow.int64()))
        return [pyarrow.field(name, pyarrow.list_(numbers)), shape]
    size = math.prod(size or 0 for size in array.shape[1:])
    return [pyarrow.field(name, pyarrow.list_(numbers, size) if len(array.shape) > 1 else numbers)]


def _columns(array: ActivationArray, rows: slice) -> list[list[Any]]:
    examples = [example.numpy() for example in array[rows]]
    if array.is_ragged:
        return [[one.ravel() for one in examples], [list(one.shape) for one in examples]]
    return [[one.ravel() if len(array.shape) > 1 else one.item() for one in examples]]


def to_zarr(acts: Activations, path: Path | str) -> Path:
    """Write a group with an array for each layer; return its path."""
    zarr, folder, arrays = _imported("zarr", "zarr"), folder_of(path), _arrays(acts)
    if ragged := [array for array in arrays.values() if array.is_ragged]:
        raise ExtractError(f"zarr has no arrays of examples of different shapes, as {ragged[0]!r}; use to_parquet")
    types = {name: _numpy_type(array) for name, array in arrays.items()}
    check_folder(folder)
    if folder.exists():
        raise ExtractError(f"{folder} exists already; name another path")
    with writing(folder):
        group = zarr.open_group(str(folder), mode="w-")
        for name, array in arrays.items():
            chunk = max(1, acts.shards[0].stop) if acts.shards else 1
            target = group.create_array(name, shape=array.shape, chunks=(chunk, *array.shape[1:]), dtype=types[name])
            for rows in acts.shards:
                target[rows] = torch.stack(list(array[rows])).numpy()
    return folder


def _arrays(acts: Activations) -> dict[str, ActivationArray]:
    labels = acts.labels
    return dict(acts) | ({} if labels is None else {LABELS: labels})


def _imported(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ExtractError(f"{error}; install pytest-torchlens[{extra}]") from None


def _parquet_type(array: ActivationArray, pyarrow: Any) -> Any:
    try:
        return pyarrow.from_numpy_dtype(_numpy_type(array))
    except pyarrow.ArrowNotImplementedError:
        raise ExtractError(
            f"{array.name}: Parquet has no {array.dtype}; extract it with a transform, such as torch.view_as_real"
        ) from None


def _numpy_type(array: ActivationArray) -> Any:
    try:
        return torch.empty(0, dtype=array.dtype).numpy().dtype
    except TypeError:
        raise ExtractError(
            f"{array.name}: there is no {array.dtype} outside torch; extract it with another transform"
        ) from None
