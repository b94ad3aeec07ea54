"""Parses the key ``input`` of a zoo file, and names the constructor argument that a model rejected."""

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
from pytest_torchlens.zoo.imports import load_function
from pytest_torchlens.zoo.yaml_lines import LinedDict
from pytest_torchlens.zoo.yaml_lines import check_keys
from pytest_torchlens.zoo.yaml_lines import one_of

if TYPE_CHECKING:
    from collections.abc import Mapping


FLOATS = ("float32", "float64", "float16", "bfloat16", "complex64", "complex128")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "bool")
FLOAT32 = torch.finfo(torch.float32)
"""Values of every dtype are drawn as float32."""
MOST_NUMBERS = 2**59
"""Numbers in a tensor: PyTorch counts its bytes with 63 bits, and a complex128 has 16 bytes."""
NO_SHAPE = "a tensor needs a shape, such as shape: [1, 3, 224, 224]"
InputSpec = Any
"""A `TensorSpec`, a `FromFunction`, a `PythonValue`, or a list or dict of these."""


@dataclass(frozen=True)
class TensorSpec:
    """One input tensor; its values lie in ``[low, high)``, or are `values`, nested lists of the tensor's shape."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    low: float = 0.0
    high: float = 1.0
    values: Any = None


@dataclass(frozen=True)
class FromFunction:
    """An input that a user's function makes; it is called with the model, or without arguments."""

    text: str
    function: Callable[..., Any]

    def make(self, model: Any) -> Any:
        """Call the function."""
        return self.function(model) if _accepts(self.function, model) else self.function()


@dataclass(frozen=True)
class PythonValue:
    """An input that is a number, a text, a truth value or None, or a list or dict of such."""

    value: Any


def parse_input(value: Any, parent: LinedDict, key: str) -> InputSpec:
    """Return `value`, the value of `key` in `parent`, with each tensor replaced by a `TensorSpec`."""
    if isinstance(value, list):
        return [parse_input(item, parent, key) for item in value]
    if isinstance(value, str) and ":" in value:
        return _from_function(value, parent, key)
    if not isinstance(value, LinedDict):
        form = "{shape: [...]}, {tensor: [...]}, {value: ...}, 'module:function', or a list or mapping of such"
        raise parent.error(key, f"{key}: expected {form}, got {value!r}")
    if list(value) == ["value"] and _is_plain(value["value"]):
        return PythonValue(_without_lines(value["value"]))
    if _are_numbers(value.get("tensor")):
        return _given_tensor(value)
    if "shape" in value or not all(map(_may_be_argument, value.values())):
        return _tensor(value, parent, key)
    if "range" in value or "dtype" in value:
        raise parent.error(key, f"{key}: {NO_SHAPE}")
    return {name: parse_input(item, value, name) for name, item in value.items()}


def _is_plain(value: Any) -> bool:
    """Whether a value specifies no tensor and no function."""
    if isinstance(value, dict):
        return "shape" not in value and all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return not (isinstance(value, str) and ":" in value)


def _without_lines(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_lines(item) for key, item in value.items()}
    return [_without_lines(item) for item in value] if isinstance(value, list) else value


def _are_numbers(value: Any) -> bool:
    """Whether a value is a list of numbers, or of such lists."""
    items = value if isinstance(value, list) else []
    return bool(items) and all(_are_numbers(item) or type(item) in (int, float, bool) for item in items)


def _given_tensor(raw: LinedDict) -> TensorSpec:
    check_keys(raw, ("tensor", "dtype"))
    dtype = one_of(raw, "dtype", FLOATS + INTEGERS) if "dtype" in raw else None
    try:
        tensor = torch.tensor(raw["tensor"], dtype=getattr(torch, dtype) if dtype else None)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise raw.error("tensor", f"tensor: expected lists of numbers of one length: {error}") from None
    return TensorSpec(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), values=raw["tensor"])


def _may_be_argument(value: Any) -> bool:
    """Whether a value can specify an argument: a mapping, a function, or a list of more than numbers."""
    if isinstance(value, str):
        return ":" in value
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(v, list | dict) for v in value))


