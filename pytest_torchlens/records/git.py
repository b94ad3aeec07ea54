"""Asks git about the user's repository, in words that are checked, and without changing anything in it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_OF_ONE_CALL = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY")
"""Variables that git sets for a hook; a command that a hook starts must find the repository of its own folder."""
_SETTINGS = (
    f"core.hooksPath={os.devnull}",
    "core.quotePath=false",
    *("color.ui=false", "color.diff=false", "diff.relative=false"),
    *("i18n.logOutputEncoding=UTF-8", "log.showRoot=true", "log.showSignature=false"),
)
"""No hook of the user's runs, and what git prints does not depend on the user's settings."""
_OPTIONS = ("--no-optional-locks", *(part for setting in _SETTINGS for part in ("-c", setting)))
"""No index is refreshed on disk."""


class GitError(ValueError):
    """Git cannot answer; the message says why, and what to do."""


@dataclass(frozen=True)
class Repository:
    """A git repository, through the folder of a project in it.

    Attributes
    ----------
    top
        The top folder of the checkout.
    folder
        The project's folder in it.
    is_shallow
        Whether commits before some are missing in this clone.
    """

    top: Path
    folder: Path
    is_shallow: bool = False

    @classmethod
    def of(cls, folder: Path) -> Repository:
        """Find the repository of a folder.

        Raises
        ------
        GitError
            If git is not installed, or the folder is in no repository.
        """
        folder = Path(os.path.realpath(folder))
        try:
            top, shallow = _run(folder, "rev-parse", "--show-toplevel", "--is-shallow-repository").splitlines()
        except (GitError, ValueError) as error:
            if isinstance(error, GitError) and "not a git repository" not in str(error):
                raise
            raise GitError(f"{folder} is not in a checkout of a git repository") from None
        return cls(Path(os.path.realpath(top)), folder, shallow == "true")

    def run(self, *arguments: str) -> str:
        """Return what a git command prints.

        Raises
        ------
        GitError
            If it fails; the message is git's.
        """
        return _run(self.folder, *arguments)

    def commit(self, name: str) -> str:
        """Return the digest of the commit that a name stands for: a branch, a tag, ``HEAD~3``.

        Raises
        ------
        GitError
            If there is none.
        """
        try:
            return self.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}").strip()
        except GitError:
            missing = "; this clone is shallow: git fetch --unshallow gets the rest" if self.is_shallow else ""
            raise GitError(f"expected a commit, a branch or a tag, got {name!r}: git knows none{missing}") from None

    def changed_since(self, commit: str) -> set[str]:
        """Return the files that differ from a commit, new ones that git does not ignore included.

        Their paths are relative to `top`.  A folder stands for all files in it: a submodule, another repository.
        """
        whole = ("--no-renames", "--no-ext-diff", "--ignore-submodules=none")
        changed = _run(self.top, "diff", "--name-only", *whole, "-z", commit, "--")
        untracked = _run(self.top, "ls-files", "--others", "--exclude-standard", "-z")
        return {name.rstrip("/") for name in (changed + untracked).split("\0") if name}

    def tracked(self) -> set[str]:
        """Return the files that git tracks, those of submodules included, relative to `top`."""
        return set(filter(None, _run(self.top, "ls-files", "--recurse-submodules", "-z").split("\0")))

    def versions(self, path: Path, most: int | None = None) -> Iterator[FileVersion]:
        """Yield the commits that changed a file, the newest first; a file that was renamed is followed."""
        limit = () if most is None else (f"--max-count={most}",)
        form = "--format=%x01%H%x00%h%x00%cs%x00%s%x00"
        kinds = ("--raw", "-z", "--follow", "--diff-merges=first-parent", form)
        text = self.run("log", *limit, *kinds, "--", os.path.relpath(path, self.folder))
        for entry in filter(None, text.split("\1")):
            commit, short, date, subject, *rest = entry.split("\0")
            raw = next((part.strip() for part in rest if part.strip().startswith(":")), None)
            if raw is not None:
                _, _, before, after, _ = raw.split()
                yield FileVersion(commit, short, date, subject, *(_blob(digest) for digest in (before, after)))

    def head_blob(self, path: str) -> str:
        """Return git's digest of a file, relative to `top`, in the last commit; empty if that does not have it."""
        try:
            return self.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"HEAD:{path}").strip()
        except GitError:
            return ""

    def blob(self, digest: str) -> bytes:
        """Return the content of a file's version."""
        return _run_bytes(self.folder, "cat-file", "blob", digest)


@dataclass(frozen=True)
class FileVersion:
    """A commit that changed a file, with git's digests of the content before (in its first parent) and after.

    A digest is empty where there was no file.
    """

    commit: str
    short: str
    date: str
    subject: str
    before: str
    after: str


def _blob(digest: str) -> str:
    return digest if digest.strip("0") else ""


def git_environment() -> dict[str, str]:
    """Return the environment of a git command."""
    return {name: value for name, value in os.environ.items() if name not in _OF_ONE_CALL}


def git_command(folder: Path, *arguments: str) -> list[str]:
    """Return a command that runs git in a folder."""
    return ["git", "-C", str(folder), *_OPTIONS, *arguments]


def _run(folder: Path, *arguments: str) -> str:
    return _run_bytes(folder, *arguments).decode(errors="surrogateescape")


def _run_bytes(folder: Path, *arguments: str) -> bytes:
    command = git_command(folder, *arguments)
    variables = {**git_environment(), "LC_ALL": "C"}  # `Repository.of` reads a message
    try:
        run = subprocess.run(command, capture_output=True, check=False, env=variables)  # noqa: S603
    except FileNotFoundError:
        raise GitError("git is not installed, or not on the PATH") from None
    if run.returncode:
        lines = run.stderr.decode(errors="replace").strip().splitlines() or [f"it ended with {run.returncode}"]
        raise GitError(f"git {arguments[0]}: {lines[-1].removeprefix('fatal: ')}")
    return run.stdout
