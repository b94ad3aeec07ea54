"""Amounts of memory as people write them."""

from __future__ import annotations

import re
from typing import Any

_UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_FORM = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)


def bytes_of(text: Any) -> int:
    """Return bytes: ``"8 GiB"`` (also ``8G`` and ``8GB``) is 8 times 1024 cubed; a number is bytes.

    Raises
    ------
    ValueError
        If `text` says no amount above zero.
    """
    found = _FORM.fullmatch(str(text)) if type(text) in (str, int, float) else None
    amount = int(float(found[1]) * _UNITS[found[2].upper()]) if found else 0
    if amount <= 0:
        raise ValueError(f"expected an amount of memory as '8 GiB' or '500 MiB', not {text!r}")
    return amount
