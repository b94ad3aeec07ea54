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
from pytest_torchlens.baseline.store import SET
from pytest_torchlens.baseline.store import Store
from pytest_torchlens.baseline.wording import comparison_text
from pytest_torchlens.baseline.wording import headline
from pytest_torchlens.cli.errors import INCOMPLETE
from pytest_torchlens.cli.errors import CommandError
from pytest_torchlens.cli.stores import MODEL_HELP
from pytest_torchlens.cli.stores import add_store_options
from pytest_torchlens.cli.stores import existing_store
from pytest_torchlens.cli.stores import known_key
from pytest_torchlens.cli.stores import nearest_key
from pytest_torchlens.cli.stores import no_set
from pytest_torchlens.cli.stores import set_folder
from pytest_torchlens.cli.stores import set_named
from pytest_torchlens.records import Change

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_torchlens.baseline.snapshot import Snapshot


_DESCRIPTIONS = {
    "ls": "Lists baselines, and whether a change of each waits to be accepted. Ends with 1 if a file cannot be used.",
    "show": "Shows a baseline: its sizes, the environment of its numbers, and its operations.",
    "diff": "Compares two baselines, sets, files or folders; with one name or none, baselines with what waits to be "
    "accepted. Ends with 1 if a condition of --fail is met, or a model of the first set is not in the second.",
    "accept": "Stores the last results of the matching models as their baselines, without running them again. "
    "Warns of a model whose files, or versions of PyTorch, Python or libraries, changed since its run.",
    "prune": "Deletes what waits to be accepted.",
}


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Declare the commands."""
    _command(commands, "ls", _ls, "list baselines", glob="?")
    _command(commands, "show", _show, "show a baseline").add_argument("model", metavar="MODEL", help=MODEL_HELP)
    diff = _command(commands, "diff", _diff, "compare baselines")
    diff.add_argument(
        "first",
        metavar="A",
        nargs="?",
        default="*",
        help=f"{MODEL_HELP}; a set's name (@torch-2.13), a file, or a folder of files (default: all that waits)",
    )
    diff.add_argument("second", metavar="B", nargs="?", help="the newer one (default: what waits to be accepted)")
    diff.add_argument(
        *("--fail", "--lens-fail-on"),
        metavar="CONDITION",
        action="append",
        default=[],
        help="as --lens-fail-on of pytest; may be repeated",
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
        parser.add_argument(
            "globs", metavar="MODEL", nargs=glob, help=f"{MODEL_HELP}; or a glob of such: 'timm/resnet*'"
        )
    add_store_options(parser)
    parser.set_defaults(run_command=lambda options: _run(run, options))
    return parser


def _run(run: Callable[[argparse.Namespace, Store], int], options: argparse.Namespace) -> int:
    try:
        return run(options, existing_store(options))
    except (BaselineError, ConditionError) as error:
        raise CommandError(str(error)) from None


def _ls(options: argparse.Namespace, store: Store) -> int:
    globs = options.globs if isinstance(options.globs, list) else [options.globs or "*"]
    stored, waiting = set(_matching_keys(store.models, globs)), set(_matching_keys(store.waiting, globs))
    if globs != ["*"] and not stored | waiting:
        raise CommandError(f"no baseline matches {' '.join(globs)!r} in {store.folder}: {nearest_key(globs[0], store)}")
    faults = {key: fault for key in sorted(stored) if (fault := _fault(store, key))}
    for key in sorted(stored | waiting):
        kind = "changed" if key in stored else "new"
        print("  ".join([key, *([f"{kind}, waits to be accepted"] if key in waiting else []), *faults.get(key, [])]))
    unusable = f", {len(faults)} of them cannot be used" if faults else ""
    print(f"{len(stored)} baseline{'s' * (len(stored) != 1)}{unusable}, {len(waiting)} waiting; in {store.folder}")
    return INCOMPLETE if faults else 0


def _fault(store: Store, key: str) -> list[str]:
    """Return why a stored baseline cannot be used, in one line or none."""
    try:
        read(store.path(key))
    except BaselineError as error:
        return [f"CANNOT BE USED: {error}"]
    return []


def _show(options: argparse.Namespace, store: Store) -> int:
    snapshot = _one(options.model, store, options)
    if (waiting := store.waiting(options.model)) and not store.models(options.model):
        print(f"{waiting[0]} has no baseline yet: this is the result that waits to be accepted")
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
    failed = 0
    for name, before, after in _pairs(options, store):
        if before is None and options.second is None:
            twin = store.twin(after, store.models(f"{name.rpartition('/')[0]}/*")) if after is not None else ""
            same = f", and computes what {twin} has (renamed?)" if twin else ""
            print(f"{name}: new: it has no baseline yet{same}; store this result with: pytest-lens accept {name}")
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


_Pairs = list[tuple[str, "Snapshot | None", "Snapshot | None"]]


def _pairs(options: argparse.Namespace, store: Store) -> _Pairs:
    """Return the pairs to compare: two files or models, the files of two folders (None if missing), or what waits."""
    first, second = options.first, options.second
    folders = [None if name is None else set_folder(name, options) for name in (first, second)]
    if second is None:
        return _waiting(*_in_set(first, store, options))
    for name, folder in zip((first, second), folders, strict=True):
        if folder is None and name.startswith(SET) and "/" not in name:
            raise CommandError(no_set(name, options))
    one, other = folders
    if one is None and other is None:
        return [(f"{first} → {second}", _one(first, store, options), _one(second, store, options))]
    if one is None or other is None:
        alone, model = (first, second) if other is None else (second, first)
        raise CommandError(f"expected two sets or two models, got the set {alone} and {model}")
    return _of_folders(Store(one, one), Store(other, other))


def _waiting(text: str, store: Store) -> _Pairs:
    if keys := store.waiting(text):
        return [(key, store.load(key), read(store.pending_path(key))) for key in keys]
    if text == "*":
        raise CommandError(f"nothing waits to be accepted in {store.pending}: the last runs gave what is stored")
    is_known = bool(store.models(text))
    why = "its last run gave the baseline's values, or it did not run" if is_known else nearest_key(text, store)
    raise CommandError(f"nothing waits to be accepted for {text!r}: {why}")


def _of_folders(one: Store, other: Store) -> _Pairs:
    if not {*one.models()} & {*other.models()}:
        raise CommandError(f"{one.folder} and {other.folder} have no baseline of the same name")
    return [(key, one.load(key), other.load(key)) for key in sorted({*one.models(), *other.models()})]


def _is_file(name: str) -> bool:
    return name.endswith(".json") or Path(name).is_file()


def _one(name: str, store: Store, options: argparse.Namespace) -> Snapshot:
    """Return the baseline of a model, or of a file."""
    if _is_file(name):
        return read(Path(name))
    name, store = _in_set(name, store, options)
    key = known_key(name, store)
    return store.load(key) or read(store.pending_path(key))


def _in_set(name: str, store: Store, options: argparse.Namespace) -> tuple[str, Store]:
    """Return the model and the set that ``@torch-2.13/mine/net`` names; ``@torch-2.13`` names all models of it."""
    if not name.startswith(SET):
        return name, store
    named, _, model = name.partition("/")
    return model or "*", set_named(named, options)


def _accept(options: argparse.Namespace, store: Store) -> int:
    keys = _matching_keys(store.waiting, options.globs)
    if not keys:
        what = nearest_key(options.globs[0], store, only_waiting=True)
        what = what if store.waiting() else "nothing waits; pytest --lens-validate compares"
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
    print(f"{len(keys)} no longer wait{'s' * (len(keys) == 1)} to be accepted, in {store.pending}")
    return 0


def _matching_keys(keys: Callable[[str], list[str]], globs: list[str]) -> list[str]:
    return sorted({key for glob in globs for key in keys(glob)})
