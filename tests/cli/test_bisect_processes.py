"""An interrupted program takes with it all that it started, also what ignores the interrupt."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_torchlens.cli.bisect.processes import started

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no process groups")

STUBBORN = """
import os, pathlib, signal, time
def test_stubborn():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pathlib.Path({path!r}).with_suffix(".new").write_text(str(os.getpid()))
    os.rename(pathlib.Path({path!r}).with_suffix(".new"), {path!r})
    time.sleep(100)
"""
PARENT = """
from subprocess import DEVNULL, Popen
import sys
Popen([sys.executable, "-c", {text!r} + "test_stubborn()"], stdout=DEVNULL, stderr=DEVNULL)
"""
STEP = """
from pytest_torchlens.cli.bisect.trial import Comparer
Comparer(model=("test_stubborn.py",), folder={folder!r}).run()
"""


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """Give the file for the number of a process, which is ended if it is left."""
    path = tmp_path / "number"
    yield path
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(path.read_text()), signal.SIGKILL)


def interrupted(command: list[str], file: Path) -> None:
    with contextlib.suppress(KeyboardInterrupt), started(command, errors=subprocess.STDOUT):
        deadline = time.monotonic() + 60
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        raise KeyboardInterrupt


def is_gone(file: Path) -> bool:
    """Return whether a process ended, at the latest in a moment."""
    deadline = time.monotonic() + 5
    while (alive := _state(file.read_text()) not in ("", "Z")) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive


def _state(number: str) -> str:
    told = subprocess.run(["ps", "-o", "stat=", "-p", number], capture_output=True, text=True, check=False)
    return told.stdout.strip()[:1]


def test_what_ignores_the_interrupt_is_killed_with_its_group(file: Path):
    text = STUBBORN.format(path=str(file))
    interrupted([sys.executable, "-c", PARENT.format(text=text)], file)
    assert is_gone(file)


@pytest.mark.slow
def test_a_step_ends_its_pytest_before_it_is_ended_itself(file: Path, tmp_path: Path):
    (tmp_path / "test_stubborn.py").write_text(STUBBORN.format(path=str(file)))
    interrupted([sys.executable, "-c", STEP.format(folder=str(tmp_path))], file)
    assert is_gone(file)
