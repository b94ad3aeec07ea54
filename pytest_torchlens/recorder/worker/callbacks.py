"""Functions of the user, found again in this process."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from types import ModuleType

    import numpy as np


class Callback:
    """A function of the user; of a class, one object.

    Parameters
    ----------
    where
        Module, name, and the file that the module came from.
    """

    def __init__(self, where: dict[str, str]) -> None:
        found = getattr(_module(where["module"], where["file"]), where["name"])
        self._call = found() if isinstance(found, type) else found

    def __call__(self, name: str, step: int, values: np.ndarray[Any, Any]) -> None:
        """Hand it one frame."""
        self._call(name, step, values)

    def close(self) -> None:
        """Tell it that there are no more."""
        if hasattr(self._call, "close"):
            self._call.close()


@functools.cache
def _module(name: str, file: str) -> ModuleType:
    """Return a module by its name where that leads to its file, else from its file: a test, or a script."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        module = None
    if module is not None and (not file or Path(str(module.__file__)).resolve() == Path(file)):
        return module
    # Under another name than its own, so that `if __name__ == "__main__"` is not true of it.
    spec = importlib.util.spec_from_file_location(f"lens_callback_{name}", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"the callback's module {name!r} is not found, and {file!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
