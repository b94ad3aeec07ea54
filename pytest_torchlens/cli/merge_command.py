"""``pytest-lens merge A B …``: joins the reports of several machines, or shards, into one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pytest_torchlens.cli.errors import INCOMPLETE
from pytest_torchlens.cli.errors import CommandError
from pytest_torchlens.cli.errors import check_output
from pytest_torchlens.records import count_text


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "merge",
        help="join the reports of several runs into one",
        description="Joins the reports of several machines, or shards, into one. If several runs have a model, the "
        "last run's report is used, and a line says so. "
        "Ends with 1 if a model's record is missing or damaged: its page then shows only what report.json has.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="a report's folder, or its report.json")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="folder for the joined report")
    parser.set_defaults(run_command=run)


def run(options: argparse.Namespace) -> int:
    """Write the joined report, and print its size and path."""
    from pytest_torchlens.report import RunFolder
    from pytest_torchlens.report import RunFolderError

    check_output(options.out, is_folder=True)
    try:
        joined = RunFolder.join([RunFolder.read(path) for path in options.runs])
        index, errors = joined.write_site(options.out)
    except (RunFolderError, OSError) as error:
        raise CommandError(str(error)) from None
    for line in [*joined.replacements, *errors]:
        print(line)
    print(f"{count_text(len(joined.run.models), 'model')} of {count_text(len(options.runs), 'run')}")
    print(f"report: {index.absolute().as_uri()}")
    return INCOMPLETE if errors else 0
