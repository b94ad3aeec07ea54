"""Which module a module call is of."""

from __future__ import annotations

from collections.abc import Container


def address_of(call: str, known: Container[str]) -> str:
    """Return the address in a module call's name, ``"cell"`` or ``"cell:2"``; an address may hold a colon."""
    return call if call in known else call.rpartition(":")[0] or call


def pass_of(call: str, known: Container[str]) -> int:
    """Return which call of its module a module call is, from 1."""
    number = call.removeprefix(address_of(call, known)).removeprefix(":")
    return int(number) if number.isdecimal() else 1
