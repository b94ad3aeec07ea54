"""Merges two changed versions of a baseline with the one that both come from; needs no torch.

A baseline is what one pass computed, and two passes are never mixed: operations, weights, answers and outputs are taken
from one side as a whole, and so are the numbers of each environment, which hold for that pass alone. The list of source
files says where the code of the pass is, so it may change while the pass stays the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields
from dataclasses import replace
from difflib import SequenceMatcher
from typing import TypeVar

from pytest_torchlens.baseline.old_names import are_of_one_comparison
from pytest_torchlens.baseline.snapshot import EnvironmentNumbers
from pytest_torchlens.baseline.snapshot import OldNames
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot_file import to_text

T = TypeVar("T")
_MERGED = ("totals", "measured", "sources", "old_names")
_PASS = tuple(field.name for field in fields(Snapshot) if field.name not in _MERGED)
_OURS, _THEIRS = "<<<<<<< ours", ">>>>>>> theirs"


@dataclass(frozen=True)
class Merged:
    """A merged baseline.

    Attributes
    ----------
    ours, theirs
        The two sides, each with all that could be merged; equal without conflicts.
    conflicts
        What both sides changed, in words.

    Raises
    ------
    ValueError
        If the sides differ and no conflict says so.
    """

    ours: Snapshot
    theirs: Snapshot
    conflicts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse to drop what only one side has."""
        if not self.conflicts and self.ours != self.theirs:
            raise ValueError("expected a conflict for two sides that differ")

    @property
    def text(self) -> str:
        """The file: with git's conflict markers if there are conflicts; such a file is never read as a baseline."""
        ours = to_text(self.ours)
        return marked(ours, to_text(self.theirs)) if self.conflicts else ours


def merge(base: Snapshot | None, ours: Snapshot, theirs: Snapshot) -> Merged:
    """Merge what only one side changed; None for `base` if both added the file."""
    if theirs in (ours, base):
        return Merged(ours, ours)
    if ours == base:
        return Merged(theirs, theirs)
    if _pass(ours) != _pass(theirs):
        return Merged(ours, theirs, (_of_pass(base, ours, theirs),))
    known = base if base is not None and _pass(base) == _pass(ours) else None
    totals, other_totals = _merged(known.totals if known else {}, ours.totals, theirs.totals)
    blocks, other_blocks = _merged(known.measured if known else {}, ours.measured, theirs.measured)
    sources, other_sources = _changed(known.sources if known else None, ours.sources, theirs.sources)
    note, other_note = _merged_notes(known.old_names if known else None, ours.old_names, theirs.old_names)
    conflicts = [*_conflicts("the total", totals, other_totals), *_conflicts("the numbers of", blocks, other_blocks)]
    if sources != other_sources:
        conflicts.append("the files of its code: both sides changed them")
    if note != other_note:
        conflicts.append("what it computes under old names: both sides changed it")
    return Merged(
        replace(ours, totals=totals, measured=blocks, sources=sources, old_names=note),
        replace(theirs, totals=other_totals, measured=other_blocks, sources=other_sources, old_names=other_note),
        tuple(conflicts),
    )


def _pass(snapshot: Snapshot) -> tuple[object, ...]:
    return tuple(getattr(snapshot, name) for name in _PASS)


def _of_pass(base: Snapshot | None, ours: Snapshot, theirs: Snapshot) -> str:
    parts = ", ".join(name for name in _PASS if getattr(ours, name) != getattr(theirs, name))
    one_sided = base is not None and _pass(base) in (_pass(ours), _pass(theirs))
    why = "one side changed it, the other the numbers of the old one" if one_sided else "both sides changed it"
    return f"the pass ({parts}): {why}"


def _merged(base: Mapping[str, T], ours: Mapping[str, T], theirs: Mapping[str, T]) -> tuple[dict[str, T], dict[str, T]]:
    """Return both sides with each entry that only one of them changed; they differ in what both changed."""
    sides: tuple[dict[str, T], dict[str, T]] = ({}, {})
    for name in dict.fromkeys([*ours, *theirs]):
        first, second, old = (side.get(name) for side in (ours, theirs, base))
        for side, value in zip(sides, _changed(old, first, second), strict=True):
            if value is not None:
                side[name] = value
    return sides


def _merged_notes(
    base: OldNames | None, ours: OldNames | None, theirs: OldNames | None
) -> tuple[OldNames | None, OldNames | None]:
    """Return both sides with each class of environment that only one of them noted, if both are of one comparison."""
    if not (isinstance(ours, OldNames) and isinstance(theirs, OldNames) and are_of_one_comparison(ours, theirs)):
        return _changed(base, ours, theirs)
    known = base if base is not None and are_of_one_comparison(base, ours) else None
    sides = _merged(*(_by_class(note) for note in (known, ours, theirs)))
    first, second = (
        replace(
            ours,
            classes=tuple(sorted(side)),
            measured={name: block for name, blocks in sorted(side.items()) for block in blocks},
        )
        for side in sides
    )
    return first, second


def _by_class(note: OldNames | None) -> dict[str, tuple[EnvironmentNumbers, ...]]:
    """Return the block of each noted class; none of a class that computes the same."""
    classes = note.classes if note is not None else ()
    return {name: (note.measured[name],) if note and name in note.measured else () for name in classes}


def _changed(base: T, ours: T, theirs: T) -> tuple[T, T]:
    """Return a value of both sides, with the change of the side that alone changed it."""
    return (theirs if ours == base else ours), (ours if theirs == base else theirs)


def _conflicts(what: str, ours: Mapping[str, object], theirs: Mapping[str, object]) -> list[str]:
    names = dict.fromkeys([*ours, *theirs])
    return [f"{what} {name!r}: both sides changed it" for name in names if ours.get(name) != theirs.get(name)]


def marked(ours: str, theirs: str) -> str:
    """Return one text of two, with git's markers around the lines in which they differ."""
    sides = ours.splitlines(), theirs.splitlines()
    lines: list[str] = []
    for kind, begin, end, other_begin, other_end in SequenceMatcher(None, *sides, autojunk=False).get_opcodes():
        if kind == "equal":
            lines += sides[0][begin:end]
        else:
            lines += [_OURS, *sides[0][begin:end], "=======", *sides[1][other_begin:other_end], _THEIRS]
    return "\n".join(lines) + "\n"
