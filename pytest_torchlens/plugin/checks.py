"""Which checks run: those of ``--lens-checks``, of zoo files, and a project's own, which a hook returns."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

import pytest

from pytest_torchlens.checks.catalog import WORDS
from pytest_torchlens.checks.catalog import CheckNameError
from pytest_torchlens.checks.catalog import check_name
from pytest_torchlens.checks.catalog import check_names
from pytest_torchlens.checks.catalog import known_checks
from pytest_torchlens.checks.catalog import split_names
from pytest_torchlens.plugin.hooks import HookError

if TYPE_CHECKING:
    from collections.abc import Collection
    from collections.abc import Iterable

    from pytest_torchlens.checks.catalog import Check
    from pytest_torchlens.plugin.selection import Choice


def named_checks(config: pytest.Config) -> tuple[str, ...] | None:
    """Return the names in ``--lens-checks`` or its ini key; None without either.

    Raises
    ------
    pytest.UsageError
        If there is no such check.
    """
    texts = config.option.lens_checks or config.getini("lens_checks")
    known = known_checks(own_checks(config)) if texts else ()
    try:
        return tuple(name for text in texts for name in check_names(split_names([text]), known)) or None
    except CheckNameError as error:
        raise pytest.UsageError(f"--lens-checks: {error}") from None


def own_checks(config: pytest.Config) -> tuple[Check, ...]:
    """Return the checks that hooks return.

    Raises
    ------
    pytest.UsageError
        If a hook returns something else, or a name that is taken.
    """
    __tracebackhide__ = True
    answers = config.hook.pytest_lens_checks(config=config)
    found = [one for answer in answers for one in (answer if isinstance(answer, list | tuple) else [answer])]
    names = {*known_checks(), *WORDS}
    for one in found:
        if not _is_check(one):
            raise pytest.UsageError(str(HookError("pytest_lens_checks", "objects with name, sentence, cost, run", one)))
        if one.name in names:
            raise pytest.UsageError(f"pytest_lens_checks: there is a check {one.name!r} already: give another name")
        names.add(one.name)
    return tuple(found)


def _is_check(one: Any) -> bool:
    texts = [getattr(one, name, None) for name in ("name", "sentence")]
    is_named = all(isinstance(text, str) and text.strip() for text in texts) and split_names([one.name]) == (one.name,)
    cost = getattr(one, "cost", None)
    has_cost = isinstance(cost, int | float) and not isinstance(cost, bool) and cost >= 0
    return is_named and has_cost and callable(getattr(one, "run", None)) and not isinstance(one, type)


def check_zoo_files(choices: Iterable[Choice], own: tuple[Check, ...]) -> None:
    """Check the names of checks in zoo files.

    Raises
    ------
    pytest.UsageError
        If there is no such check; the message names file and line of the rule.
    """
    known = known_checks(own)
    for rule in (rule for choice in choices for rule in choice.zoo.rules):
        checks = rule.settings.get("checks", {})
        try:
            for name in checks:
                check_name(name, known)
            check_names([name for name, setting in checks.items() if setting.on], known)
        except CheckNameError as error:
            raise pytest.UsageError(f"{rule.place}: checks: {error}") from None


def names_own_check(names: Collection[str] | None, choice: Choice, own: tuple[Check, ...]) -> bool:
    """Return whether a check of the project's own is asked for: by the command line, or else by the zoo file."""
    if names is None:
        names = {name for rule in choice.zoo.rules for name in rule.settings.get("checks", ())}
    return bool(own) and ("all" in names or any(check.name in names for check in own))
