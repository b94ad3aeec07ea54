"""Runs the Python files of a zoo as modules, which import the files beside them.

The folder of a zoo is not on ``sys.path``, where its names would be everybody's.  Each file has a module name of its
own (``zoo_file_layers``), and as one is compiled, its imports of files beside it are changed to these names.
"""

from __future__ import annotations

import ast
import importlib.util
import itertools
import sys
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING
from typing import cast

if TYPE_CHECKING:
    from types import CodeType
    from types import ModuleType

_INIT = "__init__.py"
_files: dict[str, Path] = {}
"""Files by the names of their modules; of a package its ``__init__.py``, or the folder if it has none."""


def run_file(path: Path) -> ModuleType:
    """Run a file as a module, and list it in ``sys.modules``, where dataclasses and pickle look it up."""
    name = _name_of(path)
    spec = _spec(name, path, path.parent)
    former = sys.modules.get(name)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        cast("SourceFileLoader", spec.loader).exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        if former is not None:
            sys.modules[name] = former
        raise
    return module


def known_files() -> dict[str, str]:
    """Return the files of the modules so far, by name: `adopt_files` makes them known to another process."""
    return {name: str(path) for name, path in _files.items()}


def adopt_files(files: Mapping[str, str]) -> None:
    """Let modules be imported by the names that another process gave to them: those of pickled classes."""
    _files.update({name: Path(path) for name, path in files.items()})
    _find_files()


def _find_files() -> None:
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())  # before the one that finds modules in packages


def _name_of(path: Path) -> str:
    """Return the module name of a file: a user's module or another zoo's file may have the same stem."""
    stem = path.parent.name if path.name == _INIT else path.stem
    names = (f"zoo_file_{stem}" + (f"_{number}" if number > 1 else "") for number in itertools.count(1))
    name = next(name for name in names if _files.get(name, path) == path and _is_free(name, path))
    _files[name] = path
    _find_files()
    return name


def _is_free(name: str, path: Path) -> bool:
    return name in _files or getattr(sys.modules.get(name), "__file__", str(path)) == str(path)


def _spec(name: str, path: Path, folder: Path) -> ModuleSpec:
    if path.is_dir():
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(path)]
        return spec
    inside = [str(path.parent)] if path.name == _INIT else None
    loader = _Loader(name, str(path), folder)
    found = importlib.util.spec_from_file_location(name, path, loader=loader, submodule_search_locations=inside)
    return cast("ModuleSpec", found)


class _Finder:
    """Finds modules by the names that `_name_of` gave, and modules in packages of such names."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, _target: object = None) -> ModuleSpec | None:
        top, _, inner = name.partition(".")
        if top not in _files:
            return None
        file = _files[top]
        folder = file.parent.parent if file.name == _INIT else file.parent
        if not inner:
            return _spec(name, file, folder)
        stem = name.rpartition(".")[2]
        places = (place for entry in path or () for place in _places(Path(entry), stem) if place.exists())
        return next((_spec(name, place, folder) for place in places), None)


def _places(folder: Path, name: str) -> tuple[Path, Path, Path]:
    return folder / name / _INIT, folder / f"{name}.py", folder / name


class _Loader(SourceFileLoader):
    """Compiles a file whose imports of files in `folder` find those.

    It is compiled anew: cached bytecode counts as that of any file of that size, written in that second.
    """

    def __init__(self, name: str, path: str, folder: Path) -> None:
        super().__init__(name, path)
        self._folder = folder

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the file."""
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        _rename_imports(tree, Path(path), self._folder)
        return compile(tree, path, "exec", dont_inherit=True)


def _rename_imports(tree: ast.Module, path: Path, folder: Path) -> None:
    """Give imports of files in a folder the names of their modules; by `ast.walk`, as a visitor is recursive."""
    imports = _Imports(path, folder)
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            if isinstance(statements := getattr(node, field, None), list):
                statements[:] = [new for old in statements for new in imports.renamed(old)]


class _Imports:
    """The imports of one file."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._path = path
        self._folder = folder

    def renamed(self, node: ast.stmt) -> Iterator[ast.stmt]:
        """Yield the statements that take the place of one."""
        is_from_here = isinstance(node, ast.ImportFrom) and node.level == int(self._path.parent == self._folder)
        if isinstance(node, ast.Import):
            yield from (one for alias in node.names for one in self._imports(alias))
        elif isinstance(node, ast.ImportFrom) and node.module is None and is_from_here:  # from . import layers
            for alias in node.names:
                bound = ast.copy_location(ast.alias(alias.name, alias.asname or alias.name), alias)
                yield from self._imports(bound)
        else:
            if isinstance(node, ast.ImportFrom) and node.module and (is_from_here or not node.level):
                name = self._name(node.module)
                node.module, node.level = (name, 0) if name else (node.module, node.level)
            yield node

    def _imports(self, alias: ast.alias) -> Iterator[ast.stmt]:
        """Yield the statements that import one module, and bind the name that `alias` binds."""
        name = self._name(alias.name)
        if not name or alias.asname:
            yield _import(name or alias.name, alias.asname, alias)
            return
        top, inner, _ = name.partition(".")
        if inner:
            yield _import(name, None, alias)
        yield _import(top, alias.name.partition(".")[0], alias)

    def _name(self, module: str) -> str:
        """Return the name of a module beside the file; empty if it is none."""
        top, dot, inner = module.partition(".")
        file = _beside(self._folder, top)
        return f"{_name_of(file)}{dot}{inner}" if file is not None and file != self._path else ""


def _import(name: str, bound: str | None, place: ast.alias) -> ast.stmt:
    return ast.copy_location(ast.Import([ast.copy_location(ast.alias(name, bound), place)]), place)


def _beside(folder: Path, name: str) -> Path | None:
    """Return the file of a module in a folder, or None; as on ``sys.path``, an installed package precedes a folder."""
    package, module, plain = _places(folder, name)
    if name in sys.stdlib_module_names:
        return None
    if found := next((path for path in (package, module) if path.is_file()), None):
        return found
    is_own = plain.is_dir() and any(plain.glob("*.py")) and name not in sys.modules
    return plain if is_own and importlib.util.find_spec(name) is None else None
