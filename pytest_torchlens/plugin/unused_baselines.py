"""Finds baselines whose model is no longer in the zoo, and deletes them on request."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Collection
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_torchlens.baseline.snapshot_file import BaselineError
from pytest_torchlens.baseline.snapshot_file import read
from pytest_torchlens.baseline.store import key_of
from pytest_torchlens.records import Change

if TYPE_CHECKING:
    from pytest_torchlens.baseline.policy import Policy
    from pytest_torchlens.plugin.selection import Selection

_MOST_NAMES = 10


@dataclass(frozen=True)
class UnusedBaselines:
    """The unused baselines of a run.

    Attributes
    ----------
    keys
        Their keys; only zoos whose models all ran are checked.
    are_deleted
        Whether they were deleted.
    fails
        Whether they fail the run.
    unchecked_zoos
        Why zoos were not checked: ``"2 of 300 models of timm ran"``.
    renamed
        Files of such baselines, each with the file that it should be: a model of another name, whose result waits to be
        accepted, computes the same.
    """

    keys: tuple[str, ...]
    are_deleted: bool
    fails: bool
    unchecked_zoos: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, policy: Policy, selection: Selection, run_nodeids: Collection[str]) -> UnusedBaselines:
        """Find them after a run, and delete them on request."""
        keys: list[str] = []
        unchecked: list[str] = []
        for choice in selection.choices.values():
            zoo = choice.zoo
            stored = policy.store.models(f"{key_of(zoo.name, 'x').rpartition('/')[0]}/*")
            count = sum(f"{choice.nodeid}::{name}" in run_nodeids for name in zoo.names)
            if count < len(zoo.names):
                unchecked += [f"{count} of {len(zoo.names)} models of {zoo.name} ran"] if stored else []
                continue
            known = {key_of(zoo.name, name) for name in zoo.names}
            keys += [key for key in stored if key not in known]
        are_deleted = "unused" in policy.update
        renamed = () if are_deleted else tuple(_renamed(policy, keys))
        for key in keys if are_deleted else ():
            policy.store.remove(key)
        unwanted = policy.strict or policy.conditions().fails(Change.UNUSED)
        return cls(tuple(keys), are_deleted, bool(keys) and unwanted and not are_deleted, tuple(unchecked), renamed)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the summary."""
        if self.keys:
            names = ", ".join(self.keys[:_MOST_NAMES]) + (" …" if len(self.keys) > _MOST_NAMES else "")
            rest = "deleted" if self.are_deleted else "--lens-update=unused deletes them"
            yield f"unused baselines, of models that are gone: {names}; {rest}"
        for old, new in self.renamed:
            move = f"git mv {shlex.quote(old)} {shlex.quote(new)}"
            yield f"a new model computes what {old} has: if it was renamed, {move}"
        if self.fails:
            yield "ERROR: the run fails, for --lens-strict, or --lens-fail-on=unused, allows no unused baselines"
        if self.unchecked_zoos:
            yield f"unused baselines were not looked for: {'; '.join(self.unchecked_zoos)}"


def _renamed(policy: Policy, unused: list[str]) -> Iterator[tuple[str, str]]:
    store = policy.store
    for key in sorted({*store.waiting()} - {*store.models()}) if unused else ():
        with contextlib.suppress(BaselineError):
            if old := store.twin(read(store.pending_path(key)), unused):
                root = policy.root or "."
                yield os.path.relpath(store.path(old), root), os.path.relpath(store.path(key), root)
