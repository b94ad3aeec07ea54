"""``pytest-lens zoo list`` lists a zoo's models, ``pytest-lens zoo probe`` measures their inputs and cost."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from pytest_torchlens.cli.errors import CommandError
from pytest_torchlens.cli.errors import check_output
from pytest_torchlens.cli.project import Project
from pytest_torchlens.cli.project import select
from pytest_torchlens.records import write_atomically
from pytest_torchlens.records.files import UnwritableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_torchlens.zoo import ModelCase
    from pytest_torchlens.zoo import Zoo


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Declare the command and its two subcommands."""
    parser = commands.add_parser("zoo", help="list models, or measure their inputs and cost", description=__doc__)
    parts = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    list_parser = parts.add_parser(
        "list",
        help="list zoos, or the models of one",
        description="Lists all zoos, or the models of one zoo with their settings.",
    )
    list_parser.add_argument("zoo", metavar="ZOO", nargs="?", help="a zoo's name or file (default: list the zoos)")
    list_parser.add_argument(
        "glob", metavar="GLOB", nargs="?", default="*", help="models with matching names (default: all)"
    )
    list_parser.set_defaults(run_command=run_list)
    probe_parser = parts.add_parser(
        "probe",
        help="measure the inputs and cost of models, and write rules",
        description="Finds the smallest image that each model accepts and its cost, and prints them as rules of "
        "a zoo file. Models are built; nothing is downloaded.",
    )
    probe_parser.add_argument("zoo", metavar="ZOO", help="a zoo's name or file")
    probe_parser.add_argument(
        "glob", metavar="GLOB", nargs="?", default="*", help="models with matching names (default: all)"
    )
    probe_parser.add_argument("--sizes", metavar="N,N", help="pixels to try, the smallest first (default: 32,64,…,256)")
    probe_parser.add_argument("--out", metavar="FILE", type=Path, help="zoo file to write (default: print the rules)")
    probe_parser.set_defaults(run_command=run_probe)


def run_list(options: argparse.Namespace) -> int:
    """Print a table."""
    from tabulate import tabulate

    rows = _models(Project.of().zoo(options.zoo), options.glob) if options.zoo else _zoos()
    print(tabulate(list(rows), headers="keys"))
    return 0


def run_probe(options: argparse.Namespace) -> int:
    """Measure the models one after another; print or write the rules."""
    from pytest_torchlens.zoo.probe import IMAGE_SIZES
    from pytest_torchlens.zoo.probe import probe

    check_output(options.out)
    zoo = Project.of().zoo(options.zoo)
    names, sizes = select(zoo, options.glob), _parse_sizes(options.sizes) if options.sizes else IMAGE_SIZES
    probes = []
    for number, name in enumerate(names, 1):
        probes.append(found := probe(zoo.case(name), sizes))
        print(f"# {number} of {len(names)}: {name}: {found.reason or f'{found.seconds:.1f} s'}")
    text = _zoo_file(zoo, probes)
    if options.out is None:
        print(text, end="")
        return 0
    try:
        write_atomically(options.out, text, make_folders=False)
    except UnwritableError as error:
        print(text, end="")  # hours of measurements
        raise CommandError(str(error)) from None
    print(f"written: {options.out}")
    return 0


def _zoo_file(zoo: Zoo, probes: list[Any]) -> str:
    from pytest_torchlens.zoo.probe import rules
    from pytest_torchlens.zoo.yaml_lines import read_yaml
    from pytest_torchlens.zoo.yaml_lines import to_yaml

    provider = str(read_yaml(zoo.path)["provider"])
    return to_yaml({"provider": provider, "rules": rules(probes, zoo)})


def _parse_sizes(text: str) -> list[int]:
    if not all(part.strip().isdecimal() for part in text.split(",")):
        raise CommandError(f"--sizes: expected whole numbers such as 32,64, got {text!r}")
    return [int(part) for part in text.split(",")]


def _zoos() -> Iterator[dict[str, object]]:
    from pytest_torchlens.zoo import ZooError
    from pytest_torchlens.zoo import load_zoo

    for path in Project.of().files():
        row: dict[str, object] = {"zoo": path.stem, "models": "", "file": _short(path), "note": ""}
        try:
            yield {**row, "models": len(load_zoo(path).names)}
        except ZooError as error:
            yield {**row, "note": error.reason}


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if Path.cwd() in path.parents else path


def _models(zoo: Zoo, glob: str) -> Iterator[dict[str, str]]:
    for name in select(zoo, glob):
        case = zoo.case(name)
        settings = case.settings
        reasons = {"skip": settings.skip, "xfail": settings.xfail}
        yield {
            "model": name,
            "family": _family(case).rpartition(".")[2],
            "size": settings.size,
            "input": _input_text(settings.input),
            "note": "; ".join(f"{key}: {reason}" for key, reason in reasons.items() if reason),
        }


def _family(case: ModelCase) -> str:
    from pytest_torchlens.zoo import ZooError

    try:
        return case.family
    except ZooError as error:
        raise CommandError(str(error)) from None


def _input_text(spec: Any) -> str:
    if spec is None:
        return "the library's default"
    if isinstance(spec, list):
        return f"[{', '.join(map(_input_text, spec))}]"
    if isinstance(spec, dict):
        return ", ".join(f"{name}: {_input_text(inner)}" for name, inner in spec.items())
    return spec.text if hasattr(spec, "text") else f"{spec.dtype}{list(spec.shape)}"
