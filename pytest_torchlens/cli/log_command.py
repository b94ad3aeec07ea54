"""``pytest-lens log MODEL``: how a model moved over the commits of its baseline; needs git, and no torch."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_torchlens.baseline.compare import compare
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot_file import parse_snapshot
from pytest_torchlens.baseline.store import Store
from pytest_torchlens.baseline.store import key_named
from pytest_torchlens.cli.errors import CommandError
from pytest_torchlens.cli.stores import MODEL_HELP
from pytest_torchlens.cli.stores import add_store_options
from pytest_torchlens.cli.stores import nearest_key
from pytest_torchlens.cli.stores import store_of
from pytest_torchlens.records import Comparison
from pytest_torchlens.records.git import FileVersion
from pytest_torchlens.records.git import GitError
from pytest_torchlens.records.git import Repository

_DESCRIPTION = """Shows each commit that changed the model's baseline, the newest first: what changed and where it
begins, the largest difference in an operation and in the outputs, and the sizes and costs, each with its change. It
reads git alone: nothing is checked out, and no model runs."""
_SIZES = {"operations": "operations", "parameters": "parameters", "flops": "FLOPs", "peak_bytes": "peak bytes"}
"""Column of each total of a snapshot."""
_SUBJECT = 40
"""Characters of a commit's subject in the table."""


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "log", help="show how a model moved over the commits of its baseline", description=_DESCRIPTION
    )
    parser.add_argument("model", metavar="MODEL", help=f"{MODEL_HELP}; or the file of its baseline")
    parser.add_argument("--limit", metavar="N", type=int, help="only the newest N commits (default: all)")
    parser.add_argument("--md", action="store_true", help="print the table as Markdown")
    add_store_options(parser)
    parser.set_defaults(run_command=run)


@dataclass(frozen=True)
class _Row:
    """One version of a baseline, and what changed in it; texts of a table."""

    commit: str
    date: str
    change: str
    place: str
    error: str
    outputs: str
    sizes: tuple[str, ...]
    environment: str
    subject: str


def run(options: argparse.Namespace) -> int:
    """Print the table."""
    from tabulate import tabulate

    if options.limit is not None and options.limit < 1:
        raise CommandError(f"--limit: expected a positive number of commits, got {options.limit}")
    store = store_of(options)
    path = _path(options.model, store)
    try:
        repository = Repository.of(_existing(path.parent))
        rows = [*_uncommitted(repository, path), *_rows(repository, path, options.limit)]
    except GitError as error:
        raise CommandError(str(error)) from None
    if not rows:
        raise CommandError(
            f"no commit has a baseline {options.model!r} in {path.parent}: {nearest_key(options.model, store)}"
        )
    headers = ("commit", "date", "change", "begins at", "error", "outputs", *_SIZES.values(), "environment", "subject")
    table = [(*_texts(row)[:6], *row.sizes, *_texts(row)[-2:]) for row in rows]
    print(tabulate(table, headers=headers, tablefmt="github" if options.md else "simple", disable_numparse=True))
    if repository.is_shallow:
        print("this clone is shallow: earlier commits are missing (git fetch --unshallow)")
    return 0


def _texts(row: _Row) -> tuple[str, ...]:
    return (row.commit, row.date, row.change, row.place, row.error, row.outputs, row.environment, row.subject)


def _path(model: str, store: Store) -> Path:
    if model.endswith(".json") or Path(model).is_file():
        return Path(model)
    found = store.models(model)
    return store.path(found[0] if len(found) == 1 else key_named(model))  # one that is gone has commits


def _existing(folder: Path) -> Path:
    """Return a folder, or the nearest one around it that exists: a model's baseline may be gone from the checkout."""
    folder = folder.absolute()
    return next(parent for parent in (folder, *folder.parents) if parent.is_dir())


def _rows(repository: Repository, path: Path, limit: int | None) -> Iterator[_Row]:
    for version in repository.versions(path.absolute(), limit):
        yield _row_of(repository, version)


def _uncommitted(repository: Repository, path: Path) -> Iterator[_Row]:
    """Yield a row for the file in the checkout, if it is not that of the last commit."""
    name = os.path.relpath(os.path.realpath(path), repository.top)
    before = repository.head_blob(name)
    after = path.read_bytes() if path.is_file() else b""
    last = repository.blob(before) if before else b""
    if after != last:
        yield _row("", "", "not committed", last, after)


def _row_of(repository: Repository, version: FileVersion) -> _Row:
    before, after = (repository.blob(digest) if digest else b"" for digest in (version.before, version.after))
    return _row(version.short, version.date, version.subject, before, after)


def _row(commit: str, date: str, subject: str, before: bytes, after: bytes) -> _Row:
    """Return the row of a version; texts of a file that is missing or not a baseline are empty."""
    old, _ = _read(before)
    new, problem = _read(after)
    short = subject if len(subject) <= _SUBJECT else f"{subject[: _SUBJECT - 1]}…"
    if new is None:
        return _Row(commit, date, problem, "", "", "", ("",) * len(_SIZES), "", short)
    sizes = tuple(_size(name, old, new) for name in _SIZES)
    if old is None:
        kind = "new" if not before else "readable again"
        return _Row(commit, date, kind, "", "", "", sizes, _environments(new), short)
    found = compare(old, new)
    place = found.first.operation if found.first is not None else ""
    outputs = _outputs(found)
    moved = "; ".join([*found.axes, *(f"also {name}" for name in sorted(new.measured.keys() - old.measured.keys()))])
    return _Row(commit, date, found.verdict.value, place, _error(found), outputs, sizes, moved, short)


def _read(content: bytes) -> tuple[Snapshot | None, str]:
    """Return the snapshot in a file's content, or None and why there is none."""
    if not content:
        return None, "deleted"
    try:
        return parse_snapshot(content.decode()), ""
    except ValueError:
        return None, "cannot be read"


def _size(name: str, old: Snapshot | None, new: Snapshot) -> str:
    now = new.totals.get(name)
    if now is None:
        return ""
    before = old.totals.get(name) if old is not None else None
    return f"{now:,}" if before in (None, now) else f"{now:,} ({now - (before or 0):+,})"


def _error(found: Comparison) -> str:
    errors = [finding.error for finding in found.findings if finding.error]
    return f"{max(errors):.2g}" if errors else ""


def _outputs(found: Comparison) -> str:
    if found.outputs is None:
        return "not compared"
    if found.outputs.same:
        return "identical"
    return f"{found.outputs.error:.2g}" if found.outputs.error is not None else "differ"


def _environments(snapshot: Snapshot) -> str:
    versions = {f"torch {block.environment.torch.partition('+')[0]}" for block in snapshot.measured.values()}
    return "; ".join([*sorted(versions), *sorted(snapshot.measured)])
