"""What a run does with baselines: compare, store, leave pending, fail."""

from __future__ import annotations

import os
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchlens.baseline.compare import compare
from pytest_torchlens.baseline.conditions import Conditions
from pytest_torchlens.baseline.costs import UNTIMED
from pytest_torchlens.baseline.costs import UNTIMED_AGAINST
from pytest_torchlens.baseline.judge import Repeat
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.store import Store
from pytest_torchlens.baseline.store import ignore_in_git
from pytest_torchlens.records import Change
from pytest_torchlens.records import Comparison

if TYPE_CHECKING:
    from pytest_torchlens.history import ModelHistory

UPDATES = ("new", "changed", "unused", "all")
KEEPS = ("activations",)
NOT_SAVED = "activations not saved"
"""Said before the reason."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How a run treats baselines; plain, so that it goes to other processes as JSON.

    Attributes
    ----------
    folder, pending, activations, times
        Those of the `Store`.
    root
        What paths are told relative to.
    update
        Of ``"new"``, ``"changed"`` and ``"unused"`` what is stored, or deleted, now.
    strict
        Whether a model without a baseline fails.
    fail_on
        Conditions of the whole run, as `Conditions.of` reads them.
    keep
        ``"activations"`` where all of them are to be kept.
    against
        Whose run it is compared with, in place of a stored baseline; empty for a stored one.
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
        """Return a model's own conditions with those of the run, which win over them."""
        return Conditions.of((*fail_on, *self.fail_on))

    def check(
        self,
        key: str,
        snapshot: Snapshot,
        fail_on: tuple[str, ...] = (),
        *,
        history: ModelHistory | None = None,
        timed: tuple[str, float] | None = None,
    ) -> Comparison:
        """Compare with the stored baseline, and store, keep or leave pending what was asked for.

        Parameters
        ----------
        key
            Of the model in the store.
        snapshot
            What was obtained.
        fail_on
            The model's own conditions; those of the run win over them.
        history
            Of the snapshot: its operations are run again where the baseline's activations were kept; None where the
            model has changed since.
        timed
            The machine, and the seconds of the fastest pass on it; None where no time was taken.

        Raises
        ------
        BaselineError
            If the stored file cannot be used.
        """
        seconds = self._seconds(key, timed) if timed is not None and not self.against else None
        found = self._compare(key, snapshot, self.conditions(fail_on), history, seconds)
        if not self.keep or history is None:
            return found
        try:
            self._save_activations(key, history, snapshot)
        except (OSError, ValueError) as error:
            return replace(found, unsaved=str(error), notes=(*found.notes, f"{NOT_SAVED}: {error}"))
        return found

    def _compare(
        self,
        key: str,
        snapshot: Snapshot,
        conditions: Conditions,
        history: ModelHistory | None,
        seconds: tuple[float, float] | None,
    ) -> Comparison:
        try:
            stored = self.store.load(key)
        except ValueError:
            if "changed" not in self.update:
                raise
            return self._settle(key, snapshot, Comparison(verdict=Change.NEW), "changed")
        if stored is None:
            new = Comparison(verdict=Change.NEW, fails=self.strict or conditions.fails(Change.NEW))
            return self._settle(key, snapshot, new, "new")
        name = self.against or self._relative(self.store.path(key))
        repeat = self._repeat(key, snapshot, history)
        found = compare(stored, snapshot, conditions, baseline=name, repeat=repeat, seconds=seconds)
        if seconds is None and conditions.cost("time") is not None:
            untimed = UNTIMED_AGAINST if self.against else UNTIMED
            found = replace(found, untimed=untimed, notes=(*found.notes, untimed))
        if self.against:
            return replace(found, against=self.against)
        return self._settle(key, snapshot, found, "new" if found.verdict is Change.ENVIRONMENT else "changed")

    def _seconds(self, key: str, timed: tuple[str, float]) -> tuple[float, float] | None:
        """Keep the time of this run; return that of the baseline and it, None where there is none of this machine."""
        before = self.store.times_of(key)
        try:
            times = self.store.note_time(key, *timed)
        except OSError:  # as good as a machine on which nothing ran yet
            return None
        return (times.baseline, times.last) if before is not None and before.machine == times.machine else None

    def _repeat(self, key: str, snapshot: Snapshot, history: ModelHistory | None) -> Repeat | None:
        """Return what runs operations on the activations that were kept of a model's baseline."""
        folder = self.store.activations_of(key)
        if history is None or folder is None or not folder.is_dir():
            return None
        from pytest_torchlens.baseline.rerun_operations import Repeater

        return Repeater(folder, history, snapshot)

    def _save_activations(self, key: str, history: ModelHistory, snapshot: Snapshot) -> None:
        """Keep them, and those of the stored baseline, whose place they may take."""
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
        if found.verdict is Change.IDENTICAL:
            self.store.forget(key)
            return found
        if kind in self.update:
            self.store.accept(key, snapshot)
            stored = self._relative(self.store.path(key))
            return replace(found, fails=False, stored=stored, notes=(*found.notes, f"stored: {stored}"))
        try:
            self.store.keep(key, snapshot)
        except OSError as error:
            return replace(found, notes=(*found.notes, f"it cannot wait to be accepted: {error}"))
        return found

    def _relative(self, path: Path) -> str:
        return os.path.relpath(path, self.root) if self.root else str(path)
