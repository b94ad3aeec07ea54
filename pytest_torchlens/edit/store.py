"""Edits on disk: a small JSON, and their tensors beside it as safetensors; nothing of the files is ever run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError

from pytest_torchlens.capture.tensor_files import TensorFileError
from pytest_torchlens.capture.tensor_files import check_plain_file
from pytest_torchlens.capture.tensor_files import why_not_storable
from pytest_torchlens.edit.ablations import mean_ablate
from pytest_torchlens.edit.ablations import project_off
from pytest_torchlens.edit.ablations import resample
from pytest_torchlens.edit.ablations import splice_module
from pytest_torchlens.edit.ablations import steer
from pytest_torchlens.edit.ablations import zero_ablate
from pytest_torchlens.edit.places import Part
from pytest_torchlens.edit.places import parts_of
from pytest_torchlens.history import LookupKeyError
from pytest_torchlens.history.layers_and_operations import LoggedOperation
from pytest_torchlens.history.store import path_of
from pytest_torchlens.records import close
from pytest_torchlens.records import write_atomically

FORMAT = "pytest-torchlens edits"
VERSION = 1
_NAMED = {kind.__name__: kind for kind in (mean_ablate, project_off, resample, splice_module, steer, zero_ablate)}


class EditFileError(ValueError):
    """Edits that cannot be written or read, with the file and the reason."""


def save_edits(edits: Mapping[Any, Any], path: Path | str) -> Path:
    """Write edits into a JSON file, and their tensors beside it: of ``edits.json`` into ``edits.json.safetensors``.

    Parameters
    ----------
    edits
        As `ModelHistory.edit` takes them.  Changes are numbers, tensors, activations, and functions of this package
        by their names; of `splice_module` the module's name is written, and not its weights.
    path
        The file, such as ``"edits.json"``; it is replaced if it exists.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    EditFileError
        If a key or a change cannot be written, such as a function of your own, or the file for the tensors exists and
        is not one of edits.
    """
    file = path_of(path)
    if not isinstance(edits, Mapping):
        raise TypeError(f"save_edits: expected a mapping from keys to changes, got {type(edits).__name__}")
    if file.suffix == ".safetensors":
        raise EditFileError(f"{file}: name a file that ends in .json; tensors are written beside it")
    writer = _Writer()
    entries = [{"key": writer.key(key), "change": writer.change(change, key)} for key, change in edits.items()]
    content: dict[str, Any] = {"format": FORMAT, "version": VERSION, "edits": entries}
    if writer.tensors:
        data = safetensors.torch.save(writer.tensors, {"format": FORMAT})
        beside = file.with_name(f"{file.name}.safetensors")
        _check_replaceable(beside)
        write_atomically(beside, data)
        content |= {"tensors": beside.name, "sha256": hashlib.sha256(data).hexdigest()}
    return write_atomically(file, json.dumps(content, indent=1) + "\n")


def _check_replaceable(beside: Path) -> None:
    """Raise if a file of tensors exists that `save_edits` did not write."""
    if not beside.exists():
        return
    try:
        with safetensors.safe_open(beside, "pt") as tensors:
            is_ours = (tensors.metadata() or {}).get("format") == FORMAT
    except (SafetensorError, OSError):
        is_ours = False
    if not is_ours:
        raise EditFileError(f"{beside} exists and has no tensors of edits: name another file, or move it")


def load_edits(path: Path | str, modules: Mapping[str, torch.nn.Module] | None = None) -> dict[Any, Any]:
    """Read edits that `save_edits` wrote.

    Parameters
    ----------
    path
        The JSON file.
    modules
        The modules of `splice_module`, by name.

    Returns
    -------
    dict
        Edits for `ModelHistory.edit`.

    Raises
    ------
    EditFileError
        If the file does not exist, is damaged, has another version, or names a module that is not given.
    """
    file = path_of(path)
    try:
        check_plain_file(file)
        content = json.loads(file.read_text(encoding="utf-8"))
        _check_format(content)
        reader = _Reader(_tensors_beside(file, content), modules or {})
        return {reader.key(entry["key"]): reader.change(entry["change"]) for entry in content["edits"]}
    except (EditFileError, TensorFileError) as error:
        raise EditFileError(f"{file}: {error}") from None
    except OSError as error:
        raise EditFileError(f"{file} cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise EditFileError(f"{file} is damaged, or not a file of edits: {error!r:.200}") from None


def _check_format(content: Any) -> None:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise EditFileError(f"expected a file with the format {FORMAT!r}")
    if content.get("version") != VERSION:
        raise EditFileError(f"expected version {VERSION}, got {content.get('version')!r:.40}: upgrade pytest-torchlens")


def _tensors_beside(file: Path, content: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors by name; raises if their file is another one than was written with the JSON."""
    if "tensors" not in content:
        return {}
    name = content["tensors"]
    if name != Path(name).name:
        raise EditFileError(f"the file of tensors stands beside it: {name!r:.80} is a path")
    check_plain_file(file.parent / name)
    data = (file.parent / name).read_bytes()
    if hashlib.sha256(data).hexdigest() != content.get("sha256"):
        raise EditFileError(f"{name} is damaged, or another one than was written with it")
    try:
        return safetensors.torch.load(data)
    except SafetensorError as error:
        raise EditFileError(f"{name} is damaged: {error}") from None


