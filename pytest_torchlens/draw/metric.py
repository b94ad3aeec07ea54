"""Gives each operation the number that its fill colour shows."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Container
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import fields
from typing import Any

from pytest_torchlens.draw.draw_options import ColorBy
from pytest_torchlens.draw.text import duration
from pytest_torchlens.records import Measurements
from pytest_torchlens.records import Operation
from pytest_torchlens.records import address_of
from pytest_torchlens.records import byte_size
from pytest_torchlens.records import nearest
from pytest_torchlens.records.options import OptionError

_FIELDS = {"time": "func_time_elapsed", "memory": "tensor_fsize", "params": "num_params_total"}
MEASURED_METRICS = ("flops",)
"""Metrics that need a measurement."""
METRICS = (
    *_FIELDS,
    *MEASURED_METRICS,
    *(field.name for field in fields(Operation) if field.type in ("int", "float", "int | None")),
)
"""Metrics of a plain record."""
_WORDS = {value: key for key, value in _FIELDS.items()}
_OF_CALLS = {"time", *MEASURED_METRICS}
"""Metrics of a call, repeated in each operation that the call made."""
_OF_PARAMETERS = {"params", "num_params_trainable", "num_param_tensors"}
"""Metrics that operations with the same parameters share."""
_NO_CALLS = {"input", "output", "buffer", "constant"}
_WIDE = 100.0
"""Positive numbers further apart than this are shown on a logarithmic scale, with 0 at its low end."""


@dataclass(frozen=True)
class Metric:
    """A number for each operation, and its text.

    Attributes
    ----------
    name
        Name of the metric.
    values
        By label; an operation without one has no number.
    is_sum
        Whether the number of a node of several operations is their sum; else it is the largest.
    """

    name: str
    values: Mapping[str, float]
    is_sum: bool

    def of(self, operations: Iterable[Operation]) -> float | None:
        """Return the number of a node."""
        known = [op for op in operations if op.label in self.values]
        if not known:
            return None
        if not self.is_sum:
            return max((self.values[op.label] for op in known), key=lambda value: (math.isnan(value), value))
        if self.name in _OF_CALLS:
            known = list({op.call_id if op.call_id >= 0 else op.label: op for op in known}.values())
        if self.name in _OF_PARAMETERS:
            known = list(once_by_parameters(known))
        return sum(self.values[op.label] for op in known)

    def text(self, value: float) -> str:
        """Return a number with its unit."""
        if self.name == "time" and math.isfinite(value):
            return duration(value)
        if self.name == "memory" and math.isfinite(value):
            return byte_size(round(value))
        return f"{value:,.0f}" if value.is_integer() else f"{value:,.4g}"


@dataclass(frozen=True)
class Scale:
    """The range of a picture's numbers."""

    low: float
    high: float
    is_logarithmic: bool = False
    """Whether equal steps of colour are equal factors."""

    @classmethod
    def over(cls, values: Iterable[float]) -> Scale:
        """Return the scale that contains all finite values."""
        finite = [value for value in values if math.isfinite(value)] or [0.0]
        low, high = min(finite), max(finite)
        least = min((value for value in finite if value > 0), default=high)
        return cls(least, high, True) if low >= 0 and high > least * _WIDE else cls(low, high)

    def share(self, value: float) -> float:
        """Return the place of a value, from 0 (lowest) to 1 (highest); infinity and NaN are returned unchanged."""
        if not math.isfinite(value):
            return value
        if self.high == self.low:
            return 0.0
        if self.is_logarithmic:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def at(self, share: float) -> float:
        """Return the value at a share."""
        if self.is_logarithmic:
            return float(self.low * (self.high / self.low) ** share)
        return self.low + share * (self.high - self.low)


def once_by_parameters(operations: Iterable[Operation]) -> Iterable[Operation]:
    """Return one operation for each set of parameters, and all operations without parameters."""
    return {op.parent_param_addresses or op.label: op for op in operations}.values()


