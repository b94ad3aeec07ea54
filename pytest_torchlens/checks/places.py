"""Finds the first operation in which two recorded passes differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pytest_torchlens.capture import Call
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import align


class Pair(NamedTuple):
    """Numbers of two calls that do the same in two passes; None where only one pass makes the call."""

    one: int | None
    other: int | None


def pairs_of(one: ModelHistory, other: ModelHistory) -> list[Pair]:
    """Return the calls of two passes side by side, in the order of the pass."""
    firsts, seconds = one.recording.calls, other.recording.calls
    if [*map(_kind, firsts)] == [*map(_kind, seconds)]:
        return [Pair(number, number) for number in range(len(firsts))]
    alignment = align(one.operations, other.operations)
    found = [
        Pair(first.call_id if first else None, second.call_id if second else None)
        for first, second in ((pair.first, pair.second) for pair in alignment.pairs)
    ]
    return [pair for pair in dict.fromkeys(found) if _is_call(pair.one) or _is_call(pair.other)]


def _is_call(number: int | None) -> bool:
    return number is not None and number >= 0


def _kind(call: Call) -> tuple[str, str]:
    return call.info.name, call.module.address if call.module else ""


def differing(one: ModelHistory, other: ModelHistory) -> Iterator[Pair]:
    """Yield the pairs of calls whose outputs are not bit for bit the same, and calls that only one pass made."""
    for pair in pairs_of(one, other):
        if pair.one is None or pair.other is None:
            yield pair
            continue
        first, second = one.recording.calls[pair.one], other.recording.calls[pair.other]
        if first.uninitialised or second.uninitialised:
            continue
        if [(value.fingerprint, value.shape, value.dtype) for value in first.outputs] != [
            (value.fingerprint, value.shape, value.dtype) for value in second.outputs
        ]:
            yield pair
