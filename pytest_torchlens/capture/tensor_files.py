"""Writes named tensors to a folder of safetensors files as they arrive, and reads them one at a time."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors import safe_open
from safetensors.torch import save_file

from pytest_torchlens.capture.values import PLAIN
from pytest_torchlens.records import replacing
from pytest_torchlens.records.files import UnwritableError
from pytest_torchlens.records.files import check_folder
from pytest_torchlens.records.files import make_folder
from pytest_torchlens.records.files import remove
from pytest_torchlens.records.files import writing

_LIMIT = 64 << 20
_NAME = re.compile(r"activations-\d{5}\.safetensors")
_COMPLEX = "#complex"
_DTYPES = frozenset(
    [
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint16, torch.uint32, torch.uint64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2),
    ]
)


class TensorFileError(ValueError):
    """A folder of tensors cannot be written or read; the message says why."""


def why_not_storable(tensor: torch.Tensor) -> str:
    """Return why the file format cannot store a tensor, as ``"torch.sparse_coo"``; ``""`` if it can."""
    with torch._C.DisableTorchFunction():
        return _why_not_storable(tensor)


def _why_not_storable(tensor: torch.Tensor) -> str:
    if tensor.is_nested:
        return "nested"
    if tensor.is_meta:
        return "without values, on the meta device"
    if type(tensor) not in PLAIN:
        return f"of the class {type(tensor).__name__}"
    if tensor.layout is not torch.strided:
        return str(tensor.layout)
    return "" if tensor.dtype in _DTYPES or tensor.is_complex() else str(tensor.dtype)


class TensorWriter:
    """Writes tensors into files of about 64 MiB each; no more than that stays in memory.

    Parameters
    ----------
    folder
        Created if it does not exist; it must contain no such files.

    Raises
    ------
    TensorFileError
        If the folder cannot be written, or contains such files.
    """

    def __init__(self, folder: Path) -> None:
        try:
            check_folder(folder)
            make_folder(folder)
            with writing(folder):
                is_used = any(_NAME.fullmatch(file.name) for file in folder.iterdir())
        except UnwritableError as error:
            raise TensorFileError(str(error)) from None
        if is_used:
            raise TensorFileError(f"{folder} has activations of another run; name a new folder, or empty this one")
        self.folder = folder
        self.names: set[str] = set()
        self._pending: dict[str, torch.Tensor] = {}
        self._bytes = 0
        self._files = 0

    def write(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor's contents, detached and on the CPU, to be written, and return the copy."""
        with torch.no_grad():
            plain = tensor.detach().resolve_conj().resolve_neg()
            if plain.is_complex():
                plain = torch.view_as_real(plain)
            copy = plain.to("cpu", copy=True).contiguous()
        self._pending[name + _COMPLEX if tensor.is_complex() else name] = copy
        self.names.add(name)
        self._bytes += copy.nbytes
        if self._bytes >= _LIMIT:
            self.flush()
        return copy

    def flush(self) -> None:
        """Write the tensors that are still in memory."""
        if self._pending:
            file = self.folder / f"activations-{self._files:05d}.safetensors"
            save_tensors(self._pending, file)
            self._files += 1
            self._pending, self._bytes = {}, 0

    def discard(self) -> None:
        """Remove the files that were written, so that a failed attempt does not prevent the next one."""
        for number in range(self._files + 1):  # the last one may be incomplete
            remove(self.folder / f"activations-{number:05d}.safetensors")

    def keep_only(self, wanted: set[str]) -> None:
        """Remove all other tensors from the files, and files without any.  If a file cannot be written, it stays."""
        for file in sorted(self.folder.iterdir()):
            if _NAME.fullmatch(file.name):
                _keep_only(file, wanted)
        self.names &= wanted


def _keep_only(file: Path, wanted: set[str]) -> None:
    names = _keys(file)
    remaining = [name for name in names if name.removesuffix(_COMPLEX) in wanted]
    if not remaining:
        remove(file)
    elif len(remaining) < len(names):
        with _open(file) as opened:
            tensors = {name: opened.get_tensor(name).clone() for name in remaining}
        save_tensors(tensors, file)


