"""Tests that bear our markers: what those say of a test is heeded when it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


class Marked:
    """Registered where there are such tests.

    Parameters
    ----------
    items
        The tests.
    """

    def __init__(self, items: list[pytest.Item]) -> None:
        self._items = set(items)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Give a test that is marked ``lens_expect`` a recorder, and fail one whose ``lens`` says what is not known.

        A worker of xdist, where this may be, has no usage errors.
        """
        if item not in self._items:
            return
        if item.get_closest_marker("lens_expect"):
            from pytest_torchlens.plugin.training import give_recorder

            give_recorder(item)
        if item.get_closest_marker("lens"):
            from pytest_torchlens.plugin.marker import check

            check(item)
