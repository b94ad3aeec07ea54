"""``pytest-lens report RUN``: makes a run's pages again from its records."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pytest_torchlens.cli.errors import INCOMPLETE
from pytest_torchlens.cli.errors import CommandError
from pytest_torchlens.cli.errors import check_output


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "report",
        help="make the pages of a run again",
        description="Makes index.html and the models' pages again from the records of pytest --lens-report=DIR. "
        "Ends with 1 if a model's record is missing or damaged: its page then shows only what report.json has.",
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="the report's folder, or its report.json")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="folder for the pages (default: the folder of the records)"
    )
    parser.set_defaults(run_command=run)


def run(options: argparse.Namespace) -> int:
    """Write the pages and print the path of the first."""
    from pytest_torchlens.report import RunFolder
    from pytest_torchlens.report import RunFolderError

    check_output(options.out, is_folder=True)
    try:
        folder = RunFolder.read(options.run)
        index, errors = folder.write_site(options.out or folder.path)
    except (RunFolderError, OSError) as error:
        raise CommandError(str(error)) from None
    for line in errors:
        print(line)
    print(f"report: {index.absolute().as_uri()}")
    return INCOMPLETE if errors else 0
