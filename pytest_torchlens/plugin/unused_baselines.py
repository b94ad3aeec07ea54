"""Finds baselines whose model is no longer in the zoo, and deletes them on request."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_torchlens.baseline.store import key_of
from pytest_torchlens.records import Change

if TYPE_CHECKING:
    from pytest_torchlens.baseline.policy import Policy
    from pytest_torchlens.plugin.selection import Selection

_SHOWN = 10


@dataclass(frozen=True)
class UnusedBaselines:
    """What a run found of them.

    Attributes
    ----------
    keys
        Those that are unused; they are looked for only in zoos all of whose models ran.
    removed
        Whether they were deleted.
    fails
        Whether they fail the run.
    skipped
        Why zoos were not looked at: ``"2 of 300 models of timm ran"``.
    """

    keys: tuple[str, ...]
    removed: bool
    fails: bool
    skipped: tuple[str, ...]

    @classmethod
    def of(cls, policy: Policy, selection: Selection, ran: Collection[str]) -> UnusedBaselines:
        """Look for them after a run, and delete them if that was asked for."""
        keys: list[str] = []
        skipped: list[str] = []
        for choice in selection.choices.values():
            zoo = choice.zoo
            stored = policy.store.models(f"{key_of(zoo.name, 'x').rpartition('/')[0]}/*")
            told = sum(f"{choice.nodeid}::{name}" in ran for name in zoo.names)
            if told < len(zoo.names):
                skipped += [f"{told} of {len(zoo.names)} models of {zoo.name} ran"] if stored else []
                continue
            known = {key_of(zoo.name, name) for name in zoo.names}
            keys += [key for key in stored if key not in known]
        removed = "unused" in policy.update
        for key in keys if removed else ():
            policy.store.remove(key)
        unwanted = policy.strict or policy.conditions().fails(Change.UNUSED)
        return cls(tuple(keys), removed, bool(keys) and unwanted and not removed, tuple(skipped))

    def lines(self) -> Iterator[str]:
        """Yield what to say."""
        if self.keys:
            names = ", ".join(self.keys[:_SHOWN]) + (" …" if len(self.keys) > _SHOWN else "")
            rest = "deleted" if self.removed else "--lens-update=unused deletes them"
            yield f"unused baselines, of models that are gone: {names}; {rest}"
        if self.fails:
            yield "ERROR: the run fails, for --lens-strict, or --lens-fail-on=unused, allows no unused baselines"
        if self.skipped:
            yield f"unused baselines were not looked for: {'; '.join(self.skipped)}"
