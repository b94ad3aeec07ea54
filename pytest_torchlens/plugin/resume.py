"""Runs that were cut short leave their reports in pytest's cache, for ``--lens-resume``."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_torchlens.plugin.selection import Selection
    from pytest_torchlens.run import RunOptions

RUNS = "lens-runs"
KEPT = 5
"""Runs cut short that can be resumed."""


def new_folder(config: pytest.Config) -> Path:
    """Return a folder for the reports of a run, not there yet: in pytest's cache, so that it can be resumed."""
    cache = getattr(config, "cache", None)  # -p no:cacheprovider
    name = f"{time.time_ns():020d}-{os.getpid()}"
    if cache is None or config.option.collectonly:
        return Path(tempfile.gettempdir(), f"pytest-lens-{name}")
    return Path(cache.mkdir(RUNS), name)


def folders_left(config: pytest.Config) -> list[Path]:
    """Return the folders of runs that were cut short, the last one first.

    Raises
    ------
    pytest.UsageError
        If pytest has no cache.
    """
    cache = getattr(config, "cache", None)
    if cache is None:
        raise pytest.UsageError("--lens-resume needs pytest's cache: leave out -p no:cacheprovider")
    return sorted((path for path in cache.mkdir(RUNS).iterdir() if path.is_dir()), reverse=True)


def remove_old(config: pytest.Config) -> None:
    """Remove what was left by runs too long ago."""
    for old in folders_left(config)[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


def stamps(selection: Selection, options: RunOptions) -> dict[str, str]:
    """Return for each model, by node id, what must be the same for its report to count in a later run."""
    from pytest_torchlens.run import find_environment

    same = f"{options}\n{find_environment()}"
    found: dict[str, str] = {}
    for choice in selection.choices.values():
        text = f"{same}\n{_texts(choice.zoo.path)}"
        found |= dict.fromkeys(choice.nodeids(), hashlib.blake2b(text.encode(), digest_size=8).hexdigest())
    return found


def _texts(path: Path) -> str:
    """Return a zoo file and the Python files beside it, which may build its models."""
    files = [path, *sorted(path.parent.glob("*.py"))]
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)
