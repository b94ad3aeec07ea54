"""``pytest-lens ls``, ``show``, ``diff``, ``accept``, ``prune``: baselines and pending ones; needs no torch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from pytest_torchlens.baseline.compare import compare
from pytest_torchlens.baseline.conditions import ConditionError
from pytest_torchlens.baseline.conditions import Conditions
from pytest_torchlens.baseline.since_run import changes_since
from pytest_torchlens.baseline.snapshot_file import BaselineError
from pytest_torchlens.baseline.snapshot_file import read
from pytest_torchlens.baseline.store import Store
from pytest_torchlens.baseline.wording import comparison_text
from pytest_torchlens.baseline.wording import headline
from pytest_torchlens.cli.errors import CommandError
from pytest_torchlens.records import Change
from pytest_torchlens.records import nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_torchlens.baseline.snapshot import Snapshot


_DESCRIPTIONS = {
    "ls": "Lists baselines, and whether a change of each waits to be accepted.",
    "show": "Shows a baseline: its sizes, the environment of its numbers, and its operations.",
    "diff": "Compares two baselines, files or folders; with one name, the baseline with what waits to be accepted. "
    "Ends with 1 if a condition of --fail is met, or a model of the first folder is not in the second.",
    "accept": "Stores the last results of the matching models as their baselines, without running them again. "
    "Warns of a model whose files, or versions of PyTorch, Python or libraries, changed since its run.",
    "prune": "Deletes what waits to be accepted.",
}


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Declare the commands."""
    _command(commands, "ls", _ls, "list baselines", glob="?")
    _command(commands, "show", _show, "show a baseline").add_argument("model", metavar="MODEL")
    diff = _command(commands, "diff", _diff, "compare baselines")
    diff.add_argument("first", metavar="A", help="a model's name (zoo/model), a file, or a folder of files")
    diff.add_argument("second", metavar="B", nargs="?", help="the newer one (default: what waits to be accepted)")
    diff.add_argument(
        "--fail", metavar="CONDITION", action="append", default=[], help="as --lens-fail-on of pytest; may be repeated"
    )
    _command(commands, "accept", _accept, "store the last result as the baseline", glob="+")
    _command(commands, "prune", _prune, "delete what waits to be accepted", glob="*")


def _command(
    commands: argparse._SubParsersAction[Any],
    name: str,
    run: Callable[[argparse.Namespace, Store], int],
    help: str,  # noqa: A002 - argparse's name
    glob: str = "",
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=help, description=_DESCRIPTIONS[name])
    if glob:
        parser.add_argument("globs", metavar="GLOB", nargs=glob, help="names of models: 'timm/resnet*'")
    parser.add_argument("--root", metavar="DIR", type=Path, default=Path(), help="the project (default: this folder)")
    parser.add_argument("--dir", metavar="DIR", type=Path, help="its baselines (default: lens_baselines in it)")
    parser.add_argument("--baseline", metavar="NAME", default="", help="the set of this name")
    parser.set_defaults(run_command=lambda options: _run(run, options))
    return parser


def _run(run: Callable[[argparse.Namespace, Store], int], options: argparse.Namespace) -> int:
    if not options.root.is_dir():
        raise CommandError(f"--root: expected a folder, {str(options.root)!r} is none")
    try:
        return run(options, Store.of(options.root, options.dir, options.baseline))
    except (BaselineError, ConditionError) as error:
        raise CommandError(str(error)) from None


def _ls(options: argparse.Namespace, store: Store) -> int:
    globs = options.globs if isinstance(options.globs, list) else [options.globs or "*"]
    stored, waiting = set(_matching_keys(store.models, globs)), set(_matching_keys(store.waiting, globs))
    if globs != ["*"] and not stored | waiting:
        raise CommandError(
            f"no baseline matches {' '.join(globs)!r} in {store.folder}: {_nearest_key(globs[0], store)}"
        )
    for key in sorted(stored | waiting):
        kind = "changed" if key in stored else "new"
        print(f"{key}  {kind}, waits to be accepted" if key in waiting else key)
    print(f"{len(stored)} baselines, {len(waiting)} waiting; in {store.folder}")
    return 0


