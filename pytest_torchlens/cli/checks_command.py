"""``pytest-lens checks`` lists the checks of ``--lens-checks``: name, what must hold, and cost."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Declare the command."""
    about = (
        "Lists the checks that pytest --lens-checks and the fixture lens_same run: name, what must hold, and cost in "
    )
    parser = commands.add_parser(
        "checks", help="list the checks of --lens-checks", description=about + "plain passes of the model."
    )
    parser.set_defaults(run_command=run)


def run(options: argparse.Namespace) -> int:
    """Print a table."""
    from tabulate import tabulate

    from pytest_torchlens.checks.catalog import CHECKS

    rows = [
        {
            "check": check.name,
            "what must hold": textwrap.fill(check.sentence, _WIDTH),
            "passes": f"{check.cost:g}",
            "options": ", ".join(check.options),
        }
        for check in CHECKS
    ]
    print(tabulate(rows, headers="keys"))
    return 0


_WIDTH = 70
