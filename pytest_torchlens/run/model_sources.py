"""Finds the project's files that a model's code is in, and the versions of the packages it uses, for its baseline."""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

from pytest_torchlens.baseline.snapshot import ELSEWHERE
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.source_files import INSTALLED
from pytest_torchlens.baseline.source_files import Imports
from pytest_torchlens.baseline.source_files import package_of
from pytest_torchlens.baseline.source_files import top_of
from pytest_torchlens.baseline.source_files import version_of
from pytest_torchlens.capture import Call
from pytest_torchlens.capture.calls import ModuleCall
from pytest_torchlens.capture.looks import home_of
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.source import all_frames_of
from pytest_torchlens.records import Environment

_NOT_THE_MODELS = (
    Path(__file__).parents[1],
    *{Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")},
)
"""Our code, and Python's."""


def with_sources(snapshot: Snapshot, history: ModelHistory, root: Path, builders: set[Path]) -> Snapshot:
    """Return a snapshot that names the files of the model's code, and the versions of all packages that these import.

    Parameters
    ----------
    snapshot
        The pass.
    history
        Its history; its model must still exist.
    root
        The project's folder, to which the names of files are relative.
    builders
        The files with the functions that build the model, whose packages count too.
    """
    root = root.resolve()
    top = top_of(root)
    files = {path for name in _file_names(history) if (path := Path(os.path.realpath(name))).is_file()}
    installed = {path for path in files if INSTALLED & set(path.parts)}
    others = {path for path in files - installed if not any(map(path.is_relative_to, _NOT_THE_MODELS))}
    own = {path for path in others if path.is_relative_to(top)}
    names = sorted(Path(os.path.relpath(path, root)).as_posix() for path in own)
    packages = {_package_at(path) for path in installed} | Imports(top, map(Path, sys.path)).packages(own | builders)
    measured = {
        name: replace(block, environment=_with_packages(block.environment, packages))
        for name, block in snapshot.measured.items()
    }
    return replace(snapshot, sources=(*names, *([ELSEWHERE] if others - own else [])), measured=measured)


def _file_names(history: ModelHistory) -> set[str]:
    """Return the files of the classes of the model's modules, and of all code that the pass ran."""
    recording = history.recording
    model = recording.model()
    modules = [module for _, module in named_modules(model)] if model is not None else []
    homes = {sys.modules.get(home_of(kind)) for module in modules for kind in type(module).__mro__}
    calls: list[Call | ModuleCall] = [*recording.calls, *recording.module_calls]
    frames = {id(call.frames): call.frames for call in calls}
    names = {code.co_filename for each in frames.values() for code, _ in all_frames_of(each)}
    return names | {str(getattr(home, "__file__", None) or "") for home in homes}


def _package_at(path: Path) -> str:
    """Return the package of an installed file: that of the first folder below the packages."""
    below = next(place for place, part in enumerate(path.parts) if part in INSTALLED) + 1
    return package_of(path.parts[below].removesuffix(".py"))


def _with_packages(environment: Environment, names: set[str]) -> Environment:
    more = {name: version_of(name) for name in sorted(names - {"", "torch"}) if name not in environment.packages}
    return replace(environment, packages=environment.packages | more)