def _from_function(text: str, parent: LinedDict, key: str) -> FromFunction:
    try:
        function = load_function(text, parent.path.parent)
    except ZooError as error:
        raise parent.error(key, str(error)) from error.__cause__
    try:
        fits = _accepts(function, None) or _accepts(function)
    except ValueError:
        raise parent.error(
            key, f"{key}: expected a function written in Python, got {text}, which has no signature"
        ) from None
    if not fits:
        signature = f"{text.rpartition(':')[2]}{inspect.signature(function)}"
        raise parent.error(
            key, f"{key}: expected a function that takes the model or no argument, got {signature} in {text}"
        )
    return FromFunction(text, function)


def _accepts(function: Callable[..., Any], *arguments: Any) -> bool:
    """Whether a function can be called with these arguments."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    return True


def _tensor(raw: LinedDict, parent: LinedDict, key: str) -> TensorSpec:
    check_keys(raw, ("shape", "dtype", "range"))
    if "shape" not in raw:
        raise parent.error(key, f"{key}: {NO_SHAPE}")
    shape = raw["shape"]
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise raw.error("shape", f"shape: expected a list of whole numbers from 0, got {shape!r}")
    if math.prod(max(1, size) for size in shape) > MOST_NUMBERS:
        raise raw.error("shape", f"shape: expected at most {MOST_NUMBERS:,} numbers, got {shape!r}")
    dtype = one_of(raw, "dtype", FLOATS + INTEGERS) if "dtype" in raw else "float32"
    if dtype == "bool" and "range" in raw:
        raise raw.error("range", "range: a tensor of dtype bool takes none, its values are False and True; remove it")
    low, high = _range(raw, dtype) if "range" in raw else (0.0, 1.0 if dtype in FLOATS else 2.0)
    return TensorSpec(tuple(shape), dtype, low, high)


def _range(raw: LinedDict, dtype: str) -> tuple[float, float]:
    bounds = raw["range"]
    match bounds:
        case [low, high] if {type(low), type(high)} <= {int, float} and -math.inf < low < high < math.inf:
            pass
        case _:
            raise raw.error("range", f"range: expected [low, high] with low < high, got {bounds!r}")
    least, most = _limits(dtype)
    if low < least or high > most + (dtype in INTEGERS) or high - low > FLOAT32.max:
        raise raw.error("range", f"range: expected numbers from {least} to {most} for dtype {dtype}, got {bounds!r}")
    first = math.ceil(low) if dtype in INTEGERS else low
    if first >= high:
        raise raw.error("range", f"range: expected one that contains a whole number for dtype {dtype}, got {bounds!r}")
    return float(first), float(high)


def _limits(dtype: str) -> tuple[float, float]:
    """Return the least and the greatest number that an input of a dtype can hold."""
    kind = getattr(torch, dtype)
    if dtype in INTEGERS:
        return torch.iinfo(kind).min, torch.iinfo(kind).max
    most = min(torch.finfo(kind).max, FLOAT32.max)
    return -most, most


_UNEXPECTED_ARGUMENT = re.compile(
    r"(?P<callee>\S+?)(\.__init__)?\(\) got an unexpected keyword argument '(?P<name>\w+)'"
)
"""Python's message; the exception has no field for the name."""
_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def argument_error(error: TypeError, model: str, kwargs: dict[str, Any], places: Mapping[str, str]) -> ZooError | None:
    """Return an error that names the line of the rejected argument; None if the zoo file did not set the argument."""
    found = _UNEXPECTED_ARGUMENT.search(str(error))
    if found is None or found["name"] not in kwargs:
        return None
    name = found["name"]
    known = _parameters(_callee(error, found["callee"]))
    hint = f": {nearest(name, known)}" if known else ""
    return ZooError(f"'kwargs' of model {model!r}: {error}{hint}", places.get(name, ""))


def _callee(error: TypeError, qualified_name: str) -> Callable[..., Any] | None:
    """Return the called function or class, by looking its name up in the scope of the calling code."""
    *_, (caller, _) = traceback.walk_tb(error.__traceback__)
    visible = (*caller.f_locals.values(), *caller.f_globals.values())
    # Other objects may import something when asked for `__qualname__`.
    callables = (value for value in visible if isinstance(value, type | FunctionType))
    return next((value for value in callables if value.__qualname__ == qualified_name), None)


def _parameters(callee: Callable[..., Any] | None) -> list[str]:
    try:
        known = inspect.signature(callee).parameters if callee else {}
    except (TypeError, ValueError):  # a builtin without a signature
        known = {}
    return [name for name, parameter in known.items() if parameter.kind in _BY_KEYWORD]
