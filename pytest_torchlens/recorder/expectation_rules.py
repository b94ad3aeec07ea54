"""The rule behind each expectation: which tensors it checks, and what counts as a failure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_torchlens.recorder.expectations import Expectation
    from pytest_torchlens.recorder.recorder_options import Range
    from pytest_torchlens.recorder.series import Row

    Look = Callable[["Expectation", "Observation", list[float]], str | None]


GRADIENTS = frozenset({"output gradient", "parameter gradient", "tensor gradient"})
ANYTHING = GRADIENTS | {"output", "parameter", "update", "tensor", "loss", "scalar"}
FEW = 5
"""Minimum number of norms for a median."""


@dataclass(frozen=True)
class Observation:
    """A row, and the tensor it describes."""

    kind: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    row: Row

    @property
    def layer(self) -> str:
        """The name without the suffix of its kind."""
        return self.name.removesuffix(".grad").removesuffix(".update")


@dataclass(frozen=True)
class ExpectationRule:
    """One kind of expectation.

    Attributes
    ----------
    kinds : frozenset of str
        Kinds of items that it checks.
    look : callable
        Returns the problem with a row, empty if there is none, and None if the rule does not apply.  The list is the
        rule's own, with earlier values of the item.
    value : callable
        Returns the number that is checked.
    takes_range : bool
        Whether the expectation needs a range.
    example : str
        A range, for messages.
    is_share : bool
        Whether its value is from 0 to 1.
    missing : str
        Advice for when there was nothing to check.
    """

    kinds: frozenset[str]
    look: Look
    value: Callable[[Row], float]
    takes_range: bool = True
    example: str = ""
    is_share: bool = False
    missing: str = ""


def _norm(row: Row) -> float:
    return math.inf if row.nans else row.norm


def _in_range(words: str, value: Callable[[Row], float]) -> Look:
    def look(expected: Expectation, observation: Observation, past: list[float]) -> str | None:
        number = value(observation.row)
        if math.isnan(number) and not observation.row.nans:
            return None  # not measured
        if expected.range and number in expected.range:
            _remember(past, number, expected.window)
            return ""
        return f"{words} {text(number, expected.range)}"

    return look


def _update_ratio(expected: Expectation, observation: Observation, past: list[float]) -> str | None:
    # A bias starts at zero and moves by more than its size, so the ratio is meaningful for weights only.
    return _RATIO(expected, observation, past) if len(observation.shape) > 1 else None


def _dead_units(expected: Expectation, observation: Observation, past: list[float]) -> str | None:
    return None if math.isnan(observation.row.dead) else _DEAD(expected, observation, past)


def _no_nan(_: Expectation, observation: Observation, __: list[float]) -> str:
    row = observation.row
    return f"{row.nans:,} of {row.count:,} values are NaN or infinite" if row.nans else ""


def _growth(expected: Expectation, observation: Observation, past: list[float]) -> str:
    if observation.row.nans:
        return f"gradient norm {math.inf}"
    usual = median(past) if len(past) >= FEW else 0.0
    norm = _norm(observation.row)
    if usual and expected.range and norm / usual not in expected.range:
        return f"gradient norm {norm:.4g} is {norm / usual:.4g} times the median of the last {len(past)}, {usual:.4g}"
    _remember(past, norm, max(expected.window, FEW))
    return ""


def _not_still(words: str) -> Callable[[Expectation, Observation, list[float]], str]:
    def look(expected: Expectation, observation: Observation, past: list[float]) -> str:
        if observation.row.norm > 0:
            past.clear()
            return ""
        past.append(0.0)
        return f"{words} in {len(past)} steps in a row" if len(past) >= expected.window else ""

    return look


def decrease(losses: list[float], limits: Range | None) -> str:
    """Return the problem with the losses: the last quarter must be below the first, by a share of it if given."""
    condition = f"expected loss_decreases={limits.text if limits else True}"
    if bad := [loss for loss in losses if not math.isfinite(loss)]:
        return f"loss: {len(bad)} of {len(losses)} losses are not finite, the first of them {bad[0]}; {condition}"
    quarter = max(1, len(losses) // 4)
    first, last = fmean(losses[:quarter]), fmean(losses[-quarter:])
    share = (first - last) / abs(first) if first else 0.0 - last
    if share > 0 if limits is None else share in limits:
        return ""
    how = f"of {len(losses)} losses, the first {quarter} have the mean {first:.4g}, the last {quarter} {last:.4g}"
    return f"loss: {how}; {condition}" + (f", got {share:.2%}" if limits else "")


def _remember(past: list[float], number: float, window: int) -> None:
    past.append(number)
    del past[:-window]


def text(number: float, limits: Range | None) -> str:
    """Return a value in the notation of its range: as a percentage if the range is one."""
    return f"{number:.2%}" if limits and limits.is_share else f"{number:.4g}"


_RATIO = _in_range("update over weight", lambda row: row.ratio)
_DEAD = _in_range("dead units", lambda row: row.dead)
_GRADIENT_MISSING = "no gradient was read; track_parameters(model) or track_layers(model) reads them"
_UPDATE_MISSING = "no update was read; it needs track_parameters(model), and an optimizer or rec.step()"
_RATIO_MISSING = (
    "no update of a weight (two dimensions or more, not zero) was read; it needs track_parameters(model), and an "
    "optimizer or rec.step()"
)
_OUTPUT_MISSING = "no output of a layer was read; it needs track_layers(model)"

RULES = {
    "no_nan": ExpectationRule(
        ANYTHING,
        _no_nan,
        lambda row: float(row.nans),
        takes_range=False,
        missing="nothing was read; track_layers(model) or track_parameters(model) reads tensors",
    ),
    "grad_norm": ExpectationRule(
        GRADIENTS,
        _in_range("gradient norm", _norm),
        _norm,
        example="<1e3",
        missing=_GRADIENT_MISSING,
    ),
    "grad_growth": ExpectationRule(GRADIENTS, _growth, _norm, example="<100", missing=_GRADIENT_MISSING),
    "dead_units": ExpectationRule(
        frozenset({"output"}),
        _dead_units,
        lambda row: row.dead,
        example="<5%",
        is_share=True,
        missing="no output of a layer, of two dimensions or more, was read; it needs track_layers(model)",
    ),
    "update_ratio": ExpectationRule(
        frozenset({"update"}),
        _update_ratio,
        lambda row: row.ratio,
        example="1e-5..1e-1",
        missing=_RATIO_MISSING,
    ),
    "output_norm": ExpectationRule(
        frozenset({"output", "tensor"}),
        _in_range("norm", _norm),
        _norm,
        example="<1e4",
        missing=_OUTPUT_MISSING,
    ),
    "gradients_arrive": ExpectationRule(
        frozenset({"parameter gradient"}),
        _not_still("the gradient was zero, not finite, or did not come"),
        _norm,
        takes_range=False,
        missing=_GRADIENT_MISSING,
    ),
    "parameters_move": ExpectationRule(
        frozenset({"update"}),
        _not_still("the update was zero or not finite"),
        _norm,
        takes_range=False,
        missing=_UPDATE_MISSING,
    ),
    "loss": ExpectationRule(
        frozenset({"loss"}),
        _in_range("loss", lambda row: row.mean),
        lambda row: row.mean,
        example="<10",
        missing="pass it: rec.step(loss=loss)",
    ),
}
