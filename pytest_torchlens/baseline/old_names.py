"""Compares a pass whose weights were renamed as if they still had their old names.

A zoo's random weights follow their names, so a rename gives other values.  A run builds such a model once more, with
the values of the old names; what that computes is noted in the pass, so that every later comparison with that baseline,
of ``pytest-lens diff`` and ``log`` too, finds what the run found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from pytest_torchlens.baseline.align import StepAlignment
from pytest_torchlens.baseline.environments import nearest_class
from pytest_torchlens.baseline.snapshot import Numbers
from pytest_torchlens.baseline.snapshot import OldNames
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot_file import to_text

_FEW = 4


def renamed_weights(before: Snapshot, after: Snapshot) -> dict[str, str]:
    """Return the old name of each parameter and buffer that has another one now."""
    return StepAlignment(before, after).renamed_weights if before.state.keys() != after.state.keys() else {}


def comparable_classes(before: Snapshot, after: Snapshot) -> tuple[str, str] | None:
    """Return the classes of environment to compare: one that both have, else the nearest ones."""
    for name in sorted(after.measured):
        if name in before.measured:
            return name, name
    known = {name: block.environment for name, block in before.measured.items()}
    for name, block in sorted(after.measured.items()):
        if (nearest := nearest_class(block.environment, known)) is not None:
            return nearest, name
    return None


def note_old_names(before: Snapshot, after: Snapshot, names: Mapping[str, str], under: Snapshot) -> Snapshot:
    """Return a pass with a note of what it computes under old names.

    Parameters
    ----------
    before
        The baseline.
    after
        The pass, with the values of the new names.
    names
        The old names by the new ones.
    under
        The pass with the values of the old names.  Those that it does not hold, as of constants, are not noted.
    """
    names = {now: was for now, was in names.items() if under.state[now] != after.state[now]}
    if not names:
        return after
    weights = {now: under.state[now].digest for now, was in names.items() if under.state[now] != before.state[was]}
    measured = {}
    noted: tuple[str, ...] = ()
    if (classes := comparable_classes(before, under)) is not None:
        block = under.measured[classes[1]]
        known = _numbers_of_partners(before, after, classes[0])
        if others := {name: numbers for name, numbers in block.numbers.items() if known.get(name) != numbers}:
            measured = {classes[1]: replace(block, numbers=others, proof={})}
        noted = (classes[1],)
    note = OldNames(baseline=_fingerprint(before), names=names, weights=weights, classes=noted, measured=measured)
    return replace(after, old_names=note)


def with_old_values(before: Snapshot, after: Snapshot) -> Snapshot | None:
    """Return the pass as it is with the values of old names; None if it was not compared with this baseline so.

    Of several classes of environment, its numbers are those of the one in which most operations differ.
    """
    note = after.old_names
    if note is None or note.baseline != _fingerprint(before) or not before.state.keys() >= {*note.names.values()}:
        return None
    digests = {now: note.weights.get(now, before.state[was].digest) for now, was in note.names.items()}
    state = {**after.state, **{now: replace(after.state[now], digest=digest) for now, digest in digests.items()}}
    if comparable_classes(before, after) is None:
        return replace(after, state=state)
    if (classes := _noted_classes(before, after, note)) is None:
        return None
    known = _numbers_of_partners(before, after, classes[0])
    if classes[1] in note.measured:
        known |= note.measured[classes[1]].numbers
    block = after.measured[classes[1]]
    numbers = {name: known[name] for name in block.numbers if name in known}
    return replace(after, state=state, measured={classes[1]: replace(block, numbers=numbers)})


def _noted_classes(before: Snapshot, after: Snapshot, note: OldNames) -> tuple[str, str] | None:
    """Return the classes to compare, of those that the note has numbers of: a clean one hides no other."""
    noted = [name for name in sorted(note.classes) if name in after.measured]
    differing = {name: len(note.measured[name].numbers) if name in note.measured else 0 for name in noted}
    by_difference = sorted(noted, key=lambda name: (name not in before.measured, -differing[name]))
    pairs = (
        comparable_classes(before, replace(after, measured={name: after.measured[name]})) for name in by_difference
    )
    return next(filter(None, pairs), None)


def merge_notes(old: Snapshot, new: Snapshot) -> OldNames | None:
    """Return the note of a pass with the classes of an earlier result of it, whose numbers are in the pass too."""
    first, second = old.old_names, new.old_names
    if first is None or (second is not None and not are_of_one_comparison(first, second)):
        return second
    own = second.classes if second is not None else ()
    kept = [name for name in first.classes if name not in own and _has_numbers_of(old, new, name)]
    measured = {name: block for name, block in first.measured.items() if name in kept}
    if second is not None:
        measured |= second.measured
    return replace(first, classes=tuple(sorted({*kept, *own})), measured=measured)


def _has_numbers_of(old: Snapshot, new: Snapshot, name: str) -> bool:
    """Whether a merged pass has the numbers of `old` for a class: `new` has none, or the same."""
    return name in old.measured and (
        name not in new.measured or old.measured[name].numbers == new.measured[name].numbers
    )


def are_of_one_comparison(one: OldNames, other: OldNames) -> bool:
    """Whether two notes differ at most in the classes of environment that they have."""
    return replace(one, classes=(), measured={}) == replace(other, classes=(), measured={})


def note_text(note: OldNames) -> str:
    """Return the note of a comparison with the values of old names."""
    return f"compared with the values of the old names: {_names_text(note.names)}"


def other_values_text(aligned: StepAlignment) -> str:
    """Return a note if renamed weights have other values than under their old names; ``""`` if none has."""
    old, new = aligned.before.state, aligned.after.state
    names = {now: was for now, was in aligned.renamed_weights.items() if old[was] != new[now]}
    why = "a zoo's random weights follow their names: its run compares those under the old ones"
    return f"renamed, with other values: {_names_text(names)} ({why})" if names else ""


def _names_text(names: Mapping[str, str]) -> str:
    listed = ", ".join(f"{was} → {now}" for now, was in list(names.items())[:_FEW])
    return listed + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")


def _numbers_of_partners(before: Snapshot, after: Snapshot, name: str) -> dict[str, Numbers]:
    """Return the baseline's numbers by the ids of the same steps in the new pass."""
    numbers = before.measured[name].numbers
    partners = StepAlignment(before, after).partners
    return {now: numbers[was] for now, was in partners.items() if was in numbers}


def _fingerprint(snapshot: Snapshot) -> str:
    """Return a digest of a pass, without what says only where it came from."""
    text = to_text(replace(snapshot, sources=None, code={}, old_names=None))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
