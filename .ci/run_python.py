"""Runs Python with arguments of its own, then those in a variable: quotation marks group words, nothing is expanded.

    LENS_ARGUMENTS="zoo -k 'tiny or large'" python .ci/run_python.py LENS_ARGUMENTS -m pytest

A shell's `eval` would run commands in an input of the action, such as those in the name of a pull request's branch.
Ends with the exit status of that Python, or with 4, pytest's for wrong usage, if a quotation mark is left open.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys


def main() -> int:
    """Split the variable and run Python."""
    variable, *arguments = sys.argv[1:]
    text = os.environ[variable]
    try:
        words = shlex.split(text)
    except ValueError as error:
        print(f"{variable}: {error}: {text}", file=sys.stderr)  # noqa: T201
        return 4
    return subprocess.run(["python", *arguments, *words], check=False).returncode  # noqa: S603, S607


if __name__ == "__main__":
    sys.exit(main())
