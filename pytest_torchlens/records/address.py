"""Which module a module call is of."""

from __future__ import annotations

from collections.abc import Container


def address_of(call: str, known: Container[str]) -> str:
    """Return the address in a module call's name, ``"cell"`` or ``"cell:2"``; an address may hold a colon."""
    return call if call in known else call.rpartition(":")[0] or call
