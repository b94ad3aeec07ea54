"""Parses the key ``input`` of a zoo file, and explains which constructor argument a model rejected."""

from __future__ import annotations

import inspect
import math
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING
from typing import Any

import torch

from pytest_torchlens.records import nearest
from pytest_torchlens.zoo.errors import ZooError
from pytest_torchlens.zoo.imports import named_function
from pytest_torchlens.zoo.yaml_lines import LinedDict
from pytest_torchlens.zoo.yaml_lines import check_keys

if TYPE_CHECKING:
    from collections.abc import Mapping


_REFUSED = re.compile(r"(?P<callee>\S+?)(\.__init__)?\(\) got an unexpected keyword argument '(?P<name>\w+)'")
_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def refused_argument(
    error: TypeError, model: str, kwargs: dict[str, Any], places: Mapping[str, str]
) -> ZooError | None:
    """Return an error that points at the line of the argument which a constructor refused; None if none of ours was."""
    found = _REFUSED.search(str(error))
    if found is None or found["name"] not in kwargs:
        return None
    name = found["name"]
    place = f"{places[name]}: " if name in places else ""
    known = _parameters(_callee(error, found["callee"]))
    hint = f": {nearest(name, known)}" if known else ""
    return ZooError(f"{place}'kwargs' of model {model!r}: {error}{hint}")


def _callee(error: TypeError, qualified_name: str) -> Callable[..., Any] | None:
    """Return what was called, from the names that the code which called it can see."""
    *_, (caller, _) = traceback.walk_tb(error.__traceback__)
    seen = (*caller.f_locals.values(), *caller.f_globals.values())
    called = (
        value for value in seen if isinstance(value, type | FunctionType)
    )  # what else may answer is imported by that
    return next((value for value in called if value.__qualname__ == qualified_name), None)


def _parameters(callee: Callable[..., Any] | None) -> list[str]:
    try:
        known = inspect.signature(callee).parameters if callee else {}
    except (TypeError, ValueError):  # of a builtin that does not tell
        known = {}
    return [name for name, parameter in known.items() if parameter.kind in _BY_KEYWORD]


FLOATS = ("float32", "float64", "float16", "bfloat16", "complex64", "complex128")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "bool")
FLOAT32 = torch.finfo(torch.float32)
"""Values of every dtype are drawn as float32."""
MOST_NUMBERS = 2**59
"""In a tensor, whose bytes PyTorch counts with 63 bits; a complex128 has 16."""

InputSpec = Any
"""A `TensorSpec`, a `FromFunction`, or a list or dict of such."""


@dataclass(frozen=True)
class TensorSpec:
    """One input tensor; its values lie in ``[low, high)``."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    low: float = 0.0
    high: float = 1.0


@dataclass(frozen=True)
class FromFunction:
    """An input that a function of the user's makes: called with the model, or with nothing."""

    text: str
    function: Callable[..., Any]

    def make(self, model: Any) -> Any:
        """Call the function."""
        return self.function(model) if _takes(self.function, model) else self.function()


def parse_input(value: Any, parent: LinedDict, key: str) -> InputSpec:
    """Return `value`, which stands under `key` of `parent`, with a specification in place of each tensor."""
    if isinstance(value, list):
        return [parse_input(item, parent, key) for item in value]
    if isinstance(value, str) and ":" in value:
        return _from_function(value, parent, key)
    if not isinstance(value, LinedDict):
        form = "{shape: [...]}, 'module:function', or a list or mapping of such"
        raise parent.error(key, f"expected {form}, not {value!r}")
    if "shape" in value or not all(map(_may_be_argument, value.values())):
        return _tensor(value, parent, key)
    if "range" in value or "dtype" in value:
        raise parent.error(key, "a tensor needs a 'shape'")
    return {name: parse_input(item, value, name) for name, item in value.items()}


def _may_be_argument(value: Any) -> bool:
    """Whether a value can stand for an argument: a mapping, a function, or a list of more than numbers."""
    if isinstance(value, str):
        return ":" in value
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(v, list | dict) for v in value))


def _from_function(text: str, parent: LinedDict, key: str) -> FromFunction:
    try:
        function = named_function(text, parent.path.parent)
    except ZooError as error:
        raise parent.error(key, str(error)) from error.__cause__
    try:
        fits = _takes(function, None) or _takes(function)
    except ValueError:
        raise parent.error(key, f"{text} does not tell what it takes: name a function written in Python") from None
    if not fits:
        signature = f"{text.rpartition(':')[2]}{inspect.signature(function)}"
        raise parent.error(key, f"{text} is called with the model, or with nothing, and {signature} needs more")
    return FromFunction(text, function)


def _takes(function: Callable[..., Any], *arguments: Any) -> bool:
    """Whether a function can be called with these arguments."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    return True


def _tensor(raw: LinedDict, parent: LinedDict, key: str) -> TensorSpec:
    check_keys(raw, ("shape", "dtype", "range"))
    if "shape" not in raw:
        raise parent.error(key, "a tensor needs a 'shape'")
    shape = raw["shape"]
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise raw.error("shape", f"'shape' is a list of sizes, not {shape!r}")
    if math.prod(max(1, size) for size in shape) > MOST_NUMBERS:
        raise raw.error("shape", f"'shape' is more than a tensor can have: {shape!r}")
    dtype = raw.get("dtype", "float32")
    if dtype not in FLOATS + INTEGERS:
        raise raw.error("dtype", f"unknown dtype {dtype!r}: {nearest(str(dtype), FLOATS + INTEGERS)}")
    if dtype == "bool" and "range" in raw:
        raise raw.error("range", "a tensor of dtype bool has no 'range': its values are False and True alike")
    low, high = _range(raw, dtype) if "range" in raw else (0.0, 1.0 if dtype in FLOATS else 2.0)
    return TensorSpec(tuple(shape), dtype, low, high)


def _range(raw: LinedDict, dtype: str) -> tuple[float, float]:
    bounds = raw["range"]
    match bounds:
        case [low, high] if {type(low), type(high)} <= {int, float} and -math.inf < low < high < math.inf:
            pass
        case _:
            raise raw.error("range", f"'range' is [low, high] with low < high, not {bounds!r}")
    least, most = _extent(dtype)
    if low < least or high > most + (dtype in INTEGERS) or high - low > FLOAT32.max:
        raise raw.error("range", f"'range' {bounds!r} does not fit dtype {dtype}, which holds {least} to {most}")
    first = math.ceil(low) if dtype in INTEGERS else low
    if first >= high:
        raise raw.error("range", f"'range' {bounds!r} holds no whole number, and dtype {dtype} no other")
    return float(first), float(high)


def _extent(dtype: str) -> tuple[float, float]:
    """Return the least and the greatest number that an input of a dtype may have."""
    kind = getattr(torch, dtype)
    if dtype in INTEGERS:
        return torch.iinfo(kind).min, torch.iinfo(kind).max
    most = min(torch.finfo(kind).max, FLOAT32.max)
    return -most, most
