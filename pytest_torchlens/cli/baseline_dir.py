"""Asks pytest where a project's ini key ``lens_baseline_dir`` says that the baselines are; needs no torch."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import TYPE_CHECKING
from typing import NamedTuple

from pytest_torchlens.cli.errors import CommandError

if TYPE_CHECKING:
    import pytest

KEY = "lens_baseline_dir"
_FILES = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")


class BaselineDir(NamedTuple):
    """The project, and the folder of its baselines."""

    root: Path
    folder: Path


class _FoundError(Exception):
    def __init__(self, found: BaselineDir | None) -> None:
        super().__init__()
        self.found = found


def baseline_dir(folder: Path) -> BaselineDir | None:
    """Return where the settings that pytest takes for a folder say that the baselines are; None if they say nothing.

    Raises
    ------
    CommandError
        If pytest cannot read them.
    """
    if not any(_names_key(place / name) for place in (folder, *folder.absolute().parents) for name in _FILES):
        return None
    import pytest

    class Reader:
        def pytest_addoption(self, parser: pytest.Parser) -> None:
            parser.addini(KEY, "Folder of the baselines.", default="")

        @pytest.hookimpl(tryfirst=True)
        def pytest_load_initial_conftests(self, early_config: pytest.Config) -> None:
            text, root = early_config.getini(KEY), early_config.rootpath
            raise _FoundError(BaselineDir(root, root / text) if text else None)

    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            pytest.main([str(folder)], plugins=[Reader()])
    except _FoundError as answer:
        return answer.found
    except (Exception, SystemExit) as error:
        raise CommandError(f"pytest cannot read the project's settings: {error}") from error
    lines = [line.strip() for line in said.getvalue().splitlines() if line.strip()]
    raise CommandError(f"pytest cannot read the project's settings: {' '.join(lines)}")


def _names_key(file: Path) -> bool:
    try:
        return KEY in file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
