"""Decides what a run does with baselines: compare, store, leave pending, fail."""

from __future__ import annotations

import os
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchlens.baseline.compare import compare
from pytest_torchlens.baseline.conditions import Conditions
from pytest_torchlens.baseline.costs import UNTIMED
from pytest_torchlens.baseline.costs import UNTIMED_AGAINST
from pytest_torchlens.baseline.environments import version_axes
from pytest_torchlens.baseline.judge import Repeat
from pytest_torchlens.baseline.old_names import note_old_names
from pytest_torchlens.baseline.old_names import renamed_weights
from pytest_torchlens.baseline.since_run import code_of
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot_file import UnmergedError
from pytest_torchlens.baseline.store import Store
from pytest_torchlens.baseline.store import ignore_in_git
from pytest_torchlens.records import Change
from pytest_torchlens.records import Comparison
from pytest_torchlens.records.files import UnwritableError

if TYPE_CHECKING:
    from pytest_torchlens.history import ModelHistory

UPDATES = ("new", "changed", "unused", "all")
KEEPS = ("activations",)
NOT_SAVED = "activations not saved"
"""Precedes the reason in a note."""


UnderNames = Callable[[Mapping[str, str]], Snapshot]


@dataclass(frozen=True)
class _Pass:
    """A model's pass in this run, and what `Policy.check` was given with it."""

    snapshot: Snapshot
    history: ModelHistory | None
    seconds: tuple[float, float] | None
    under_names: UnderNames | None


def _with_old_names(stored: Snapshot, this: _Pass) -> _Pass:
    """Note what the pass computes if renamed random weights hold the values of their old names."""
    names = renamed_weights(stored, this.snapshot) if this.under_names is not None else {}
    if this.under_names is None or not names:
        return this
    return replace(this, snapshot=note_old_names(stored, this.snapshot, names, this.under_names(names)))


