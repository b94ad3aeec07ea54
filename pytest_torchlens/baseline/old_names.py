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
        The pass with the values of the old names.
    """
    weights = {now: under.state[now].digest for now, was in names.items() if under.state[now] != before.state[was]}
    measured = {}
    if (classes := comparable_classes(before, under)) is not None:
        block = under.measured[classes[1]]
        known = _numbers_of_partners(before, after, classes[0])
        if others := {name: numbers for name, numbers in block.numbers.items() if known.get(name) != numbers}:
            measured = {classes[1]: replace(block, numbers=others, proof={})}
    note = OldNames(baseline=_fingerprint(before), names=dict(names), weights=weights, measured=measured)
    return replace(after, old_names=note)


def with_old_values(before: Snapshot, after: Snapshot) -> Snapshot | None:
    """Return the pass as it is with the values of old names; None if it was not compared with this baseline so."""
    note = after.old_names
    if note is None or note.baseline != _fingerprint(before) or not before.state.keys() >= {*note.names.values()}:
        return None
    digests = {now: note.weights.get(now, before.state[was].digest) for now, was in note.names.items()}
    state = {**after.state, **{now: replace(after.state[now], digest=digest) for now, digest in digests.items()}}
    if (classes := comparable_classes(before, after)) is None:
        return replace(after, state=state)
    known = _numbers_of_partners(before, after, classes[0])
    if classes[1] in note.measured:
        known |= note.measured[classes[1]].numbers
    block = after.measured[classes[1]]
    numbers = {name: known[name] for name in block.numbers if name in known}
    return replace(after, state=state, measured={classes[1]: replace(block, numbers=numbers)})


def note_text(note: OldNames) -> str:
    """Return the note of a comparison with the values of old names."""
    return f"compared with the values of the old names: {_names_text(note.names)}"


def other_values_text(aligned: StepAlignment) -> str:
    """Return a note if renamed weights have other values than under their old names; ``""`` if none has."""
    old, new = aligned.before.state, aligned.after.state
    names = {now: was for now, was in aligned.renamed_weights.items() if old[was] != new[now]}
    why = "a zoo's random weights follow their names: its run compares with this baseline under the old ones"
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
