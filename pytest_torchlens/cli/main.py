"""The command line: each subcommand's module declares it with ``add``.

Every call imports all of these modules, so a module imports what only its command needs when the command runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_torchlens.cli import baseline_commands
from pytest_torchlens.cli import matrix_command
from pytest_torchlens.cli import merge_command
from pytest_torchlens.cli import report_command
from pytest_torchlens.cli import zoo_commands
from pytest_torchlens.cli.errors import INCOMPLETE
from pytest_torchlens.cli.errors import CommandError
from pytest_torchlens.records import close
from pytest_torchlens.records.files import unwritable

COMMANDS = (report_command, merge_command, baseline_commands, matrix_command, zoo_commands)
USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return the exit status: the subcommand's, or 2 for a usage error."""
    parser = _Parser(prog="pytest-lens", description="Works on the reports and baselines that pytest --lens-… writes.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)
    for command in COMMANDS:
        command.add(commands)
    options = parser.parse_args(arguments)
    try:
        status = int(options.run_command(options))
        print(end="", flush=True)
    except (CommandError, OSError) as error:
        return _report(error)
    return status


def _report(error: CommandError | OSError) -> int:
    """Print an error of a command, or of standard output, which may be a full disk or a pipe that ``head`` closed."""
    if isinstance(error, OSError) and error.filename is None:
        _discard_output()
        if isinstance(error, BrokenPipeError):
            return INCOMPLETE
        error = unwritable(Path("standard output"), error)
    print(f"pytest-lens: error: {error}", file=sys.stderr)
    return USAGE_ERROR


def _discard_output() -> None:
    """Send what Python still holds of the output nowhere, or its exit would raise the error again."""
    with contextlib.suppress(OSError, ValueError):  # a replaced standard output has no file descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class _Parser(argparse.ArgumentParser):
    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Suggest the nearest command for a misspelled one, at any depth; argparse lists them all."""
        known = action.choices if isinstance(action, argparse._SubParsersAction) else None
        if known and value not in known and (hint := close(value, known)):
            self.error(f"expected a command, got {value!r} ({hint})")
        super()._check_value(action, value)
