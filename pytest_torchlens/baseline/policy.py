"""What a run does with baselines: compare, store, leave pending, fail."""

from __future__ import annotations

import os
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path

from pytest_torchlens.baseline.compare import compare
from pytest_torchlens.baseline.conditions import Conditions
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.store import Store
from pytest_torchlens.records import Change
from pytest_torchlens.records import Comparison

UPDATES = ("new", "changed", "unused", "all")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How a run treats baselines; plain, so that it goes to other processes as JSON.

    Attributes
    ----------
    folder, pending
        Those of the `Store`.
    root
        What paths are told relative to.
    update
        Of ``"new"``, ``"changed"`` and ``"unused"`` what is stored, or deleted, now.
    strict
        Whether a model without a baseline fails.
    fail_on
        Conditions of the whole run, as `Conditions.of` reads them.
    """

    folder: str
    pending: str
    root: str = ""
    update: tuple[str, ...] = ()
    strict: bool = False
    fail_on: tuple[str, ...] = ()

    @property
    def store(self) -> Store:
        """The baselines."""
        return Store(Path(self.folder), Path(self.pending))

    def check(self, key: str, snapshot: Snapshot, fail_on: tuple[str, ...] = ()) -> Comparison:
        """Compare with the stored baseline, and store or leave pending what was asked for.

        Parameters
        ----------
        key
            Of the model in the store.
        snapshot
            What was obtained.
        fail_on
            The model's own conditions; those of the run win over them.

        Raises
        ------
        BaselineError
            If the stored file cannot be used.
        """
        conditions = Conditions.of((*fail_on, *self.fail_on))
        try:
            stored = self.store.load(key)
        except ValueError:
            if "changed" not in self.update:
                raise
            return self._settle(key, snapshot, Comparison(verdict=Change.NEW), "changed")
        if stored is None:
            new = Comparison(verdict=Change.NEW, fails=self.strict or conditions.fails(Change.NEW))
            return self._settle(key, snapshot, new, "new")
        found = compare(stored, snapshot, conditions, baseline=self._told(self.store.path(key)))
        return self._settle(key, snapshot, found, "new" if found.verdict is Change.ENVIRONMENT else "changed")

    def _settle(self, key: str, snapshot: Snapshot, found: Comparison, kind: str) -> Comparison:
        if found.verdict is Change.IDENTICAL:
            self.store.forget(key)
            return found
        if kind in self.update:
            self.store.accept(key, snapshot)
            return replace(found, fails=False, notes=(*found.notes, f"stored: {self._told(self.store.path(key))}"))
        try:
            self.store.keep(key, snapshot)
        except OSError as error:
            return replace(found, notes=(*found.notes, f"it cannot wait to be accepted: {error}"))
        return found

    def _told(self, path: Path) -> str:
        return os.path.relpath(path, self.root) if self.root else str(path)
