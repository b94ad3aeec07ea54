"""Deadlines that a test sets itself, to which the time for validation must not count."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    import pytest

_SETTINGS = "_hypothesis_internal_use_settings"


def lift_deadline(item: pytest.Item) -> None:
    """Let each example of a hypothesis test take as long as it does."""
    test: Any = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)
    own = getattr(test, _SETTINGS, None)
    if own is not None and own.deadline is not None:
        from hypothesis import settings

        setattr(test, _SETTINGS, settings(own, deadline=None))