def _show(options: argparse.Namespace, store: Store) -> int:
    snapshot = _one(options.model, store)
    if options.model in store.waiting() and options.model not in store.models():
        print(f"{options.model} has no baseline yet: this is the result that waits to be accepted")
    print(f"{snapshot.model}: {', '.join(f'{size:,} {name}' for name, size in snapshot.totals.items())}")
    for name, block in snapshot.measured.items():
        environment = block.environment
        print(f"numbers of {name}: torch {environment.torch}, Python {environment.python}, {environment.platform}")
    for step in snapshot.steps:
        shape = ", ".join(map(str, step.shape))
        print(f"  {step.id}({', '.join(step.arguments)}) {step.dtype}[{shape}]")
    return 0


def _diff(options: argparse.Namespace, store: Store) -> int:
    conditions = Conditions.of(options.fail)
    pairs = _pairs(options, store)
    failed = 0
    for name, before, after in pairs:
        if before is None and options.second is None:
            print(f"{name}: new: it has no baseline yet; store this result with: pytest-lens accept {name}")
            failed += conditions.fails(Change.NEW)
            continue
        if before is None or after is None:
            print(f"{name}: only in {options.first if before else options.second}")
            failed += after is None or conditions.fails(Change.NEW)
            continue
        times = store.times_of(name) if options.second is None else None
        seconds = (times.baseline, times.last) if times is not None else None
        found = compare(before, after, conditions, baseline=name, seconds=seconds)
        failed += found.fails
        print(comparison_text(found, name) if found.findings else f"{name}: {headline(found)}")
    return int(failed > 0)


def _pairs(options: argparse.Namespace, store: Store) -> list[tuple[str, Snapshot | None, Snapshot | None]]:
    """Return the pairs to compare: two files or models, the files of two folders (None if missing), or what waits."""
    if options.second is None:
        key = options.first
        if key not in store.waiting():
            is_known = key in store.models()
            why = "its last run gave the baseline's values, or it did not run" if is_known else _nearest_key(key, store)
            raise CommandError(f"nothing waits to be accepted for {key!r}: {why}")
        return [(key, store.load(key), read(store.pending_path(key)))]
    first, second = Path(options.first), Path(options.second)
    if not (first.is_dir() and second.is_dir()):
        return [(f"{options.first} → {options.second}", _one(options.first, store), _one(options.second, store))]
    one, other = (Store(folder, folder) for folder in (first, second))
    if not {*one.models()} & {*other.models()}:
        raise CommandError(f"{first} and {second} have no baseline of the same name")
    return [(key, one.load(key), other.load(key)) for key in sorted({*one.models(), *other.models()})]


def _one(name: str, store: Store) -> Snapshot:
    """Return the baseline of a model, or of a file."""
    if name.endswith(".json") or Path(name).is_file():
        return read(Path(name))
    found = store.load(name)
    if found is None and store.pending_path(name).exists():
        return read(store.pending_path(name))
    if found is None:
        raise CommandError(f"no baseline {name!r} in {store.folder}: {_nearest_key(name, store)}")
    return found


def _nearest_key(name: str, store: Store) -> str:
    known = sorted({*store.models(), *store.waiting()})
    return nearest(name, known) if known else "there is none yet"


def _accept(options: argparse.Namespace, store: Store) -> int:
    keys = _matching_keys(store.waiting, options.globs)
    if not keys:
        waiting = store.waiting()
        what = nearest(options.globs[0], waiting) if waiting else "nothing waits; pytest --lens-validate compares"
        raise CommandError(f"nothing that waits matches {' '.join(options.globs)!r}: {what}")
    for key in keys:
        snapshot = read(store.pending_path(key))
        if changed := changes_since(snapshot, options.root):
            print(f"warning: {key}: since its run {', '.join(changed)}: run it again to be sure")
        store.accept(key, snapshot)
        print(f"stored {store.path(key)}")
    return 0


def _prune(options: argparse.Namespace, store: Store) -> int:
    keys = _matching_keys(store.waiting, options.globs or ["*"])
    for key in keys:
        store.forget(key)
    print(f"{len(keys)} no longer wait")
    return 0


def _matching_keys(keys: Callable[[str], list[str]], globs: list[str]) -> list[str]:
    return sorted({key for glob in globs for key in keys(glob)})