def _have_other_versions(one: Snapshot, other: Snapshot) -> bool:
    """Return whether an environment that both have has other versions now."""
    pairs = [(block, other.measured[name]) for name, block in one.measured.items() if name in other.measured]
    return any(version_axes(before.environment, after.environment) for before, after in pairs)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How a run treats baselines; plain data, which goes to other processes as JSON.

    Attributes
    ----------
    folder, pending, activations, times
        Those of the `Store`.
    root
        Reported paths are relative to this folder.
    update
        Which of ``"new"``, ``"changed"`` and ``"unused"`` baselines the run stores or deletes.
    strict
        Whether a model without a baseline fails.
    fail_on
        Conditions of the whole run, as `Conditions.of` reads them.
    keep
        ``"activations"`` to save all activations.
    against
        The interpreter whose run takes the place of a stored baseline; empty for a stored one.
    """

    folder: str
    pending: str
    activations: str
    times: str = ""
    root: str = ""
    update: tuple[str, ...] = ()
    strict: bool = False
    fail_on: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    against: str = ""

    @property
    def store(self) -> Store:
        """The baselines."""
        return Store(
            Path(self.folder), Path(self.pending), Path(self.activations), Path(self.times) if self.times else None
        )

    def conditions(self, fail_on: tuple[str, ...] = ()) -> Conditions:
        """Return the conditions of a model, then those of the run, which take precedence."""
        return Conditions.of((*fail_on, *self.fail_on))

    def check(
        self,
        key: str,
        snapshot: Snapshot,
        fail_on: tuple[str, ...] = (),
        *,
        history: ModelHistory | None = None,
        timed: tuple[str, float] | None = None,
        under_names: UnderNames | None = None,
    ) -> Comparison:
        """Compare a snapshot with the stored baseline, then store it or leave it pending.

        Parameters
        ----------
        key
            The model's key in the store.
        snapshot
            The model's pass in this run.
        fail_on
            The model's own conditions; those of the run take precedence.
        history
            The pass of the snapshot.  If the baseline's activations are saved, its operations run again on them.  None
            if the model has changed since the pass.
        timed
            The machine, and the seconds of the fastest pass on it; None if the pass was not timed.
        under_names
            Returns the snapshot of a pass in which weights hold the values that they would have under other names, by
            their name: of renamed weights those of their old names.  None if values do not follow names.

        Raises
        ------
        BaselineError
            If the stored file cannot be used.
        """
        seconds = self._seconds(key, timed) if timed is not None and not self.against else None
        found = self._compare(key, _Pass(snapshot, history, seconds, under_names), self.conditions(fail_on))
        if not self.keep or history is None:
            return found
        try:
            self._save_activations(key, history, snapshot)
        except (OSError, ValueError) as error:
            return replace(found, unsaved=str(error), notes=(*found.notes, f"{NOT_SAVED}: {error}"))
        return found

    def _compare(self, key: str, this: _Pass, conditions: Conditions) -> Comparison:
        try:
            stored = self.store.load(key)
        except ValueError as error:
            if "changed" not in self.update or isinstance(error, UnmergedError):
                raise
            return self._settle(key, this.snapshot, Comparison(verdict=Change.NEW), "changed")
        if stored is None:
            new = Comparison(verdict=Change.NEW, fails=self.strict or conditions.fails(Change.NEW))
            return self._settle(key, this.snapshot, new, "new")
        this = _with_old_names(stored, this)
        found = self._compare_with(stored, key, this, conditions)
        if this.seconds is None and conditions.cost("time") is not None:
            untimed = UNTIMED_AGAINST if self.against else UNTIMED
            found = replace(found, untimed=untimed, notes=(*found.notes, untimed))
        if self.against:
            return replace(found, against=self.against)
        if found.verdict is Change.IDENTICAL:
            found = self._renew(key, stored, this.snapshot, found)
        return self._settle(key, this.snapshot, found, "new" if found.verdict is Change.ENVIRONMENT else "changed")

    def _renew(self, key: str, stored: Snapshot, snapshot: Snapshot, found: Comparison) -> Comparison:
        """Store files and versions of an identical pass, if they are others: ``--lens-changed-since`` reads them."""
        if snapshot.sources is None:
            return found
        has_others = stored.sources != snapshot.sources
        if "changed" in self.update and (has_others or _have_other_versions(stored, snapshot)):
            self.store.accept(key, snapshot)
            return replace(found, notes=(*found.notes, "stored anew, with the files and versions of this run"))
        return replace(found, other_files=has_others and stored.sources is not None)

    def _compare_with(self, stored: Snapshot, key: str, this: _Pass, conditions: Conditions) -> Comparison:
        name = self.against or self._relative(self.store.path(key))
        is_renamed = this.snapshot.old_names is not None  # the history has the values of the new names
        repeat = None if is_renamed else self._repeat(key, this.snapshot, this.history)
        return compare(stored, this.snapshot, conditions, baseline=name, repeat=repeat, seconds=this.seconds)

    def _seconds(self, key: str, timed: tuple[str, float]) -> tuple[float, float] | None:
        """Store this run's time; return the baseline's and this one, None if the baseline's is of another machine."""
        before = self.store.times_of(key)
        try:
            times = self.store.note_time(key, *timed)
        except OSError:  # as on a machine without earlier times
            return None
        return (times.baseline, times.last) if before is not None and before.machine == times.machine else None

    def _repeat(self, key: str, snapshot: Snapshot, history: ModelHistory | None) -> Repeat | None:
        """Return a runner of operations on the saved activations of a model's baseline; None without them."""
        folder = self.store.activations_of(key)
        if history is None or folder is None or not folder.is_dir():
            return None
        from pytest_torchlens.baseline.rerun_operations import Repeater

        return Repeater(folder, history, snapshot)

    def _save_activations(self, key: str, history: ModelHistory, snapshot: Snapshot) -> None:
        """Save the activations of this pass; keep those of the stored baseline, and delete all others."""
        from pytest_torchlens.baseline.saved_activations import folder_name
        from pytest_torchlens.baseline.saved_activations import save_activations
        from pytest_torchlens.baseline.saved_activations import tidy

        folder = self.store.activations_of(key)
        assert folder is not None  # noqa: S101 - a policy has one
        ignore_in_git(folder.parent)
        save_activations(folder, history, snapshot)
        stored = self.store.load(key)
        tidy(folder, {folder_name(b.numbers) for side in (stored, snapshot) if side for b in side.measured.values()})

    def _settle(self, key: str, snapshot: Snapshot, found: Comparison, kind: str) -> Comparison:
        if found.verdict is not Change.IDENTICAL and kind in self.update:
            self.store.accept(key, snapshot)
            stored = self._relative(self.store.path(key))
            return replace(found, fails=False, stored=stored, notes=(*found.notes, f"stored: {stored}"))
        is_same = found.verdict is Change.IDENTICAL
        try:
            if is_same:
                self.store.forget(key)
            else:
                self.store.keep(key, replace(snapshot, code=code_of(snapshot, Path(self.root))))
        except UnwritableError as error:
            what = "an earlier result still waits" if is_same else "it cannot wait"
            note = f"{what} to be accepted: {error}"
            return replace(found, unwritten="" if is_same else str(error), notes=(*found.notes, note))
        return found

    def _relative(self, path: Path) -> str:
        return os.path.relpath(path, self.root) if self.root else str(path)
