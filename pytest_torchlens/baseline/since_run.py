"""Tells whether code or environment changed since the run whose result waits to be accepted; needs no torch."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator
from pathlib import Path

from pytest_torchlens.baseline.environments import LIBRARIES
from pytest_torchlens.baseline.environments import version_axes
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.source_files import INSTALLED
from pytest_torchlens.baseline.source_files import version_of
from pytest_torchlens.records import Environment


def code_of(snapshot: Snapshot, root: Path) -> dict[str, str]:
    """Return digests of the project's files that a pass of this process ran, by their paths from `root` on."""
    names = _files_of_steps(snapshot, root) if snapshot.sources is None else set(snapshot.sources)
    return {name: digest for name in sorted(names) if name and (digest := _digest(root / name))}


def _files_of_steps(snapshot: Snapshot, root: Path) -> set[str]:
    return {_name(Path(step.source_place.file), root) for step in snapshot.steps if step.source_place is not None}


def _name(file: Path, root: Path) -> str:
    """Return the path of a file of the project; empty for others, and for installed packages inside it."""
    whole, base = (root / file).absolute(), root.absolute()
    is_own = whole.is_relative_to(base) and not INSTALLED & set(whole.parts)
    return whole.relative_to(base).as_posix() if is_own else ""


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


def changes_since(snapshot: Snapshot, root: Path) -> list[str]:
    """Return what is not as it was in the run of a pending record, each in words: files of the model, versions."""
    code = [name for name, digest in sorted(snapshot.code.items()) if _digest(root / name) != digest]
    files = [f"{name} {'changed' if (root / name).exists() else 'is gone'}" for name in code]
    versions = {axis for block in snapshot.measured.values() for axis in _versions(block.environment)}
    return [*files, *sorted(versions)]


def _versions(then: Environment) -> Iterator[str]:
    """Yield the versions that differ here; none if torch is not installed, as the run was then elsewhere."""
    here = {name: version for name in ("torch", *LIBRARIES) if (version := version_of(name))}
    if "torch" in here:
        packages = {**then.packages, **{name: here.get(name, "") for name in LIBRARIES}}
        now = Environment(python=platform.python_version(), torch=here["torch"], packages=packages, device=then.device)
        yield from version_axes(then, now)
