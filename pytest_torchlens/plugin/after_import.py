"""Calls a function once a module has been imported."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.util
import sys
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    import types
    from collections.abc import Callable
    from collections.abc import Iterator
    from importlib.machinery import ModuleSpec


@contextlib.contextmanager
def after_import(name: str, function: Callable[[], None]) -> Iterator[None]:
    """Call `function` after the first import of a module inside the block; at once if it has been imported before."""
    if name in sys.modules:
        function()
        yield
        return
    finder = _Finder(name, function)
    finder.begin()
    try:
        yield
    finally:
        finder.end()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the module as it would be found without us, and lets its loader call the function at the end."""

    def __init__(self, name: str, function: Callable[[], None]) -> None:
        self._name = name
        self._function = function

    def begin(self) -> None:
        """Hear of imports."""
        sys.meta_path.insert(0, self)

    def end(self) -> None:
        """Hear of no more imports."""
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)

    def find_spec(self, fullname: str, path: Any, target: types.ModuleType | None = None) -> ModuleSpec | None:
        """Return the specification of the module; None for all others."""
        if fullname != self._name:
            return None
        self.end()
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.begin()
        if spec is not None and spec.loader is not None:
            self._extend(spec.loader)
        return spec

    def _extend(self, loader: Any) -> None:
        def exec_module(module: types.ModuleType) -> None:
            del loader.exec_module
            loader.exec_module(module)
            self.end()
            self._function()

        loader.exec_module = exec_module
