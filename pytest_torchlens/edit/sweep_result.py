"""What the edits of a sweep did: numbers by edit, metric and example, their intervals, and the recovery."""

from __future__ import annotations

import math
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any

import numpy as np
import torch

from pytest_torchlens.edit.heat_map import HeatMap
from pytest_torchlens.records import close

if TYPE_CHECKING:
    import pandas

_RESAMPLES = 2000
_CONFIDENCE = 0.95


@dataclass
class Sweep:
    """The results of `ModelHistory.sweep`.

    Attributes
    ----------
    names
        The name of each edit.
    edits
        Each edit in words: where it was made, and what was put there.
    baselines
        What each metric gives without an edit, for each example, by role of the pass (``"clean"``, ``"corrupted"``)
        and name of the metric: tensors of dtype float64 and shape ``[examples]``.
    base
        The role of the pass that was edited.
    measured
        What each metric gives, by its name: float64 of shape ``[edits, examples]``; NaN for a refused edit.
    alone
        How many edits did not run together with others, by the reason.
    refused
        Why edits could not be made, by name: what `ModelHistory.edit` would raise.
    """

    names: list[Any]
    edits: list[str]
    baselines: dict[str, dict[str, torch.Tensor]]
    base: str
    measured: dict[str, torch.Tensor] = field(default_factory=dict)
    alone: dict[str, int] = field(default_factory=dict)
    refused: dict[Any, str] = field(default_factory=dict)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics."""
        return tuple(self.baselines[self.base])

    def values(self, metric: str | None = None) -> torch.Tensor:
        """Return the mean of a metric over the examples under each edit: float64 of shape ``[edits]``."""
        return self.measured[self._metric(metric)].mean(1)

    def effects(self, metric: str | None = None) -> torch.Tensor:
        """Return by how much each edit changes a metric: float64 of shape ``[edits]``."""
        name = self._metric(metric)
        return self.values(name) - self.baselines[self.base][name].mean()

    def recovery(self, metric: str | None = None) -> torch.Tensor:
        """Return where each edit's value lies between the two passes: 0 is the corrupted one, 1 the clean one.

        It is NaN where the metric is the same in both, and for a refused edit.

        Raises
        ------
        ValueError
            If the sweep had one pass only.
        """
        name = self._metric(metric)
        if len(self.baselines) == 1:
            raise ValueError("a recovery needs two passes: give sweep() the other one as clean= or corrupted=")
        clean, corrupted = (self.baselines[role][name].mean() for role in ("clean", "corrupted"))
        return torch.from_numpy(_recovery(self.values(name).detach().numpy(), clean.numpy(), corrupted.numpy()))

    @property
    def records(self) -> list[dict[str, Any]]:
        """One dict for each edit and metric.

        ``edit`` (its name), ``what`` (the edit in words), ``metric``, ``value`` (the mean over the examples), ``low``
        and ``high`` (its interval of 95 %, from 2,000 resamples of the examples; None for a single one), ``effect``
        (the value minus that of the pass without the edit), ``refused`` (why the edit could not be made; ``""`` if it
        was), and with two passes ``recovery``, ``recovery_low`` and ``recovery_high``.
        """
        return [self._record(number, name) for number in range(len(self.names)) for name in self.metrics]

    def to_pandas(self) -> pandas.DataFrame:
        """Return `records` as a table; needs pandas (the extra ``graphs``)."""
        from pytest_torchlens.history.tables import library

        frame: pandas.DataFrame = library("pandas").DataFrame(self.records)
        return frame

    def heat_map(self, metric: str | None = None, of: str | None = None) -> HeatMap:
        """Return a picture: a cell for each edit, in the row and column that its name ``(row, column)`` says.

        Parameters
        ----------
        metric
            Name of the metric; the first by default.
        of
            ``"recovery"`` (default with two passes), ``"effect"`` (default with one) or ``"value"``.
        """
        name = self._metric(metric)
        of = of or ("recovery" if len(self.baselines) > 1 else "effect")
        shown = {"recovery": self.recovery, "effect": self.effects, "value": self.values}
        if of not in shown:
            raise ValueError(f"heat_map: of: expected 'recovery', 'effect' or 'value', got {of!r:.80}")
        title = {"recovery": f"recovery of {name}", "effect": f"change of {name}", "value": name}[of]
        notes = list(map(self._note, self.names, self.edits))
        return HeatMap(title, list(map(_place, self.names)), shown[of](name).tolist(), notes, signed=of != "value")

    def _note(self, name: Any, edit: str) -> str:
        return f"{edit}: {self.refused[name]}" if name in self.refused else edit

    def _repr_html_(self) -> str:
        return self.heat_map().svg

    def __repr__(self) -> str:
        """Return one line."""
        apart = f", {sum(self.alone.values())} of them alone" if self.alone else ""
        refused = f", {len(self.refused)} refused" if self.refused else ""
        return f"<Sweep of {len(self.names)} edits of the {self.base} pass{apart}{refused}: {', '.join(self.metrics)}>"

    def _metric(self, name: str | None) -> str:
        if name is None:
            return self.metrics[0]
        if name not in self.metrics:
            raise ValueError(
                f"no metric {name!r}; there are: {close(str(name), self.metrics) or ', '.join(self.metrics)}"
            )
        return name

    def _record(self, number: int, name: str) -> dict[str, Any]:
        rows = self.measured[name][number].detach().numpy()
        others = [self.baselines[role][name].numpy() for role in ("clean", "corrupted") if role in self.baselines]
        low, high = _interval(rows)
        record = {
            "edit": self.names[number],
            "what": self.edits[number],
            "metric": name,
            "value": float(rows.mean()),
            "low": low,
            "high": high,
            "effect": float(self.effects(name)[number].detach()),
            "refused": self.refused.get(self.names[number], ""),
        }
        if len(others) == 1:
            return record
        low, high = _interval(rows, *others)
        return record | {"recovery": float(self.recovery(name)[number]), "recovery_low": low, "recovery_high": high}


def _recovery(values: Any, clean: Any, corrupted: Any) -> Any:
    """Return how far values are on the way from the corrupted to the clean one."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(clean == corrupted, math.nan, (values - corrupted) / (clean - corrupted))


def _interval(rows: Any, *others: Any) -> tuple[float | None, float | None]:
    """Return the interval of a mean over examples, or of the recovery between two others', by resampling examples."""
    if len(rows) < 2 or any(len(other) != len(rows) for other in others):  # noqa: PLR2004 - one does not vary
        return None, None
    drawn = np.random.default_rng(0).integers(len(rows), size=(_RESAMPLES, len(rows)))
    means = [each[drawn].mean(1) for each in (rows, *others)]
    found = _recovery(*means) if others else means[0]
    if np.isnan(found).all():
        return None, None
    outside = (1 - _CONFIDENCE) / 2
    low, high = np.nanquantile(found, [outside, 1 - outside])
    return float(low), float(high)


def _place(name: Any) -> tuple[Any, Any]:
    """Return row and column of an edit."""
    if isinstance(name, tuple) and len(name) == 2:  # noqa: PLR2004 - row and column
        return name
    return name, ""