def save_tensors(tensors: dict[str, torch.Tensor], file: Path) -> None:
    """Write contiguous CPU tensors into a file, whole or not at all.

    Raises
    ------
    TensorFileError
        If that fails.
    """
    try:
        with replacing(file, make_folders=False) as part:
            _save_file(tensors, part)
    except UnwritableError as error:
        raise TensorFileError(str(error)) from None
    except (SafetensorError, KeyError) as error:
        raise TensorFileError(f"{file} cannot be written: {error}") from None


_ERROR_NUMBER = re.compile(r"\bcode: (\d+)")


def _save_file(tensors: dict[str, torch.Tensor], file: Path) -> None:
    """Write a file; raise an error of the system as Python does, where safetensors has it as text."""
    try:
        save_file(tensors, file)
    except SafetensorError as error:
        if found := _ERROR_NUMBER.search(str(error)):
            raise OSError(int(found[1]), os.strerror(int(found[1]))) from None
        raise


class TensorReader:
    """Reads tensors by name from a folder that `TensorWriter` wrote; each tensor is read on demand.

    Raises
    ------
    TensorFileError
        If the folder does not exist, a file is damaged or a link, or two files have a tensor of the same name.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, Path] = {}
        self._last: tuple[Path, Any] | None = None
        if not folder.is_dir():
            raise TensorFileError(f"{folder}: expected a folder with the activations, got a path that is not a folder")
        for file in _files(folder):
            if _NAME.fullmatch(file.name):
                check_plain_file(file)
                for name in _keys(file):
                    plain = name.removesuffix(_COMPLEX)
                    for other in (plain, plain + _COMPLEX):
                        if other in self._files:
                            here, there = self._files[other].name, file.name
                            raise TensorFileError(f"{here} and {there} both have a tensor {plain!r} in {folder}")
                    self._files[name] = file

    @functools.cached_property
    def names(self) -> MappingProxyType[str, Path]:
        """The file of each tensor, by name."""
        return MappingProxyType({name.removesuffix(_COMPLEX): file for name, file in self._files.items()})

    def read(self, name: str) -> torch.Tensor:
        """Read a tensor."""
        stored = name if name in self._files else name + _COMPLEX
        file = self._files.get(stored)
        if file is None:
            raise TensorFileError(f"{self._folder} has no tensor {name!r}: a file was removed")
        try:
            tensor: torch.Tensor = self._open(file).get_tensor(stored)
            return torch.view_as_complex(tensor) if stored.endswith(_COMPLEX) else tensor
        except (SafetensorError, RuntimeError, OSError) as error:
            raise TensorFileError(f"{file} is damaged: its tensor {name!r}: {error}") from None

    def _open(self, file: Path) -> Any:
        """Open a file, or return the last one, which is still open: opening reads the names of all its tensors."""
        if self._last is None or self._last[0] != file:
            self._last = file, _open(file)
        return self._last[1]


def check_plain_file(file: Path) -> None:
    """Raise `TensorFileError` if `file` is not a regular file: a link or a device may read from anywhere."""
    if file.is_symlink():
        raise TensorFileError(f"{file} is a symbolic link; put the file itself in its place")
    if file.exists() and not file.is_file():
        raise TensorFileError(f"{file}: expected a regular file, got another kind of file")


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise TensorFileError(f"{folder} cannot be read ({error.strerror})") from None


def _keys(file: Path) -> list[str]:
    with _open(file) as opened:
        return list(opened.keys())


def _open(file: Path) -> Any:
    try:
        file.open("rb").close()  # safetensors calls a file that may not be read missing
        return safe_open(file, framework="pt")
    except PermissionError as error:
        raise TensorFileError(f"{file} cannot be read ({error.strerror})") from None
    except (SafetensorError, OSError) as error:
        raise TensorFileError(f"{file} is damaged or not a safetensors file: {error}") from None
