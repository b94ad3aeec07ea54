"""Runs a model in train mode, which may not take its inputs; a subject puts each module back into its own mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pytest_torchlens.checks.inputs import Examples
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Subject

_T = TypeVar("_T")


def in_train_mode(subject: Subject, run: Callable[..., _T]) -> tuple[_T | None, str]:
    """Return what a run in train mode gives, and why there is none.

    A batch norm in train mode may not take one example, so a batch of two is tried, too.
    """
    try:
        return run(), ""
    except ModelRaisedError as error:
        first = error
    try:
        return run(*Examples(subject).batch(2)), ""
    except (ModelRaisedError, NotApplicableError):
        return None, f"in train mode {first}"
