"""What happened, as it is to be drawn: operations and what flowed between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from types import MappingProxyType
from typing import Literal

from pytest_torchlens.records import EscapeRecord
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import Measurements
from pytest_torchlens.records import Operation

Mark = Literal["", "added", "removed", "changed"]


@dataclass(frozen=True)
class Flow:
    """A value's way from one operation into an argument of another, both named by their labels."""

    tail: str
    head: str
    argument: str
    through_write: bool = False
    mark: Mark = ""


@dataclass(frozen=True)
class Scene:
    """A forward pass; or two, one over the other."""

    history: HistoryRecord
    operations: tuple[Operation, ...]
    flows: tuple[Flow, ...]
    marks: Mapping[str, Mark] = field(default_factory=lambda: MappingProxyType({}))
    """By label, where two passes are drawn: in what they differ."""
    remarks: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """By label: further lines of a node's text."""
    earlier: Mapping[str, tuple[EscapeRecord, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """By label, of what two passes have both: what Python was told of the value in the first."""
    title: tuple[str, ...] = ()
    """Further lines of the title."""
    measured: Measurements | None = None
    """What it cost, where that was measured."""

    @classmethod
    def of(cls, history: HistoryRecord, measured: Measurements | None = None) -> Scene:
        """Return a forward pass as it is."""
        known = {
            key: op.label for op in reversed(history.operations) for key in (op.layer_label, op.layer_label_w_pass)
        }
        flows = tuple(
            Flow(known[edge.parent], op.label, edge.argument, edge.through_write)
            for op in history.operations
            for edge in op.edges
            if edge.parent in known
        )
        return cls(history, history.operations, flows, measured=measured)
