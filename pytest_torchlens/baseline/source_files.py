"""Finds the files of a project that a model's code consists of, and the packages that they import; needs no torch.

`Imports` reads imports from the text of files, without running them: an import of a computed name is not seen.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

INSTALLED = frozenset(("site-packages", "dist-packages"))
"""Folders of installed packages, which may be inside the project."""
_INIT = "__init__.py"
_ALL = "*"
"""In place of a name: everything in a file."""
_NOTHING = ""
"""In place of a name: the file alone, as of a package around a module."""


@dataclass(frozen=True)
class _Import:
    """One import: ``from ..module import names`` with two dots is of level 2; no names for ``import module``."""

    module: str
    level: int
    names: tuple[str, ...]
    bound: tuple[str, ...]
    """The names that it binds in the importing file."""


def top_of(folder: Path) -> Path:
    """Return the top of the repository that a folder is in; the folder itself if it is in none."""
    return next((parent for parent in (folder, *folder.parents) if (parent / ".git").exists()), folder)


class Imports:
    """What the files of a project import.

    Parameters
    ----------
    top
        The project's folder; files elsewhere are not followed.
    paths
        Folders inside it that Python looks for modules in, besides `top` and ``src`` in it.
    """

    def __init__(self, top: Path, paths: Iterable[Path] = ()) -> None:
        self._top = top.resolve()
        inside = (path.resolve() for path in paths if path.resolve().is_relative_to(self._top))
        self._known: dict[Path, list[_Import] | None] = {}
        self._roots = tuple(dict.fromkeys((self._top, self._top / "src", *inside)))

    def closure(self, files: Iterable[Path]) -> set[Path]:
        """Return files and all that they import, and so on.

        Of a package's ``__init__.py`` only the imports are followed that bind a name which is asked for: such a file
        often imports every model.
        """
        todo: list[tuple[Path, str]] = [(file.resolve(), _ALL) for file in files]
        seen = set(todo)
        while todo:
            file, name = todo.pop()
            for found in self._followed(file, name):
                if found not in seen:
                    seen.add(found)
                    todo.append(found)
        return {file for file, _ in seen}

    def packages(self, files: Iterable[Path]) -> set[str]:
        """Return the installed packages that files, and the files that these import, import."""
        imports = [(file, one) for file in self.closure(files) for one in self._imports(file)]
        modules = {one.module.partition(".")[0] for file, one in imports if not one.level and not self._file(file, one)}
        return {package for module in modules if (package := package_of(module))}

    def is_unknown(self, file: Path) -> bool:
        """Return whether a file cannot be parsed, so that its imports are unknown."""
        return self._read(file.resolve()) is None

    def _imports(self, file: Path) -> list[_Import]:
        return self._read(file) or []

    def _read(self, file: Path) -> list[_Import] | None:
        if file not in self._known:
            self._known[file] = _imports(file)
        return self._known[file]

    def _followed(self, file: Path, name: str) -> Iterator[tuple[Path, str]]:
        """Yield each file that a file, or one name in a package's ``__init__.py``, leads to, with the name there."""
        imports = self._imports(file) if name != _NOTHING else []
        if name != _ALL:
            binding = [one for one in imports if name in one.bound or _ALL in one.bound]
            imports = binding or imports  # it is defined in the file itself, of what that imports
        for one in imports:
            yield from self._targets(file, one)

    def _targets(self, file: Path, one: _Import) -> Iterator[tuple[Path, str]]:
        for place in self._places(file, one):
            parts = one.module.split(".") if one.module else []
            packages = [place.parents[up] for up in range(len(parts) - 1)]
            yield from ((folder / _INIT, _NOTHING) for folder in packages if (folder / _INIT).is_file())
            if (module := place.with_suffix(".py") if parts else place).is_file():
                yield module, _ALL
            if (place / _INIT).is_file():
                yield from ((place / _INIT, name) for name in one.names or (_ALL,))
            for name in one.names if place.is_dir() else ():
                inside = (place / f"{name}.py", place / name / _INIT)
                yield from ((path, _ALL) for path in inside if path.is_file())

    def _places(self, file: Path, one: _Import) -> Iterator[Path]:
        """Yield where a module may be: the path of its file, without the ending."""
        if one.level:
            parents = (file, *file.parents)
            bases = [parents[one.level]] if one.level < len(parents) else []
        else:
            bases = [file.parent, *self._roots]
        for base in dict.fromkeys(bases):
            place = base.joinpath(*one.module.split(".")) if one.module else base
            if self._is_own(place):
                yield place

    def _file(self, file: Path, one: _Import) -> bool:
        return any(True for _ in self._targets(file, one))

    def _is_own(self, path: Path) -> bool:
        return path.is_relative_to(self._top) and not INSTALLED & set(path.parts)


def _imports(file: Path) -> list[_Import] | None:
    """Return the imports in a file; None if it cannot be parsed: it may be nested too deeply for `ast`."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return [found for node in ast.walk(tree) for found in _imports_of(node)]


def _imports_of(node: ast.AST) -> Iterator[_Import]:
    if isinstance(node, ast.ImportFrom):
        names = tuple(alias.name for alias in node.names)
        yield _Import(node.module or "", node.level, names, tuple(alias.asname or alias.name for alias in node.names))
    elif isinstance(node, ast.Import):
        for alias in node.names:
            yield _Import(alias.name, 0, (), (alias.asname or alias.name.partition(".")[0],))


@cache
def package_of(module: str) -> str:
    """Return the installed package that has a top-level module; empty if none has, as of the standard library."""
    if module in sys.stdlib_module_names:
        return ""
    try:
        return metadata.distribution(module).name  # most have the module's name, and a list of all takes a second
    except (metadata.PackageNotFoundError, ValueError):
        return next(iter(_packages().get(module, ())), "")


def version_of(package: str) -> str:
    """Return the version of an installed package; empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


@cache
def _packages() -> dict[str, list[str]]:
    return dict(metadata.packages_distributions())
