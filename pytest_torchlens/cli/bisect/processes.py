"""Runs other programs so that Ctrl-C ends them too, and gives them time to remove what they made."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from collections.abc import Mapping

_PATIENCE = 15
"""Seconds that a program may take to end after it was interrupted."""
INNER_PATIENCE = 5
"""The same for a program that such a program started: it must be ended before its parent is."""


@contextlib.contextmanager
def started(
    command: list[str],
    folder: str | None = None,
    variables: Mapping[str, str] | None = None,
    *,
    errors: int,
    patience: float = _PATIENCE,
) -> Iterator[subprocess.Popen[str]]:
    """Start a program in a process group of its own, which is interrupted once if this process is, and then killed.

    Parameters
    ----------
    command
        The program and its arguments.
    folder
        Where it runs; None for this process's folder.
    variables
        Its environment; None for this process's.
    errors
        Where its standard error goes, such as `subprocess.PIPE`.
    patience
        Seconds that it may take to end after it was interrupted.

    Raises
    ------
    OSError
        If it cannot be started.
    """
    process = subprocess.Popen(  # noqa: S603 - an installer, git, or this very Python
        command,
        cwd=folder,
        env=None if variables is None else dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    with process:
        try:
            yield process
        except BaseException:
            _end(process, patience)
            raise


def run(
    command: list[str],
    folder: str | None = None,
    variables: Mapping[str, str] | None = None,
    *,
    patience: float = _PATIENCE,
) -> subprocess.CompletedProcess[str]:
    """Run a program as `started` does, to its end; return what it wrote."""
    with started(command, folder, variables, errors=subprocess.PIPE, patience=patience) as process:
        output, errors = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def _end(process: subprocess.Popen[str], patience: float) -> None:
    _send(process, "SIGINT")
    with contextlib.suppress(subprocess.TimeoutExpired, ValueError):  # a stream that is closed
        process.communicate(timeout=patience)
    _send(process, "SIGKILL")  # also to those of its group that ignored the first
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=patience)


def _send(process: subprocess.Popen[str], name: str) -> None:
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, getattr(signal, name))
        else:
            process.terminate()
