"""``pytest-lens matrix A B …``: compares the same models in several environments; needs no torch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pytest_torchlens.baseline.conditions import ConditionError
from pytest_torchlens.baseline.conditions import Conditions
from pytest_torchlens.baseline.matrix import Matrix
from pytest_torchlens.baseline.snapshot_file import BaselineError
from pytest_torchlens.cli.errors import CommandError
from pytest_torchlens.cli.errors import check_output
from pytest_torchlens.cli.stores import add_dir_option
from pytest_torchlens.cli.stores import add_root_option
from pytest_torchlens.cli.stores import find_root
from pytest_torchlens.cli.stores import no_set
from pytest_torchlens.cli.stores import set_folder
from pytest_torchlens.records import write_atomically


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "matrix",
        help="compare several environments",
        description="Compares the baselines of several environments with those of the first, and prints a table of "
        "models by environments. Ends with 1 if a condition of --fail is met, or an environment lacks a model.",
    )
    parser.add_argument("sets", metavar="SET", nargs="+", help="names of sets (--lens-baseline=NAME), or folders")
    add_root_option(parser)
    add_dir_option(parser)
    parser.add_argument(
        *("--fail", "--lens-fail-on"),
        metavar="CONDITION",
        action="append",
        default=[],
        help="as --lens-fail-on of pytest",
    )
    parser.add_argument("--md", metavar="FILE", type=Path, help="also write the table as Markdown")
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write the table as a page")
    parser.set_defaults(run_command=run)


def run(options: argparse.Namespace) -> int:
    """Print the table, and the first difference of each model."""
    if len(options.sets) == 1:
        raise CommandError(f"expected two sets or more, the reference first, got only {options.sets[0]}")
    find_root(options)
    for path in (options.md, options.html):
        check_output(path)
    try:
        matrix = Matrix.of([_folder(options, name) for name in options.sets], Conditions.of(options.fail))
        if not matrix.rows:
            raise CommandError(f"nothing to compare: no baselines in {' or '.join(options.sets)}")
        for path, text in ((options.md, matrix.markdown), (options.html, matrix.page)):
            if path is not None:
                write_atomically(path, text(), make_folders=False)
    except (BaselineError, ConditionError, OSError) as error:
        raise CommandError(str(error)) from None
    print(matrix.table(), *matrix.environments(), matrix.details(), sep="\n")
    return int(matrix.fails)


def _folder(options: argparse.Namespace, name: str) -> Path:
    if (folder := set_folder(name, options)) is None:
        raise CommandError(f"expected a set or a folder, got {name!r}: {no_set(name, options)}")
    return folder