class _Writer:
    """Writes keys and changes as JSON, and collects their tensors."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}

    def key(self, key: Any) -> Any:
        """Return a key as JSON: its name, with the operation and the index if there are."""
        try:
            name, operation, index = parts_of(key)
        except LookupKeyError as error:
            raise EditFileError(f"the key {key!r:.80} cannot be written: {error}") from None
        name = _plain(name)
        if not isinstance(name, str | int):
            raise EditFileError(f"the key {key!r:.80} cannot be written: expected a label, address or number")
        written = {"name": name} if operation is None else {"name": name, "operation": operation}
        return written if index is None else written | {"index": self._index(index, key)}

    def change(self, change: Any, key: Any) -> Any:
        """Return a change as JSON."""
        change = _plain(change.tensor_contents if isinstance(change, LoggedOperation) else change)
        if isinstance(change, bool | int | float):
            return change if isinstance(change, int) else {"number": repr(change)}
        if isinstance(change, torch.Tensor):
            return self._tensor(change)
        if _NAMED.get(type(change).__name__) is not type(change):
            named = ", ".join(_NAMED)
            raise EditFileError(
                f"the change of {key!r:.80} cannot be written: expected a number, a tensor, an activation, or one of "
                f"{named}; got {getattr(change, '__name__', type(change).__name__)}"
            )
        fields = {field.name: getattr(change, field.name) for field in dataclasses.fields(change)}
        plain = {name: given for name, given in fields.items() if given is not None and name != "module"}
        return {
            "name": type(change).__name__,
            "parameters": {name: self._parameter(each) for name, each in plain.items()},
        }

    def _parameter(self, given: Any) -> Any:
        return self._tensor(given) if isinstance(given, torch.Tensor) else _plain(given)

    def _index(self, index: Any, key: Any) -> Any:
        try:
            if isinstance(index, Mapping):
                return {"at": {name: self._item(where) for name, where in index.items()}}
            return [self._item(item) for item in (index if isinstance(index, tuple) else (index,))]
        except TypeError as error:
            raise EditFileError(f"the index of {key!r:.80} cannot be written: {error}") from None

    def _item(self, item: Any) -> Any:
        item = torch.as_tensor(item) if isinstance(item, np.ndarray) else _plain(item)
        if isinstance(item, slice):
            return {"slice": [*map(_plain, (item.start, item.stop, item.step))]}
        if isinstance(item, torch.Tensor):
            return self._tensor(item)
        if isinstance(item, tuple):
            return {"tuple": [*map(self._item, item)]}
        if isinstance(item, list | range):
            return [*map(self._item, item)]
        if item is not None and item is not ... and not isinstance(item, int):
            raise TypeError(f"expected numbers, slices, lists and tensors, got {type(item).__name__}")
        return "..." if item is ... else item

    def _tensor(self, tensor: torch.Tensor) -> dict[str, str]:
        if why := why_not_storable(tensor) or ("complex" if tensor.is_complex() else ""):
            raise EditFileError(f"a tensor that is {why} cannot be written")
        name = f"tensor {len(self.tensors)}"
        self.tensors[name] = tensor.detach().cpu().contiguous().clone()
        return {"tensor": name}


def _plain(given: Any) -> Any:
    """Return a number of NumPy as one of Python."""
    return given.item() if isinstance(given, np.generic) else given


class _Reader:
    """Reads what `_Writer` wrote."""

    def __init__(self, tensors: dict[str, torch.Tensor], modules: Mapping[str, torch.nn.Module]) -> None:
        self._tensors = tensors
        self._modules = modules

    def key(self, key: dict[str, Any]) -> Any:
        """Return a key."""
        name = key["name"]
        if not isinstance(name, str | int):
            raise EditFileError(f"expected a label, address or number, got {name!r:.80}")
        if set(key) == {"name"}:
            return name
        return Part.of(name, key.get("operation"), self._index(key["index"]) if "index" in key else None)

    def change(self, change: Any) -> Any:
        """Return a change."""
        if isinstance(change, bool | int):
            return change
        if "number" in change:
            return float(change["number"])
        if "tensor" in change:
            return self._tensor(change)
        kind = _NAMED.get(change["name"])
        if kind is None:
            names = close(str(change["name"]), _NAMED) or ", ".join(_NAMED)
            raise EditFileError(f"there is no change {change['name']!r:.80}; there are: {names}")
        parameters = {name: self._plain(given) for name, given in change["parameters"].items()}
        if kind is splice_module:
            return splice_module(self._module(parameters["name"]), **parameters)
        try:
            return kind(**parameters)
        except (TypeError, ValueError) as error:
            raise EditFileError(f"{kind.__name__}: {error}") from None

    def _module(self, name: str) -> torch.nn.Module:
        if name not in self._modules:
            raise EditFileError(f"it puts the module {name!r:.80} there: give it with modules={{{name!r:.80}: module}}")
        return self._modules[name]

    def _plain(self, given: Any) -> Any:
        if isinstance(given, dict):
            return self._tensor(given)
        return tuple(given) if isinstance(given, list) else given

    def _index(self, index: Any) -> Any:
        if isinstance(index, dict):
            return {name: self._item(where) for name, where in index["at"].items()}
        items = tuple([self._item(item) for item in index])
        return items if len(items) > 1 else items[0]

    def _item(self, item: Any) -> Any:
        if isinstance(item, dict):
            if "slice" in item:
                return slice(*item["slice"])
            return tuple(item["tuple"]) if "tuple" in item else self._tensor(item)
        return ... if item == "..." else item

    def _tensor(self, named: dict[str, str]) -> torch.Tensor:
        if named["tensor"] not in self._tensors:
            raise EditFileError(f"its tensor {named['tensor']!r:.80} is missing")
        return self._tensors[named["tensor"]]
