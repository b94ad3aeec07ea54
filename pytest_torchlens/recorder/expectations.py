"""Expectations of training, checked at every step."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from dataclasses import dataclass
from dataclasses import field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING
from typing import Any

import torch

from pytest_torchlens.recorder.expectation_rules import RULES
from pytest_torchlens.recorder.expectation_rules import Observation
from pytest_torchlens.recorder.expectation_rules import decrease
from pytest_torchlens.recorder.expectation_rules import text
from pytest_torchlens.recorder.recorder_options import ExpectationError
from pytest_torchlens.recorder.recorder_options import Range
from pytest_torchlens.recorder.statistics import NOT_MEASURED
from pytest_torchlens.records.names import nearest
from pytest_torchlens.records.options import whole

if TYPE_CHECKING:
    from collections.abc import Collection
    from collections.abc import Iterable

    from pytest_torchlens.recorder.expectation_rules import ExpectationRule
    from pytest_torchlens.recorder.readings import StepReading
    from pytest_torchlens.recorder.series import Row
    from pytest_torchlens.recorder.tracker import Item

AT_THE_END = "loss_decreases"
NAMES = (*RULES, AT_THE_END)


@dataclass
class Expectation:
    """One expectation.

    Attributes
    ----------
    name : str
        One of `NAMES`.
    range : Range or None
        Allowed values; None for expectations without a range.
    layers : str
        Glob of the item names that it checks.
    window : int
        Number of steps it looks back.
    looks : int
        Number of rows that it checked.
    """

    name: str
    range: Range | None
    layers: str
    window: int
    looks: int = 0
    _history: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def rule(self) -> ExpectationRule:
        """The rule that it applies."""
        return RULES[self.name]

    def is_about(self, kind: str, name: str) -> bool:
        """Whether it checks an item of this kind and name."""
        return self.name in RULES and kind in self.rule.kinds and fnmatchcase(name, self.layers)

    def look(self, observation: Observation) -> str:
        """Check a row and return the problem, or an empty string."""
        problem = self.rule.look(self, observation, self._history[observation.name])
        self.looks += problem is not None
        return problem or ""

    def past(self, name: str) -> str:
        """Return the last values in range; empty without a range."""
        return ", ".join(text(number, self.range) for number in self._history[name][-3:]) if self.range else ""

    def missing(self, items: Iterable[Item]) -> str:
        """Return a message if there was never anything to check, else an empty string."""
        if self.looks:
            return ""
        # The loss has the kind scalar and is recognized by its name.
        names = [item.name for item in items if {item.kind, item.name} & self.rule.kinds]
        if names and not any(fnmatchcase(name, self.layers) for name in names):
            near = nearest(self.layers, names)
            return f"{self.name} had nothing to check: no tracked item matches {self.layers!r}; {near}"
        return f"{self.name} had nothing to check: {self.rule.missing}"


class Expectations:
    """All expectations of a recorder."""

    def __init__(self) -> None:
        self._all: list[Expectation] = []
        self._losses = array("d")
        self._zero_steps: dict[int, torch.Tensor] = {}

    def __bool__(self) -> bool:
        return bool(self._all)

    def add(self, layers: str, window: int, expectations: dict[str, Any]) -> None:
        """Add expectations, checked.

        Raises
        ------
        TypeError
            If an expectation is unknown, or `layers` is not a glob.
        ValueError
            If a range is invalid or always true, there is no expectation, or `window` is not a number of steps.
        """
        if not isinstance(layers, str):
            raise TypeError(f"layers: expected one glob of names such as 'features.*', got {layers!r}")
        whole(1).check("window", window)
        for name in expectations:
            if name not in NAMES:
                raise TypeError(f"unknown expectation {name!r}; {nearest(name, NAMES)}")
        enabled = {name: value for name, value in expectations.items() if value is not None and value is not False}
        if not enabled:
            raise ValueError("expected at least one expectation such as no_nan=True or grad_norm='<1e3', got none")
        self._all += [Expectation(name, _range(name, value), layers, window) for name, value in enabled.items()]

    def awaits_gradient(self, item: Item) -> bool:
        """Whether a missing gradient of this item counts as a failure."""
        return any(one.name == "gradients_arrive" and one.is_about(item.kind, item.name) for one in self._all)

    def needs(self, item: Item) -> bool:
        """Whether an expectation checks this item, so that it must be read in every step."""
        return any(expected.is_about(item.kind, item.name) for expected in self._all)

    def dead_units(self, item: Item, tensor: torch.Tensor) -> float:
        """Return the share of units that were zero in all samples of the last steps; NaN if no expectation needs it."""
        windows = [one.window for one in self._all if one.name == "dead_units" and one.is_about(item.kind, item.name)]
        if not windows or tensor.dim() < 2:  # noqa: PLR2004 - a layer of units has a batch and a unit dimension
            return NOT_MEASURED
        silent = _silent_units(tensor)
        zero_steps = self._zero_steps.get(item.number)
        if zero_steps is None or zero_steps.shape != silent.shape:
            zero_steps = torch.zeros_like(silent, dtype=torch.int64)
        self._zero_steps[item.number] = zero_steps = (zero_steps + 1) * silent
        return float((zero_steps >= max(windows)).double().mean())

    def check(self, rows: Iterable[tuple[StepReading, Row]]) -> ExpectationError | None:
        """Check all rows of a step and return the first failure."""
        for reading, row in rows:
            if reading.scale != 1 and row.nans:
                continue  # the loss scale was too large: the scaler skips the step
            observation = Observation(reading.item.kind, reading.item.name, reading.shape, reading.dtype, row)
            if error := self._check(observation):
                return error
        return None

    def check_scalar(self, name: str, row: Row) -> ExpectationError | None:
        """Check a number passed to `step` or `log`."""
        if name == "loss":
            self._losses.append(row.mean)
        return self._check(Observation("loss" if name == "loss" else "scalar", name, (), "", row))

    def check_end(self, step: int, items: Collection[Item]) -> ExpectationError | None:
        """Check the expectations of the whole run, and that each had something to check."""
        for expected in self._all:
            problem = self._decrease(expected) if expected.name == AT_THE_END else expected.missing(items)
            if problem:
                return ExpectationError(problem, step=step, item="", expectation=expected.name, value=math.nan)
        return None

    def _check(self, observation: Observation) -> ExpectationError | None:
        for expected in self._all:
            if expected.is_about(observation.kind, observation.name) and (problem := expected.look(observation)):
                return _failure(expected, observation, problem)
        return None

    def _decrease(self, expected: Expectation) -> str:
        if len(self._losses) < 2:  # noqa: PLR2004 - one number does not decrease
            return (
                f"{AT_THE_END} had nothing to check: pass the loss of each step to rec.step(loss=loss) or "
                "rec.log(loss=loss)"
            )
        return decrease(self._losses.tolist(), expected.range)


def _range(name: str, value: Any) -> Range | None:
    takes_range = name == AT_THE_END or RULES[name].takes_range
    if value is True:
        if takes_range and name != AT_THE_END:
            raise ValueError(f"{name}: expected a range such as {RULES[name].example!r}, got True")
        return None
    if not takes_range:
        raise ValueError(f"{name}: expected True or False, got {value!r}")
    limits = Range.of(name, value)
    if name in RULES and RULES[name].is_share and 0.0 in limits and 1.0 in limits:
        raise ValueError(f"{name}: expected a range that excludes part of 0% to 100%, got {value!r}")
    return limits


def _silent_units(tensor: torch.Tensor) -> torch.Tensor:
    """Return for each unit whether it is zero everywhere; units are channels, or the last dimension of rows."""
    unit = 1 if tensor.dim() > 3 else tensor.dim() - 1  # noqa: PLR2004 - (batch, channel, height, width)
    others = [dim for dim in range(tensor.dim()) if dim != unit]
    largest: torch.Tensor = torch.linalg.vector_norm(tensor.abs(), ord=math.inf, dim=others)
    return largest == 0


def _failure(expected: Expectation, observation: Observation, problem: str) -> ExpectationError:
    row = observation.row
    condition = f"{expected.name}={expected.range.text if expected.range else True}"
    kind = observation.kind
    what = kind if kind == observation.name else f"{kind} of {observation.layer!r}"
    lines = [f"step {row.step}, {what}: {problem}; expected {condition}"]
    if observation.shape:
        facts = {"mean": row.mean, "std": row.std, "min": row.min, "max": row.max, "norm": row.norm}
        parts = [f"not finite: {row.nans:,} of {row.count:,}"] if row.nans else []
        parts += [f"{name} {value:.4g}" for name, value in facts.items() if not math.isnan(value)]
        lines.append(f"  {'×'.join(map(str, observation.shape))} {observation.dtype}: {', '.join(parts)}")
    if past := expected.past(observation.name):
        lines.append(f"  before: {past}")
    name, value = expected.name, expected.rule.value(row)
    return ExpectationError("\n".join(lines), step=row.step, item=observation.name, expectation=name, value=value)
