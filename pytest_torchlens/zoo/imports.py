"""Loads the functions that a zoo file names: ``FILE.py:FUNCTION`` next to it, or ``package.module:FUNCTION``."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import cast

from pytest_torchlens.records import nearest
from pytest_torchlens.zoo.errors import ZooError
from pytest_torchlens.zoo.errors import as_zoo_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping
    from importlib.machinery import ModuleSpec
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
    return _run_file(path.absolute())


def _run_file(path: Path) -> ModuleType:
    """Run a file as a module, and list it in ``sys.modules``, where dataclasses and pickle look it up."""
    name = _free_name(path)
    loader = _FromSource(name, str(path))
    spec = cast("ModuleSpec", importlib.util.spec_from_file_location(name, path, loader=loader))
    former = sys.modules.get(name)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        if former is not None:
            sys.modules[name] = former
        raise
    return module


class _FromSource(SourceFileLoader):
    """Compiles a file anew: cached bytecode counts as that of any file of that size, written in that second."""

    def path_stats(self, path: Any) -> Mapping[str, Any]:
        """Refuse to name a time, and so to look for bytecode."""
        raise OSError(f"no bytecode of {path} is used")


def _free_name(path: Path) -> str:
    """Return a module name that no other file has: a user's module or another zoo's file may have the same stem."""
    names = (f"zoo_file_{path.stem}" + (f"_{number}" if number > 1 else "") for number in itertools.count(1))
    return next(name for name in names if getattr(sys.modules.get(name), "__file__", str(path)) == str(path))
