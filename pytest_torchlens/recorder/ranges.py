"""Ranges as people write them: ``<1e3``, ``>=0``, ``<5%``, ``1e-5..1e-1``."""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass

COMPARE = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
_ONE = re.compile(r"\s*(<=|>=|<|>)\s*(\S+)\s*")
_TWO = re.compile(r"\s*(\S+?)\s*\.\.\s*(\S+)\s*")


@dataclass(frozen=True)
class Range:
    """A range of numbers; what is not finite is in none.

    Attributes
    ----------
    text : str
        As it was written.
    bounds : tuple of (str, float)
        Comparisons that all have to hold.
    """

    text: str
    bounds: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, name: str, text: object) -> Range:
        """Read a range.

        Raises
        ------
        ValueError
            If it is none.
        """
        bounds = _bounds(text) if isinstance(text, str) else None
        if not bounds or any(math.isnan(bound) for _, bound in bounds):
            raise ValueError(f"{name}={text!r} is no range: write '<1e3', '>=0.5', '<5%' or '1e-5..1e-1'")
        if len(bounds) > 1 and bounds[0][1] > bounds[1][1]:
            raise ValueError(f"{name}={text!r}: the range is empty, its lower end comes first")
        return cls(str(text).strip(), bounds)

    def __contains__(self, value: float) -> bool:
        return math.isfinite(value) and all(COMPARE[sign](value, bound) for sign, bound in self.bounds)

    @property
    def is_share(self) -> bool:
        """Whether it is in percent."""
        return "%" in self.text


def _bounds(text: str) -> tuple[tuple[str, float], ...] | None:
    try:
        if found := _ONE.fullmatch(text):
            return ((found[1], _number(found[2])),)
        if found := _TWO.fullmatch(text):
            return ((">=", _number(found[1])), ("<=", _number(found[2])))
    except ValueError:
        pass
    return None


def _number(text: str) -> float:
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)
