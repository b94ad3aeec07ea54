"""``pytest-lens repro``: writes a file of torch alone that shows what a model computes wrongly here."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from pytest_torchlens.cli.errors import INCOMPLETE
from pytest_torchlens.cli.errors import CommandError
from pytest_torchlens.cli.project import Project
from pytest_torchlens.cli.project import test_of
from pytest_torchlens.cli.stores import add_store_options
from pytest_torchlens.cli.stores import find_root
from pytest_torchlens.cli.stores import store_of

if TYPE_CHECKING:
    from pytest_torchlens.run import OtherPython

_DESCRIPTION = (
    "Writes a folder with one Python file that needs torch alone: the operation that computes other values than it "
    "should (or the shortest run of operations that shows it), on its own inputs, as small as the fault allows, with "
    "what is expected. The file ends with 0 where the result is as expected and with 1 where it is not; it is run in "
    "both environments. Run the command in the environment in which the fault shows. Ends with 0 if the reproduction "
    "is confirmed; with 1 if it is not, or if there is none: nothing differs, or torch alone does not show it; with 2 "
    "if the command cannot be carried out: a name is wrong, or the model does not run."
)


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Declare the command."""
    parser = commands.add_parser("repro", help="write a file that reproduces a fault", description=_DESCRIPTION)
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="zoo:name, zoo/name, zoo.yaml::name, or a test with lens_check: test_a.py::test_it",
    )
    parser.add_argument(
        "operation",
        metavar="OPERATION",
        nargs="?",
        default="",
        help="as a comparison names it (layer1.0.conv1/conv2d), or a label (default: the first that differs)",
    )
    parser.add_argument(
        "--against",
        metavar="PYTHON",
        help="the interpreter of an environment in which the result is right (default: the activations of the stored "
        "baseline, where --lens-keep=activations has kept them)",
    )
    parser.add_argument(
        "--check",
        metavar="CHECK",
        help="reproduce this failed check of --lens-checks (rows, compile, ...) of a zoo's model: the operation "
        "that it accuses, run both ways",
    )
    parser.add_argument("--out", metavar="DIR", type=Path, help="folder to write (default: repro-MODEL-OPERATION)")
    add_store_options(parser)
    parser.set_defaults(run_command=run)


def run(options: argparse.Namespace) -> int:
    """Find, write and confirm the reproduction."""
    find_root(options)
    test = test_of(options.model)
    if options.check and (test or options.operation):
        kind = "the test" if test else "an operation besides"
        raise CommandError(f"--check: expected a zoo's model alone, got {kind} {test or options.operation}")
    case = None if test else Project.of(options.root).case(options.model)
    from pytest_torchlens.run.repro.accused import NothingToReproduceError
    from pytest_torchlens.run.repro.accused import ReproError
    from pytest_torchlens.run.repro.failed_check import reproduce_check
    from pytest_torchlens.run.repro.folder import FolderError
    from pytest_torchlens.run.repro.folder import check_is_ours
    from pytest_torchlens.run.repro.of_check import reproduce_failed
    from pytest_torchlens.run.repro.reproduce import reproduce

    other = _other(options.against)
    try:
        if options.out is not None:
            check_is_ours(options.out)
        if case is not None and options.check:
            found = reproduce_failed(case, options.check, other, options.out)
        elif case is not None:
            found = reproduce(case, options.operation, other, store_of(options), options.out)
        else:
            found = reproduce_check(str(test), options.operation, other, options.out, _options_of_pytest(options))
    except NothingToReproduceError as nothing:
        print(nothing)
        return INCOMPLETE
    except (ReproError, FolderError) as error:
        raise CommandError(str(error)) from None
    except SystemExit as end:
        raise CommandError(f"{options.model} ended the process: SystemExit({end.code!r})") from None
    print("\n".join(found.lines))
    return 0 if found.confirmed else INCOMPLETE


def _options_of_pytest(options: argparse.Namespace) -> list[str]:
    given = [f"--lens-baseline={options.baseline}"] if options.baseline else []
    given += ["-o", f"lens_baseline_dir={options.dir.absolute()}"] if options.dir else []
    return given + ([f"--rootdir={options.root}"] if options.root != Path() else [])


def _other(name: str | None) -> OtherPython | None:
    from pytest_torchlens.run import OtherPython
    from pytest_torchlens.run import OtherPythonError

    try:
        return OtherPython.find(name, Path.cwd()) if name else None
    except OtherPythonError as error:
        raise CommandError(f"--against: {error}") from None
