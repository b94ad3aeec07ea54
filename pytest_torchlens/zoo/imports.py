"""Loads the functions that a zoo file names: ``FILE.py:FUNCTION`` next to it, or ``package.module:FUNCTION``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import cast

from pytest_torchlens.records import nearest
from pytest_torchlens.zoo.errors import ZooError
from pytest_torchlens.zoo.errors import as_zoo_error
from pytest_torchlens.zoo.zoo_modules import run_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def load_function(path: str, folder: Path) -> Callable[..., Any]:
    """Return the function that `path` names; a file is looked for in `folder`.

    Raises
    ------
    ZooError
        If the function does not exist, or its module raises when it is loaded.
    """
    where, _, name = path.rpartition(":")
    with as_zoo_error(f"cannot load {where}:"):
        module = _load(where, folder)
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ZooError(f"{where} has no function {name!r}: {nearest(name, known)}")
    return cast("Callable[..., Any]", function)


def file_of(function: object) -> Path | None:
    """Return the file that a function or class is in; None if it is in none."""
    home = sys.modules.get(str(getattr(function, "__module__", None)))
    file = getattr(home, "__file__", None)
    return Path(file) if isinstance(file, str) else None


def _load(where: str, folder: Path) -> ModuleType:
    if not where.endswith(".py"):
        return importlib.import_module(where)
    path = folder / where
    if not path.is_file():
        raise ZooError(f"file not found: {path}")
    return run_file(path.absolute())
