"""``pytest-lens merge-baseline BASE OURS THEIRS``: git's merge driver for baselines; needs no torch."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pytest_torchlens.baseline.merge import marked
from pytest_torchlens.baseline.merge import merge
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot_file import BaselineError
from pytest_torchlens.baseline.snapshot_file import read
from pytest_torchlens.cli.errors import INCOMPLETE
from pytest_torchlens.cli.errors import CommandError
from pytest_torchlens.records import write_atomically

_FIX = "take one side (git checkout --ours or --theirs), or delete the file, run the model and store it anew"


def add(commands: argparse._SubParsersAction[Any]) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "merge-baseline",
        help="merge two versions of a baseline: a merge driver for git",
        description="Merges into OURS what only one side changed since BASE. A baseline is what one pass computed, so "
        "operations and weights are taken from one side as a whole, and so are the numbers of each environment. "
        "Ends with 1 if both sides changed the same: OURS then holds both, between git's conflict markers. "
        'To use it: git config merge.lens.driver "pytest-lens merge-baseline %O %A %B", and in .gitattributes '
        "the line: lens_baselines/**/*.json merge=lens",
    )
    parser.add_argument(
        "base", metavar="BASE", type=Path, help="the common ancestor (git's %%O); empty if there is none"
    )
    parser.add_argument("ours", metavar="OURS", type=Path, help="our version (%%A), which the result replaces")
    parser.add_argument("theirs", metavar="THEIRS", type=Path, help="the other version (%%B)")
    parser.set_defaults(run_command=run)


def run(options: argparse.Namespace) -> int:
    """Merge, write the result and print each conflict."""
    texts = [_text(path) for path in (options.base, options.ours, options.theirs)]
    try:
        base, ours, theirs = (_snapshot(path) for path in (options.base, options.ours, options.theirs))
    except BaselineError as error:
        return _conflict(options.ours, marked(texts[1], texts[2]), [str(error)])
    if ours is None or theirs is None:
        return _conflict(options.ours, marked(texts[1], texts[2]), ["one side has no baseline"])
    merged = merge(base, ours, theirs)
    if merged.conflicts:
        return _conflict(options.ours, merged.text, list(merged.conflicts))
    unchanged = {0: ours, 1: theirs}
    kept = next((texts[1 + place] for place, side in unchanged.items() if side == merged.ours), merged.text)
    write_atomically(options.ours, kept)
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from None


def _snapshot(path: Path) -> Snapshot | None:
    """Return a baseline; None of an empty file, which git gives for a version that does not exist."""
    return read(path) if path.stat().st_size else None


def _conflict(path: Path, text: str, reasons: list[str]) -> int:
    write_atomically(path, text)
    for reason in reasons:
        print(f"conflict: {reason}", file=sys.stderr)
    print(f"conflict in a baseline: {_FIX}", file=sys.stderr)
    return INCOMPLETE
