"""``pytest-lens zoo list`` lists a zoo's models, ``pytest-lens zoo probe`` measures their inputs and cost."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from pytest_torchlens.cli.errors import CommandError
from pytest_torchlens.cli.errors import check_output
from pytest_torchlens.records import write_atomically
from pytest_torchlens.records.files import UnwritableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_torchlens.zoo import ModelCase
    from pytest_torchlens.zoo import Zoo


ZOO_FOLDER = "model_zoo_configs"


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

    rows = _models(_load(options.zoo), options.glob) if options.zoo else _zoos()
    print(tabulate(list(rows), headers="keys"))
    return 0


def run_probe(options: argparse.Namespace) -> int:
    """Measure the models one after another; print or write the rules."""
    from pytest_torchlens.zoo.probe import IMAGE_SIZES
    from pytest_torchlens.zoo.probe import probe

    check_output(options.out)
    zoo = _load(options.zoo)
    names, sizes = _select(zoo, options.glob), _parse_sizes(options.sizes) if options.sizes else IMAGE_SIZES
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


def _load(name: str) -> Zoo:
    from pytest_torchlens.zoo import ZooError
    from pytest_torchlens.zoo import load_zoo
    from pytest_torchlens.zoo.catalog import ENDINGS
    from pytest_torchlens.zoo.catalog import find_zoo_file

    try:
        return load_zoo(Path(name) if name.endswith(ENDINGS) else find_zoo_file(name, [Path(ZOO_FOLDER)]))
    except ZooError as error:
        raise CommandError(str(error)) from None


def find_case(text: str) -> ModelCase:
    """Return the model that ``zoo:name`` or ``zoo.yaml::name`` names.

    Raises
    ------
    CommandError
        If there is no such model, or the text names several.
    """
    zoo_name, colon, name = text.partition("::" if "::" in text else ":")
    if not colon or not name:
        raise CommandError(f"expected a model such as torchvision:resnet18 or zoo.yaml::name, got {text!r}")
    zoo = _load(zoo_name)
    names = _select(zoo, name)
    if len(names) > 1:
        raise CommandError(f"{text!r} names {len(names)} models ({', '.join(names[:3])}, …): name one")
    return zoo.case(names[0])


def _select(zoo: Zoo, glob: str) -> list[str]:
    from pytest_torchlens.zoo import ZooError

    try:
        return zoo.select(glob)
    except ZooError as error:
        raise CommandError(str(error)) from None


def _parse_sizes(text: str) -> list[int]:
    if not all(part.strip().isdecimal() for part in text.split(",")):
        raise CommandError(f"--sizes: expected whole numbers such as 32,64, got {text!r}")
    return [int(part) for part in text.split(",")]


def _zoos() -> Iterator[dict[str, object]]:
    from pytest_torchlens.zoo import ZooError
    from pytest_torchlens.zoo import load_zoo
    from pytest_torchlens.zoo.catalog import shipped_folder
    from pytest_torchlens.zoo.catalog import zoo_files

    names: set[str] = set()
    for path in zoo_files([Path(ZOO_FOLDER), shipped_folder()]):
        if path.stem in names:
            continue
        names.add(path.stem)
        try:
            count: object = len(load_zoo(path).names)
        except ZooError as error:
            count = error.reason
        yield {"zoo": path.stem, "models": count, "file": path}


def _models(zoo: Zoo, glob: str) -> Iterator[dict[str, str]]:
    for name in _select(zoo, glob):
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
