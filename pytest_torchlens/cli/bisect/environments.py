"""Makes an environment for a release of PyTorch, with uv or with venv and pip, and removes it again."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path

from packaging.version import Version

from pytest_torchlens.cli.bisect.processes import run
from pytest_torchlens.cli.errors import CommandError
from pytest_torchlens.records.files import remove_folder
from pytest_torchlens.records.files import temporary_folder

_LONGEST = 300
"""Characters of an installer's message."""
GIGABYTES = (2, 6)
"""What one environment takes: PyTorch for the CPU, and PyTorch with CUDA's libraries."""


class EnvironmentFailure(Exception):  # noqa: N818 - a release that is skipped, not an error of the user's
    """A release has no usable environment; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What an environment is made of.

    Attributes
    ----------
    python
        The interpreter that each environment is a copy of.
    packages
        Requirements besides PyTorch.
    index
        Address of an index besides the configured one; empty for none.
    nightlies
        Whether releases before the final ones may be installed.
    """

    python: str
    packages: tuple[str, ...]
    index: str = ""
    nightlies: bool = False

    def commands(self, folder: Path, release: str) -> Iterator[list[str]]:
        """Yield the commands that make the environment of a release in a folder."""
        inside = str(python_in(folder))
        index = [f"--extra-index-url={self.index}"] if self.index else []
        wanted = [f"torch=={release}", *self.packages]
        if uv := shutil.which("uv"):
            early = ["--prerelease=allow"] if self.nightlies else []
            # Both indexes are asked for each package: one for PyTorch alone has some others too, and old ones.
            any_index = ["--index-strategy=unsafe-best-match"] if index else []
            yield [uv, "venv", "--quiet", "--python", self.python, str(folder)]
            yield [uv, "pip", "install", "--quiet", "--python", inside, *index, *any_index, *early, *wanted]
        else:
            early = ["--pre"] if self.nightlies else []
            yield [self.python, "-m", "venv", str(folder)]
            pip = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
            yield [*pip, *index, *early, *wanted]

    @property
    def tool(self) -> str:
        """What makes the environments."""
        return "uv" if shutil.which("uv") else "venv and pip"


def python_in(folder: Path) -> Path:
    """Return the interpreter of a virtual environment."""
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


@dataclass(kw_only=True)
class Environments:
    """The interpreter of each release: one that exists, or one that is made and then removed.

    Attributes
    ----------
    existing
        Interpreters by release.
    recipe
        How others are made; None to make none.
    folder
        Where they are made.
    keep
        Whether they stay, and are used again by a later search.
    """

    existing: Mapping[str, str]
    recipe: Recipe | None
    folder: Path
    keep: bool = False
    _made: set[str] = field(default_factory=set)

    @classmethod
    @contextlib.contextmanager
    def opened(cls, existing: Mapping[str, str], recipe: Recipe | None, keep: Path | None) -> Iterator[Environments]:
        """Give environments in the folder `keep`, or in a temporary one, which is removed at the end."""
        if keep is not None:
            yield cls(existing=existing, recipe=recipe, folder=keep.absolute(), keep=True)
            return
        with temporary_folder("pytest-lens-environments-") as folder:
            yield cls(existing=existing, recipe=recipe, folder=Path(folder))

    def python(self, release: str) -> str:
        """Return the path of a release's interpreter, after it was made and checked.

        Raises
        ------
        EnvironmentFailure
            If it cannot be installed, or lacks a package.
        CommandError
            If something of the user's is where it would be made.
        """
        from pytest_torchlens.run import OtherPython
        from pytest_torchlens.run import OtherPythonError

        try:
            found = OtherPython.find(self.existing.get(release) or self._make(release), Path.cwd())
        except OtherPythonError as error:
            raise EnvironmentFailure(str(error)) from None
        if Version(found.torch).public != Version(release).public:
            print(f"note: {found.executable} has torch {found.torch}, and stands for {release}", flush=True)
        return found.executable

    def _make(self, release: str) -> str:
        if self.recipe is None:
            raise EnvironmentFailure("it has no --environment, and --no-install is set")
        folder = self.folder / f"torch-{release}"
        if not self._is_kept(release):
            self._made.add(release)
            try:
                for command in self.recipe.commands(folder, release):
                    _install(command)
            except BaseException:
                remove_folder(folder)
                raise
        return str(python_in(folder))

    def _is_kept(self, release: str) -> bool:
        """Return whether an earlier search left this environment; refuse a folder that is none."""
        folder = self.folder / f"torch-{release}"
        if self.keep and not python_in(folder).exists() and os.path.lexists(folder):
            raise CommandError(
                f"--keep: {folder} exists, and is no environment: move it away, or name another folder for environments"
            )
        return self.keep and folder.exists()

    def check(self, releases: Iterable[str]) -> None:
        """Check that nothing of the user's is where the environments of releases will be made.

        Raises
        ------
        CommandError
            If something is.
        """
        for release in releases:
            if self.recipe is not None and release not in self.existing:
                self._is_kept(release)

    def drop(self, release: str) -> None:
        """Remove the environment of a release, if it was made here and is not kept."""
        if release in self._made and not self.keep:
            remove_folder(self.folder / f"torch-{release}")


def _install(command: list[str]) -> None:
    try:
        ended = run(command)
    except OSError as error:
        raise CommandError(f"{command[0]} cannot be run: {error.strerror}") from None
    if ended.returncode:
        lines = [line.strip() for line in (ended.stderr or ended.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith("error") and "ResolutionImpossible" not in line]
        reason = errors[-1] if errors else " ".join(lines) or f"{Path(command[0]).name} ended with {ended.returncode}"
        raise EnvironmentFailure(f"cannot be installed: {reason[:_LONGEST]}")


def default_python() -> str:
    """Return this Python, outside of its virtual environment."""
    base = getattr(sys, "_base_executable", "") or sys.executable
    return str(base)


def free_gigabytes(folder: Path) -> float:
    """Return what is free on the disk of a folder that may not exist yet."""
    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    return shutil.disk_usage(existing).free / 1e9
