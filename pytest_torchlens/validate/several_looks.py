"""Chooses between the verdicts on one part of several looks at a model, with the dispatcher watched and without."""

from __future__ import annotations

import dataclasses

from pytest_torchlens.records import Failure
from pytest_torchlens.records import PartVerdict
from pytest_torchlens.records import Status

_UNSETTLED = (Status.UNPROVEN, Status.FAILED)


def is_worse(one: PartVerdict, other: PartVerdict) -> bool:
    """Return whether one verdict is worse than another."""
    return worse(other, one) is one


def worse(one: PartVerdict, other: PartVerdict) -> PartVerdict:
    """Return the worse of two verdicts, the first if they are equally bad."""
    return max(one, other, key=lambda verdict: _UNSETTLED.index(verdict.status) if not all_settled([verdict]) else -1)


def all_ok(verdicts: list[PartVerdict]) -> bool:
    """Return whether no verdict failed or is unproven."""
    return all(verdict.status.ok for verdict in verdicts)


def all_settled(verdicts: list[PartVerdict]) -> bool:
    """Return whether no verdict failed or could not settle what it saw."""
    return not any(verdict.status in _UNSETTLED for verdict in verdicts)


def _failed_once(verdict: PartVerdict) -> PartVerdict:
    """Return a verdict whose failures say that two further runs did not fail."""
    failures = tuple(_seen_once(failure, verdict.name) for failure in verdict.failures)
    return dataclasses.replace(verdict, failures=failures)


def _seen_once(failure: Failure, part: str) -> Failure:
    message = f"{failure.message}, in the first of three runs only"
    if part == "observer":  # it blames the recording, which changed nothing in the third run
        return dataclasses.replace(failure, message=message, cause="", advice="")
    return dataclasses.replace(failure, message=message)


def settled(former: PartVerdict, plain: PartVerdict, again: PartVerdict) -> PartVerdict:
    """Return the verdict on a part that ran twice under the watch, `former` and `again`, and once without it."""
    if not is_worse(former, plain):
        return plain
    if not is_worse(again, plain):
        return _failed_once(former)
    if not former.failures or not all_settled([plain]):
        return plain
    reason = f"while the dispatcher was watched: {former.failures[0].message}"
    return dataclasses.replace(plain, reason=reason)
