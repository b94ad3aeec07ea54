"""Reads and checks the marker ``lens(...)``, and applies ``lens`` and ``lens_expect`` when a test is set up."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_torchlens.plugin.options import AUTOTRACE_MODES
from pytest_torchlens.plugin.options import AUTOTRACE_VALUES
from pytest_torchlens.records.options import Option
from pytest_torchlens.records.options import check_options
from pytest_torchlens.records.options import choice


def marker_options(item: pytest.Item) -> dict[str, Any]:
    """Return the options that an item's markers set; the nearest marker wins.

    Raises
    ------
    pytest.UsageError
        If a marker has a positional argument, an unknown option, or an invalid value.
    """
    found: dict[str, Any] = {}
    for mark in item.iter_markers("lens"):
        try:
            if mark.args:
                raise ValueError(f"expected keywords such as autotrace='off', got {mark.args[0]!r:.80}")
            check_options(MARKER_OPTIONS, mark.kwargs)
        except ValueError as error:
            raise pytest.UsageError(f"{item.nodeid}: marker lens: {error}") from None
        found = {**mark.kwargs, **found}
    return found


def check(item: pytest.Item) -> None:
    """Fail a test that has a wrong marker."""
    try:
        marker_options(item)
    except pytest.UsageError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


def validation_parts(name: str, value: Any) -> tuple[str, ...]:
    """Return parts of the validation, named in a text or a list.

    Raises
    ------
    ValueError
        If there is no such part.
    """
    MARKER_OPTIONS["parts"].check(name, value)
    return _parts(value)


def conditions(name: str, value: Any) -> tuple[str, ...]:
    """Return what fails a test that has the fixture ``lens_check``, named in a text or a list.

    Raises
    ------
    ValueError
        If there is no such condition.
    """
    MARKER_OPTIONS["fail_on"].check(name, value)
    return _texts(value)


def _texts(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _parts(value: Any) -> tuple[str, ...]:
    from pytest_torchlens.validate import check_parts

    return check_parts([part.strip() for text in _texts(value) for part in text.split(",")])


def _are_parts(value: Any) -> bool:
    texts = _texts(value)
    return bool(texts) and _are_strings(texts) and bool(_parts(texts))


def _are_conditions(value: Any) -> bool:
    from pytest_torchlens.baseline.conditions import Conditions

    texts = _texts(value)
    return _are_strings(texts) and bool(Conditions.of(texts))


def _are_strings(texts: tuple[Any, ...]) -> bool:
    return all(isinstance(text, str) for text in texts)


def _are_checks(value: Any) -> bool:
    """Check form and options; a name that is unknown here may be that of a project's own check."""
    from pytest_torchlens.checks.catalog import known_checks
    from pytest_torchlens.checks.catalog import setting_of

    if isinstance(value, dict):
        known = known_checks()
        return bool(value) and all(
            isinstance(name, str) and setting_of(name, value[name], known.get(name)) for name in value
        )
    return bool(value) and _are_strings(_texts(value))


_NUMBER = Option("a number of at least 0", (int, float), lambda number: number >= 0)
MARKER_OPTIONS = {
    "autotrace": choice(*AUTOTRACE_VALUES),
    "fail_on": Option(
        "conditions such as 'local-change' or ['own:1e-5', 'structure']", (str, list, tuple), _are_conditions
    ),
    "checks": Option(
        "names of checks such as 'rows,repeat' or ['rows'], or a mapping of names to options",
        (str, list, tuple, dict),
        _are_checks,
    ),
    "mode": choice(*AUTOTRACE_MODES),
    "parts": Option("names of parts such as ['replay', 'invariants']", (str, list, tuple), _are_parts),
    "seconds": _NUMBER,
    "memory": _NUMBER,
}
"""Options of the marker ``lens``."""


class MarkerApplication:
    """Applies the markers when a test is set up.

    Parameters
    ----------
    items
        The tests that have such markers.
    """

    def __init__(self, items: list[pytest.Item]) -> None:
        self._items = set(items)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Give a test marked ``lens_expect`` a recorder; fail one whose marker ``lens`` is wrong.

        The check runs here again because an xdist worker cannot report usage errors.
        """
        if item not in self._items:
            return
        if item.get_closest_marker("lens_expect"):
            from pytest_torchlens.plugin.training import add_recorder_fixture

            add_recorder_fixture(item)
        if item.get_closest_marker("lens"):
            check(item)
