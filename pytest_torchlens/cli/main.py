"""The command line: each subcommand's module declares it with ``add``.

Every call imports all of these modules, so a module imports what only its command needs when the command runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from pytest_torchlens.cli import baseline_commands
from pytest_torchlens.cli import matrix_command
from pytest_torchlens.cli import merge_command
from pytest_torchlens.cli import report_command
from pytest_torchlens.cli import zoo_commands
from pytest_torchlens.cli.errors import CommandError
from pytest_torchlens.records import close

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
        return int(options.run_command(options))
    except CommandError as error:
        print(f"pytest-lens: error: {error}", file=sys.stderr)
        return USAGE_ERROR


class _Parser(argparse.ArgumentParser):
    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Suggest the nearest command for a misspelled one, at any depth; argparse lists them all."""
        known = action.choices if isinstance(action, argparse._SubParsersAction) else None
        if known and value not in known and (hint := close(value, known)):
            self.error(f"expected a command, got {value!r} ({hint})")
        super()._check_value(action, value)
