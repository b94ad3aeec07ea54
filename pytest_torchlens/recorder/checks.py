"""Arguments, checked: an error names the argument, what it was, and what to give."""

from __future__ import annotations

import math
from typing import Any


def check_whole(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Check that it is a whole number, and neither too small nor too large.

    Raises
    ------
    ValueError
        If it is not.
    """
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):
        span = f"from {least} on" if most is None else f"from {least:,} to {most:,}"
        raise ValueError(f"{name}={value!r}: give a whole number {span}")


def check_positive(name: str, value: Any) -> None:
    """Check that it is a finite number above 0.

    Raises
    ------
    ValueError
        If it is not.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise ValueError(f"{name}={value!r}: give a number above 0")


def check_flags(**flags: Any) -> None:
    """Check that each is True or False.

    Raises
    ------
    TypeError
        If one is not.
    """
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name}={value!r}: give True or False")


def check_some(**flags: Any) -> None:
    """Check that each is True or False, and one of them True.

    Raises
    ------
    TypeError
        If one is neither.
    ValueError
        If all are False.
    """
    check_flags(**flags)
    if not any(flags.values()):
        raise ValueError(f"nothing is left to be tracked: {' and '.join(flags)} are all False")


def check_text(name: str, value: Any) -> None:
    """Check that it is a text.

    Raises
    ------
    TypeError
        If it is not.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r}: give a text")
