"""Runs a pickled model in a process of its own, as `checks.unpickled` says."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from pytest_torchlens.zoo.zoo_modules import adopt_files
from pytest_torchlens.zoo.zoo_modules import known_files


class ChildError(RuntimeError):
    """The other process gave no answer; the message says why."""


def run_in_child(job: bytes, seconds: float) -> bytes:
    """Give a job to a new process of this interpreter, which imports what this one can, and return its answer.

    Raises
    ------
    ChildError
        If it does not answer.
    """
    command = [sys.executable, "-m", __name__, json.dumps([sys.path, known_files()])]
    try:
        run = subprocess.run(command, input=job, capture_output=True, timeout=max(seconds, 1.0), check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise ChildError(f"the process did not answer within {seconds:.0f} s") from None
    if run.returncode or not run.stdout:
        lines = run.stderr.decode(errors="replace").strip().splitlines()
        raise ChildError(f"the process ended with {run.returncode}: {lines[-1] if lines else 'it wrote nothing'}")
    return run.stdout


def main() -> None:
    """Answer the job on standard input; what the model prints goes to standard error."""
    sys.path[:], files = json.loads(sys.argv[1])
    adopt_files(files)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    job = sys.stdin.buffer.read()
    from pytest_torchlens.checks.unpickled import answer  # with the path of the parent

    with answers:
        answers.write(answer(job))


if __name__ == "__main__":
    main()
