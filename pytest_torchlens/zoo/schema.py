"""The keys of a zoo file, and what their values may be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any

from pytest_torchlens.records import nearest
from pytest_torchlens.zoo.lines import LinedDict

if TYPE_CHECKING:
    from collections.abc import Callable

FLOATS = ("float32", "float64", "float16", "bfloat16", "complex64", "complex128")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "bool")
WEIGHTS = ("random", "init", "pretrained")

InputSpec = Any
"""A `TensorSpec`, or a list or dict of such: what stands under the key ``input``."""


@dataclass(frozen=True)
class TensorSpec:
    """One input tensor; its values lie in ``[low, high)``."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    low: float = 0.0
    high: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How one model is built and called."""

    input: InputSpec = None
    """A tensor is the one argument, a list the positional arguments, a mapping the keyword arguments.

    None asks the provider.
    """
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the model's constructor."""
    weights: str = "random"
    seed: int = 0
    skip: str | None = None
    xfail: str | None = None


def parse_settings(raw: LinedDict) -> dict[str, Any]:
    """Return the checked settings that `raw` holds, as keyword arguments of `Settings`."""
    check_keys(raw, _PARSERS)
    return {key: _PARSERS[key](raw, key) for key in raw}


def check_keys(raw: LinedDict, known: Any) -> None:
    """Refuse a key that is not known, naming the nearest that is."""
    for key in raw:
        if key not in known:
            raise raw.error(key, f"unknown key {key!r}: {nearest(str(key), known)}")


def _input(raw: LinedDict, key: str) -> InputSpec:
    return None if raw[key] is None else parse_input(raw[key], raw, key)


def parse_input(value: Any, parent: LinedDict, key: str) -> InputSpec:
    """Return `value`, which stands under `key` of `parent`, with a `TensorSpec` in place of each tensor."""
    if isinstance(value, list):
        return [parse_input(item, parent, key) for item in value]
    if not isinstance(value, LinedDict):
        raise parent.error(key, f"expected {{shape: [...]}}, or a list or mapping of such, not {value!r}")
    if "shape" in value or not all(map(_may_be_argument, value.values())):
        return _tensor(value, parent, key)
    if "range" in value or "dtype" in value:
        raise parent.error(key, "a tensor needs a 'shape'")
    return {name: parse_input(item, value, name) for name, item in value.items()}


def _may_be_argument(value: Any) -> bool:
    """Whether a value can stand for an argument: a mapping, or a list of more than numbers."""
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(v, list | dict) for v in value))


def _tensor(raw: LinedDict, parent: LinedDict, key: str) -> TensorSpec:
    check_keys(raw, ("shape", "dtype", "range"))
    if "shape" not in raw:
        raise parent.error(key, "a tensor needs a 'shape'")
    shape = raw["shape"]
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise raw.error("shape", f"'shape' is a list of sizes, not {shape!r}")
    dtype = raw.get("dtype", "float32")
    if dtype not in FLOATS + INTEGERS:
        raise raw.error("dtype", f"unknown dtype {dtype!r}: {nearest(str(dtype), FLOATS + INTEGERS)}")
    low, high = _range(raw, 1 if dtype in FLOATS else 2)
    return TensorSpec(tuple(shape), dtype, low, high)


def _range(raw: LinedDict, default_high: int) -> tuple[float, float]:
    bounds = raw.get("range", [0, default_high])
    match bounds:
        case [int() | float() as low, int() | float() as high] if -math.inf < low < high < math.inf:
            return float(low), float(high)
    raise raw.error("range", f"'range' is [low, high] with low < high, not {bounds!r}")


def _kwargs(raw: LinedDict, key: str) -> dict[str, Any]:
    if not isinstance(raw[key], dict) or not all(isinstance(name, str) for name in raw[key]):
        raise raw.error(key, f"{key!r} is a mapping of constructor arguments, not {raw[key]!r}")
    return dict(raw[key])


def _weights(raw: LinedDict, key: str) -> str:
    if raw[key] not in WEIGHTS:
        raise raw.error(key, f"{key!r} is one of {', '.join(WEIGHTS)}, not {raw[key]!r}")
    return str(raw[key])


def _seed(raw: LinedDict, key: str) -> int:
    if type(raw[key]) is not int or raw[key] < 0:
        raise raw.error(key, f"{key!r} is a whole number from 0, not {raw[key]!r}")
    return int(raw[key])


def _reason(raw: LinedDict, key: str) -> str | None:
    if raw[key] is None:
        return None
    if not isinstance(raw[key], str) or not raw[key].strip():
        raise raw.error(key, f"{key!r} is the reason, in words, not {raw[key]!r}")
    return str(raw[key])


_PARSERS: dict[str, Callable[[LinedDict, str], Any]] = {
    "input": _input,
    "kwargs": _kwargs,
    "weights": _weights,
    "seed": _seed,
    "skip": _reason,
    "xfail": _reason,
}
