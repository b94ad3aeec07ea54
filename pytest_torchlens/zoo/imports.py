"""Functions that a zoo file names: ``FILE.py:FUNCTION`` beside it, or ``package.module:FUNCTION``."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import cast

from pytest_torchlens.records import nearest
from pytest_torchlens.zoo.errors import ZooError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


def named_function(path: str, folder: Path) -> Callable[..., Any]:
    """Return the function that `path` names, a file being looked for in `folder`.

    Raises
    ------
    ZooError
        If there is no such function, or its module raises when it is loaded.
    """
    where, _, name = path.rpartition(":")
    try:
        module = _load(where, folder)
    except ZooError:
        raise
    except Exception as error:
        raise ZooError(f"cannot load {where}: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ZooError(f"{where} has no function {name!r}: {nearest(name, known)}")
    return cast("Callable[..., Any]", function)


def _load(where: str, folder: Path) -> ModuleType:
    if not where.endswith(".py"):
        return importlib.import_module(where)
    path = folder / where
    if not path.is_file():
        raise ZooError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ZooError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
