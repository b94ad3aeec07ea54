"""Formats words, numbers, shapes and ids as the picture and the report show them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_torchlens.records import count_text

if TYPE_CHECKING:
    from pytest_torchlens.records import Operation


_LONGEST_NAME = 80
_FEW_STEPS = 3


def duration(seconds: float) -> str:
    """Return a time as text: ``12 µs``, ``3.4 ms``, ``1.2 s``."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:,.3g} {unit}"
    return f"{seconds * 1e9:,.0f} ns"


def shape_text(shape: tuple[int, ...]) -> str:
    """Return a shape as the paper writes it: ``1x3x224x224``, ``x10`` for a vector, ``scalar`` for none."""
    if not shape:
        return "scalar"
    return "x".join(map(str, shape)) if len(shape) > 1 else f"x{shape[0]}"


def steps_text(steps: tuple[str, ...]) -> str:
    """Return how many steps there are, and the first: ``2 steps: sin, sum``, ``9 steps: sin, mul, sum and 6 more``."""
    more = f" and {len(steps) - _FEW_STEPS} more" if len(steps) > _FEW_STEPS else ""
    return f"{count_text(len(steps), 'step')}: {', '.join(steps[:_FEW_STEPS])}{more}"


def short_place(operation: Operation) -> str:
    """Return the source line of an operation, with no more of its path than the file and its folder."""
    place = operation.source_place
    if place is None:
        return operation.source_line
    return str(replace(place, file="/".join(place.file.replace("\\", "/").split("/")[-2:])))


def magnitude(count: float) -> str:
    """Return a number in three digits or so: ``25.6M``, ``4.1B``."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)


def shorten(text: str, limit: int = _LONGEST_NAME, gap: str = "…") -> str:
    """Return `text`; if it is longer than `limit` characters, without its middle."""
    if len(text) <= limit:
        return text
    kept = limit - len(gap)
    tail = kept // 2
    return text[: kept - tail] + gap + text[len(text) - tail :]


def in_ascii(text: str) -> str:
    """Return text with escapes for all characters that are not ASCII."""
    return text.encode("ascii", "backslashreplace").decode()


def printable(text: str) -> str:
    r"""Return `text` with escapes (``\x1b``, ``\n``) for line breaks and characters that XML cannot hold."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def node_id(operation: Operation) -> str:
    """Return the id of an operation's node in the drawing: safe in SVG, HTML and a URL's fragment."""
    return "op-" + id_part(operation.label)


def layer_id(operation: Operation) -> str:
    """Return the id of the node of all passes of an operation's layer."""
    return "op-" + id_part(operation.layer_label)


def module_id(call: str) -> str:
    """Return the id of a module call (``"features"``, ``"cell:2"``) in the drawing."""
    return "module-" + id_part(call)


def id_part(text: str) -> str:
    """Return `text` in letters, digits, ``_``, ``.`` and ``-``; different texts stay different."""
    return "".join(map(_id_char, text))


def _id_char(char: str) -> str:
    if char == ":":
        return "."
    if char == "_" or (char.isascii() and char.isalnum()):
        return char
    return f"-{ord(char):x}-"
