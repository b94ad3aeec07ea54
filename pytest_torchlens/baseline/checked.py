"""Checks values of a file that anybody may have edited: each function returns its value, or raises `ValueError`.

`where` names the value in the message.
"""

from __future__ import annotations

import re
from typing import Any
from typing import TypeVar

T = TypeVar("T")
UNREADABLE = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")
"""Control characters, marks of writing direction, and lone surrogates, which UTF-8 cannot write."""
_LONGEST_SIZE = 2**62
_DIGEST = re.compile(r"[0-9a-z_:.(), \[\]]{0,200}")


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object's pairs as a dict; no name may occur twice."""
    found = {as_text(name, "a name"): value for name, value in pairs}
    if len(found) < len(pairs):
        raise ValueError("expected each name once in a table, got one twice")
    return found


def refuse_constant(name: str) -> float:
    """Refuse NaN and the infinities, which JSON does not have."""
    raise ValueError(f"expected a finite number, got {name}")


def check_fields(raw: Any, where: str, names: tuple[str, ...], more: tuple[str, ...] = ()) -> None:
    """Check that a dict has the fields `names`, perhaps those of `more`, and no others."""
    missing, unknown = set(names) - set(as_dict(raw, where)), set(raw) - {*names, *more}
    if missing or unknown:
        word = "lacks" if missing else "has an unknown"
        raise ValueError(f"{where} {word} {min(missing or unknown)!r:.80}")


def expect(value: Any, kind: type[T], where: str) -> T:
    """Return a value of exactly this class."""
    if type(value) is not kind:
        raise ValueError(f"{where!r:.80}: expected {kind.__name__}, got {type(value).__name__}")
    return value


def as_dict(value: Any, where: str) -> dict[str, Any]:
    """Return a dict."""
    return expect(value, dict, where)


def as_list(value: Any, where: str) -> list[Any]:
    """Return a list."""
    return expect(value, list, where)


def as_text(value: Any, where: str) -> str:
    """Return a text without characters that terminals interpret."""
    if UNREADABLE.search(expect(value, str, where)):
        raise ValueError(f"{where!r:.80}: {value!r:.80} has a character that is not allowed")
    return str(value)


def as_size(value: Any, where: str) -> int:
    """Return a whole number of at most 62 bits."""
    if not -_LONGEST_SIZE < expect(value, int, where) < _LONGEST_SIZE:
        raise ValueError(f"{where!r:.80}: expected a 62-bit number, got {value}")
    return int(value)


def as_count(value: Any, where: str) -> int:
    """Return a whole number from 0."""
    if as_size(value, where) < 0:
        raise ValueError(f"{where!r:.80}: expected 0 or more, got {value}")
    return int(value)


def as_row(value: Any, where: str, *counts: int) -> list[Any]:
    """Return a copy of a list that has one of these lengths."""
    if len(as_list(value, where)) not in counts:
        raise ValueError(f"{where!r:.80}: expected a row of {' or '.join(map(str, counts))} entries, got {len(value)}")
    return list(value)


def as_digest(value: Any, where: str) -> str:
    """Return a digest, as `fingerprint` makes it."""
    if not _DIGEST.fullmatch(as_text(value, where)):
        raise ValueError(f"{where!r:.80}: expected a digest, got {value!r:.80}")
    return str(value)
