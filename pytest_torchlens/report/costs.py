"""What operations, their kinds and modules cost: measured where that was done, else as recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from typing import Final

from pytest_torchlens.draw.text import counted
from pytest_torchlens.records import address_of

if TYPE_CHECKING:
    from pytest_torchlens.records import HistoryRecord
    from pytest_torchlens.records import Measurements
    from pytest_torchlens.records import ModelReport
    from pytest_torchlens.records import Operation

_MOST_BARS: Final = 12
_FEW: Final = 3


@dataclass(frozen=True)
class Bar:
    """One bar of a chart."""

    name: str
    seconds: float
    share: float
    """Of the time of all operations."""
    count: int
    """Calls."""


@dataclass(frozen=True)
class Costs:
    """Seconds and floating-point operations of one forward pass."""

    history: HistoryRecord
    measured: Measurements | None = None

    @classmethod
    def of(cls, report: ModelReport) -> Costs | None:
        """Return the costs of a model; None where nothing was recorded."""
        return cls(report.history, report.measurements) if report.history else None

    def seconds(self, operation: Operation) -> float:
        """Return the time of the call that made a tensor."""
        times = self.measured.operation_seconds if self.measured else ()
        return times[operation.call_id] if 0 <= operation.call_id < len(times) else operation.func_time_elapsed

    def flops(self, operation: Operation) -> int | None:
        """Return the floating-point operations of the call that made a tensor; None where that is not known."""
        counts = self.measured.operation_flops if self.measured else ()
        return counts[operation.call_id] if 0 <= operation.call_id < len(counts) else None

    @cached_property
    def calls(self) -> tuple[Operation, ...]:
        """One operation for each call."""
        return tuple({op.call_id: op for op in reversed(self.history.operations) if op.call_id >= 0}.values())[::-1]

    @cached_property
    def total(self) -> float:
        """Seconds of all calls."""
        return sum(map(self.seconds, self.calls))

    def by_type(self) -> list[Bar]:
        """Return the kinds of operation, the most costly first."""
        return self._bars((op.layer_type, op) for op in self.calls)

    def by_module(self) -> list[Bar]:
        """Return modules of the outermost level that has some, the most costly first."""
        addresses = {module.address for module in self.history.modules}
        paths = {
            op.call_id: tuple(address_of(call, addresses) for call in op.containing_module_origin_nested)
            for op in self.calls
        }
        deepest = max(map(len, paths.values()), default=0)
        levels = ({path[:level][-1:] for path in paths.values()} for level in range(1, deepest + 1))
        level = next((level for level, names in enumerate(levels, 1) if len(names - {()}) >= _FEW), deepest)
        named = ((paths[op.call_id][:level][-1:] or ("outside of modules",), op) for op in self.calls)
        return self._bars((name, op) for (name,), op in named) if deepest else []

    def _bars(self, named: Iterable[tuple[str, Operation]]) -> list[Bar]:
        times: dict[str, list[float]] = defaultdict(list)
        for name, op in named:
            times[name].append(self.seconds(op))
        ranked = sorted(times.items(), key=lambda item: -sum(item[1]))
        shown, others = ranked[:_MOST_BARS], ranked[_MOST_BARS:]
        if others:
            shown.append((counted(len(others), "other"), [time for _, list_ in others for time in list_]))
        return [Bar(name, sum(list_), sum(list_) / (self.total or 1.0), len(list_)) for name, list_ in shown]
