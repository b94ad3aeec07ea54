"""Writes records as JSON and reads them back, with strict checks of fields and types."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import types
import typing
from functools import cache
from typing import Any
from typing import TypeVar

T = TypeVar("T")
_NO_NUMBERS = ("nan", "inf", "-inf")


def to_json(record: Any, *, indent: int | None = None) -> str:
    """Return a record as JSON text.

    Fields that hold their default are left out, except in classes that have ``WHOLE``: a report of 1,500 operations
    stays small.  Numbers that JSON lacks are text: ``"nan"``, ``"inf"``, ``"-inf"``.
    """
    return json.dumps(_plain(record), indent=indent, ensure_ascii=False, allow_nan=False)


def from_json(text: str, kind: type[T]) -> T:
    """Return the record of class `kind` that `text` holds.

    Raises
    ------
    ValueError
        If the text is not JSON, is nested too deeply, has a field that `kind` does not have, or a value of another
        type.
    """
    try:
        return typing.cast("T", _parse(json.loads(text), kind, kind.__name__))
    except RecursionError:
        raise ValueError(f"expected a {kind.__name__} as JSON, got text that is nested too deeply") from None


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        is_whole = getattr(value, "WHOLE", False)
        return {
            field.name: _plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if is_whole or getattr(value, field.name) != field.default
        }
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _parse(value: Any, kind: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _record(value, kind, where)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _any_of(value, inner, where)
    if origin is tuple:
        _expect(value, list, where)
        return tuple(_parse(item, inner[0], f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        _expect(value, dict, where)
        return {key: _parse(item, inner[1], f"{where}.{key}") for key, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _word(value, kind, where)
    if kind is float and (type(value) is int or value in _NO_NUMBERS):
        return float(value)
    _expect(value, kind, where)
    return value


def _record(value: Any, kind: Any, where: str) -> Any:
    _expect(value, dict, where)
    hints = _hints(kind)
    if unknown := set(value) - set(hints):
        raise ValueError(f"{where}: expected fields {', '.join(hints)}, got {sorted(unknown)[0]!r}")
    try:
        return kind(**{key: _parse(item, hints[key], f"{where}.{key}") for key, item in value.items()})
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from None


def _any_of(value: Any, kinds: tuple[Any, ...], where: str) -> Any:
    for kind in kinds:
        if kind is type(None):
            if value is None:
                return None
            continue
        try:
            return _parse(value, kind, where)
        except ValueError as error:
            last = error
    raise last


def _word(value: Any, kind: type[enum.Enum], where: str) -> enum.Enum:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(member.value for member in kind)
        raise ValueError(f"{where}: expected one of {known}, got {value!r}") from None


def _expect(value: Any, kind: Any, where: str) -> None:
    if type(value) is not kind:
        raise ValueError(f"{where}: expected {kind.__name__}, got {type(value).__name__}")
