"""Reads and checks the marker ``lens(...)``, and applies ``lens`` and ``lens_expect`` when a test is set up."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

import pytest

from pytest_torchlens.plugin.options import AUTOTRACE_MODES
from pytest_torchlens.plugin.options import AUTOTRACE_VALUES

if TYPE_CHECKING:
    from collections.abc import Callable


def marker_options(item: pytest.Item) -> dict[str, Any]:
    """Return the options that an item's markers set, the nearest marker's first.

    Raises
    ------
    pytest.UsageError
        If a marker has a positional argument, an option that there is not, or a value that it does not take.
    """
    found: dict[str, Any] = {}
    for mark in item.iter_markers("lens"):
        try:
            _check(mark)
        except ValueError as error:
            raise pytest.UsageError(f"{item.nodeid}: {error}") from None
        found = {**mark.kwargs, **found}
    return found


def check(item: pytest.Item) -> None:
    """Fail a test whose markers `marker_options` refuses."""
    try:
        marker_options(item)
    except pytest.UsageError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


def _check(mark: pytest.Mark) -> None:
    if mark.args:
        raise ValueError(f"the marker lens takes keywords alone, as lens(autotrace='off'), not {mark.args[0]!r:.80}")
    for name, value in mark.kwargs.items():
        if name not in _OPTIONS:
            from pytest_torchlens.records import nearest

            raise ValueError(f"the marker lens has no option {name!r}; {nearest(name, _OPTIONS)}")
        _OPTIONS[name](name, value)


def choice(name: str, value: object, choices: tuple[str, ...]) -> str:
    """Return a word that is one of some.

    Raises
    ------
    ValueError
        If it is none; with the nearest.
    """
    if not isinstance(value, str) or value not in choices:
        from pytest_torchlens.records import nearest

        raise ValueError(f"{name} is {value!r:.80}; {nearest(str(value), choices)}")
    return value


def number(name: str, value: object) -> float:
    """Return a number that is not negative, also of text.

    Raises
    ------
    ValueError
        If it is none.
    """
    try:
        found = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else -1.0
    except ValueError:
        found = -1.0
    if not found >= 0:
        raise ValueError(f"{name} is {value!r:.80}; it takes a number that is not negative")
    return found


def validation_parts(name: str, value: object) -> tuple[str, ...]:
    """Return parts of the validation, named in a text or a list.

    Raises
    ------
    ValueError
        If there is no such part.
    """
    from pytest_torchlens.validate import check_parts

    given = value if isinstance(value, list | tuple) else [value]
    texts = [part for part in given if isinstance(part, str)]
    if not texts or len(texts) < len(given):
        raise ValueError(f"{name} is {value!r:.80}; it takes names of parts, as ['replay', 'invariants']")
    return check_parts([part.strip() for text in texts for part in text.split(",")])


def conditions(name: str, value: object) -> tuple[str, ...]:
    """Return what fails a test that has the fixture ``lens_check``, named in a text or a list.

    Raises
    ------
    ValueError
        If there is no such condition.
    """
    from pytest_torchlens.baseline.conditions import Conditions

    texts = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f"{name} is {value!r:.80}; it takes conditions, as 'local-change' or ['own:1e-5', 'structure']"
        )
    Conditions.of(texts)
    return texts


def _which(name: str, value: object) -> str:
    return choice(name, value, AUTOTRACE_VALUES)


def _mode(name: str, value: object) -> str:
    return choice(name, value, AUTOTRACE_MODES)


_OPTIONS: dict[str, Callable[[str, object], object]] = {
    "autotrace": _which,
    "fail_on": conditions,
    "mode": _mode,
    "parts": validation_parts,
    "seconds": number,
    "memory": number,
}


class MarkerApplication:
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
            from pytest_torchlens.plugin.training import add_recorder_fixture

            add_recorder_fixture(item)
        if item.get_closest_marker("lens"):
            check(item)
