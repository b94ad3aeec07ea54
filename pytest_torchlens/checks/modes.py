"""Puts a model into train or eval mode for some passes, and each module back into its own mode afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from typing import TypeVar

from torch import nn

from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.checks.inputs import Examples
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Subject

_T = TypeVar("_T")


@contextlib.contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Put each module back into its mode at the end."""
    modes = [(module, module.training) for _, module in named_modules(model)]
    try:
        yield
    finally:
        for module, mode in modes:
            if module.training != mode:
                module.training = mode


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
