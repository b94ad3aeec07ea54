"""Edits of a pass as plain data, and words for how much they changed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_torchlens.records.operation import Operation

if TYPE_CHECKING:
    from pytest_torchlens.records.history import HistoryRecord


@dataclass(frozen=True)
class AppliedEdit:
    """One edit and where it was made.

    Attributes
    ----------
    label
        Label of the activation, or name of the parameter.
    place
        The same with the part of the tensor and the only operation that sees the change, if there are.
    change
        What was put there, in words.
    operation
        Label of the only operation that sees the change; ``""`` if all do.
    """

    label: str
    place: str
    change: str
    operation: str = ""

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.place} ← {self.change}"

    @property
    def short(self) -> str:
        """The line without the label: ``"[:, 3] ← 0.0"``, or ``"0.0"`` for the whole tensor."""
        part = self.place.removeprefix(self.label).strip()
        return f"{part} ← {self.change}" if part else self.change

    @property
    def for_reader(self) -> str:
        """The line without the label and the only operation that sees the change: ``"[:, 3] ← 0.0"``."""
        return self.short.removeprefix(f"as {self.operation} reads it ← ").replace(f" as {self.operation} reads it", "")

    def renamed(self, labels: dict[str, str]) -> AppliedEdit:
        """Return it under other labels."""
        label, operation = labels.get(self.label, self.label), labels.get(self.operation, self.operation)
        place = label + self.place.removeprefix(self.label)
        if self.operation:
            place = place.replace(f" as {self.operation} reads it", f" as {operation} reads it")
        return AppliedEdit(label, place, self.change, operation)


class EditsByOperation:
    """Finds which edits a pass has at an operation, and how much they changed its tensor.

    Parameters
    ----------
    history
        The record of the pass, with or without edits.
    """

    def __init__(self, history: HistoryRecord) -> None:
        self.edits = history.edits
        self._changed_by = history.changed_by or {}
        self._of_value: dict[str, list[AppliedEdit]] = defaultdict(list)
        self._of_reads: dict[str, list[AppliedEdit]] = defaultdict(list)
        for edit in history.edits:
            if edit.operation:
                self._of_reads[edit.operation].append(edit)
            else:
                self._of_value[edit.label].append(edit)

    def __bool__(self) -> bool:
        """Return whether there are edits."""
        return bool(self.edits)

    def of(self, operation: Operation) -> tuple[AppliedEdit, ...]:
        """Return the edits of an operation's tensor and parameters; not those of what it alone reads of others."""
        params = operation.parent_param_addresses
        own = (edit for name in (operation.label, *params) for edit in self._of_value.get(name, ()))
        return (*own, *(edit for edit in self._of_reads.get(operation.label, ()) if edit.label in params))

    def of_reads(self, operation: Operation) -> tuple[AppliedEdit, ...]:
        """Return the edits of what an operation alone reads of other operations."""
        reads = self._of_reads.get(operation.label, ())
        return tuple(edit for edit in reads if edit.label not in operation.parent_param_addresses)

    def of_edge(self, parent: str, child: str) -> tuple[AppliedEdit, ...]:
        """Return the edits of what one operation alone reads of another; both are given by label."""
        return tuple(edit for edit in self._of_reads.get(child, ()) if edit.label == parent)

    def change(self, operation: Operation) -> float | None:
        """Return how much a tensor changed; None if no edit comes before it, or it is not known."""
        return self._changed_by.get(operation.label)

    def words(self, operation: Operation) -> str:
        """Return all that is to be said of an operation: ``"edited: 0.0; changed by 100 %"``; ``""`` for none."""
        return self._words((*self.of(operation), *self.of_reads(operation)), operation.label)

    def words_of(self, label: str) -> str:
        """Return what `words` does, but for edits of parameters, for a label alone."""
        return self._words((*self._of_value.get(label, ()), *self._of_reads.get(label, ())), label)

    def _words(self, edits: tuple[AppliedEdit, ...], label: str) -> str:
        lines = [f"edited: {edit.short if edit.label == label else edit}" for edit in edits]
        change = self._changed_by.get(label)
        return "; ".join([*lines, *([] if change is None else [changed_text(change)])])


def changed_text(change: float) -> str:
    """Return a change in words: ``"changed by 12 %"``, ``"unchanged"``; infinite cannot be measured."""
    return "unchanged" if change == 0 else "changed" if math.isinf(change) else f"changed by {percent(change)}"


def percent(share: float) -> str:
    """Return a share as text: ``12.3 %``, ``0.0012 %``, ``1,200 %``."""
    number = 100 * share
    return f"{number:,.0f} %" if number >= 100 or number == round(number) else f"{number:.3g} %"  # noqa: PLR2004 - digits


_FEW = 3


def edits_lines(edits: Iterable[AppliedEdit]) -> tuple[str, ...]:
    """Return the first edits in words, a line each, and how many more there are."""
    lines = [f"edited: {edit}" for edit in edits]
    shown = lines if len(lines) <= _FEW + 1 else lines[:_FEW]
    more = len(lines) - len(shown)
    return (*shown, *([f"and {more:,} more edits"] if more else []))
