"""The same call with another number among its arguments."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from pytest_torchlens.capture import Call
from pytest_torchlens.capture.functions import is_of_torch

_INSTEAD = (1, 0, 0.5, 2)


def other_numbers(call: Call) -> Iterator[tuple[str, int | float, Call]]:
    """Yield place and value of each number that a function of PyTorch was given, and the call with another."""
    if not is_of_torch(call.info.func):
        return
    for at, number in enumerate(call.args):
        for instead in _instead_of(number):
            yield str(at), number, _with(call, (*call.args[:at], instead, *call.args[at + 1 :]), call.kwargs)
    for name, number in call.kwargs.items():
        for instead in _instead_of(number):
            yield name, number, _with(call, call.args, {**call.kwargs, name: instead})


def _instead_of(number: object) -> list[int | float]:
    if type(number) is int:
        return [other for other in _INSTEAD if type(other) is int and other != number]
    return [float(other) for other in _INSTEAD if other != number] if type(number) is float else []


def _with(call: Call, args: tuple[object, ...], kwargs: dict[str, object]) -> Call:
    other = copy.copy(call)
    other.args, other.kwargs = args, kwargs
    return other
