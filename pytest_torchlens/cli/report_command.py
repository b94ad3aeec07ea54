"""``pytest-lens report RUN``: makes a run's pages anew from its records."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pytest_torchlens.cli.errors import INCOMPLETE
from pytest_torchlens.cli.errors import CommandError


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "report",
        help="make the pages of a run anew",
        description="Makes index.html and the models' pages anew from the records that pytest --lens-report=DIR left. "
        "Ends with 1 where a model's record is missing or damaged: its page has what report.json knows of it.",
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="the report's folder, or its report.json")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="folder that the pages go to (default: where the records are)"
    )
    parser.set_defaults(run_command=run)


def run(options: argparse.Namespace) -> int:
    """Write the pages and print where the first is."""
    from pytest_torchlens.report import RunFolder
    from pytest_torchlens.report import RunFolderError

    try:
        folder = RunFolder.read(options.run)
        index, troubles = folder.write_site(options.out or folder.path)
    except (RunFolderError, OSError) as error:
        raise CommandError(str(error)) from None
    for line in troubles:
        print(line)
    print(f"report: {index.absolute().as_uri()}")
    return INCOMPLETE if troubles else 0