def metric(
    color_by: ColorBy,
    operations: tuple[Operation, ...],
    addresses: Container[str],
    measurements: Measurements | None = None,
) -> Metric | None:
    """Return the numbers of a metric; None without one.

    Parameters
    ----------
    color_by
        As in `DrawOptions`.
    operations
        The operations to color.
    addresses
        Addresses of the model's modules.
    measurements
        The costs of the pass; None if they were not measured.

    Raises
    ------
    OptionError
        If the metric does not exist, no layer has a number, a mapping has an unknown label, or the user's function
        raises.
    """
    if color_by is None:
        return None
    if color_by == "gradient_norm":
        return Metric("gradient norm", _gradient_norms(operations), is_sum=False)
    if color_by in MEASURED_METRICS:
        return Metric(color_by, _flops(operations, measurements), is_sum=True)
    if isinstance(color_by, str):
        return _of_field(color_by, operations)
    own = (
        _by_key(color_by, operations, addresses)
        if isinstance(color_by, Mapping)
        else _by_function(color_by, operations)
    )
    if operations and not own:
        raise OptionError(f"color_by: expected a number for at least one layer, got none from {color_by!r:.80}")
    name = getattr(color_by, "__name__", "").strip("<>")
    return Metric(name if name not in ("", "lambda") else "value", own, is_sum=False)


def _of_field(name: str, operations: tuple[Operation, ...]) -> Metric:
    field = _FIELDS.get(name, name)
    measured = [op for op in operations if name not in _OF_CALLS or op.layer_type not in _NO_CALLS]
    values = {op.label: getattr(op, field, None) for op in measured}
    numbers = {key: float(v) for key, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    if not numbers and values:
        known = [*(key for key, of in _FIELDS.items() if _is_there(of, operations)), "gradient_norm"]
        raise OptionError(
            f"color_by: expected a field with numbers in this history, got {name!r}; {nearest(name, known)}"
        )
    return Metric(_WORDS.get(field, field), numbers, is_sum=True)


def _is_there(field: str, operations: tuple[Operation, ...]) -> bool:
    return any(getattr(op, field, None) is not None for op in operations)


def _by_key(
    numbers: Mapping[str, float], operations: tuple[Operation, ...], addresses: Container[str]
) -> dict[str, float]:
    """Return numbers by label; keys may be labels, short labels, or addresses of bottom-level modules."""
    keys = {op.label: _keys(op, addresses) for op in operations}
    known = {key for names in keys.values() for key in names}
    for key in numbers:
        if key not in known:
            raise OptionError(f"color_by: expected labels of layers as keys, got {key!r}; {nearest(str(key), known)}")
    found = {label: next((key for key in names if key in numbers), None) for label, names in keys.items()}
    return {label: _number(numbers[key], label) for label, key in found.items() if key is not None}


def _keys(op: Operation, addresses: Container[str]) -> tuple[str, ...]:
    call = op.bottom_level_submodule_exited or ""
    names = (op.label, op.layer_label_w_pass, op.layer_label, op.layer_label_short, call, address_of(call, addresses))
    return tuple(filter(None, names))


def _by_function(function: Callable[[Any], float | None], operations: tuple[Operation, ...]) -> dict[str, float]:
    found = {}
    for op in operations:
        try:
            value = function(op)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise OptionError(f"the function given as color_by raised {reason}, for {op.label}") from error
        if value is not None:
            found[op.label] = _number(value, op.label)
    return found


def _number(value: Any, label: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise OptionError(f"color_by: expected a number for {label}, got {value!r}") from None


def _flops(operations: tuple[Operation, ...], measurements: Measurements | None) -> dict[str, float]:
    counts = measurements.operation_flops if measurements else ()
    if not counts:
        raise OptionError(
            NO_FLOPS if measurements is None else f"{FLOPS_UNCOUNTED}: {measurements.methods.get('operation_flops')}"
        )
    return {op.label: float(counts[op.call_id]) for op in operations if 0 <= op.call_id < len(counts)}


def _gradient_norms(operations: tuple[Operation, ...]) -> dict[str, float]:
    gradients = {op.label: getattr(op, "grad_contents", None) for op in operations}
    found = {label: float(gradient.norm()) for label, gradient in gradients.items() if gradient is not None}
    if not found:
        raise OptionError(NO_GRADIENT)
    return found


NO_FLOPS = (
    "color_by: expected measured FLOPs for 'flops', got none: "
    "call measure_forward_pass(model, x, history=history) before history.draw(color_by='flops')"
)
FLOPS_UNCOUNTED = "color_by: expected counted FLOPs for 'flops', got none"
NO_GRADIENT = (
    "expected saved gradients, got none: record with save_gradients=True and run a backward pass before drawing"
)
