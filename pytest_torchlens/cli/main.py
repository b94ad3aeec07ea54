"""The command line: each subcommand's module declares it with ``add``.

Every call imports all of these modules, so a module imports what only its command needs when the command runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from typing import TextIO
from typing import cast

from pytest_torchlens.cli import baseline_commands
from pytest_torchlens.cli import checks_command
from pytest_torchlens.cli import log_command
from pytest_torchlens.cli import matrix_command
from pytest_torchlens.cli import merge_baseline_command
from pytest_torchlens.cli import merge_command
from pytest_torchlens.cli import report_command
from pytest_torchlens.cli import repro_command
from pytest_torchlens.cli import zoo_commands
from pytest_torchlens.cli.bisect import command as bisect_command
from pytest_torchlens.cli.errors import INCOMPLETE
from pytest_torchlens.cli.errors import CommandError
from pytest_torchlens.records import close
from pytest_torchlens.records.files import unwritable

COMMANDS = (
    report_command,
    merge_command,
    baseline_commands,
    merge_baseline_command,
    log_command,
    repro_command,
    matrix_command,
    bisect_command,
    zoo_commands,
    checks_command,
)
USAGE_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return the exit status: the subcommand's, or 2 for a usage error."""
    options = make_parser().parse_args(arguments)
    try:
        with contextlib.redirect_stdout(cast("TextIO", _Output(sys.stdout))):
            status = int(options.run_command(options))
            print(end="", flush=True)
    except OutputError as error:
        _discard_output()
        return INCOMPLETE if error.is_closed_pipe else _report(error)
    except (CommandError, OSError) as error:
        return _report(error)
    return status


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all subcommands."""
    parser = _Parser(prog="pytest-lens", description="Works on the reports and baselines that pytest --lens-… writes.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)
    for command in COMMANDS:
        command.add(commands)
    return parser


def _report(error: Exception) -> int:
    print(f"pytest-lens: error: {error}", file=sys.stderr)
    return USAGE_ERROR


class OutputError(Exception):
    """Standard output cannot be written: a full disk, or a pipe that ``head`` closed."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(unwritable(Path("standard output"), error)))
        self.is_closed_pipe = isinstance(error, BrokenPipeError)


class _Output:
    """Standard output, whose errors are told from those of a command's files."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with _output_errors():
            return self._stream.write(text)

    def flush(self) -> None:
        with _output_errors():
            self._stream.flush()


@contextlib.contextmanager
def _output_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(error) from None


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
