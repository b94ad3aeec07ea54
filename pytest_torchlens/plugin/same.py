"""The fixture ``lens_same``: fails a test if its model computes something else when it is run another way."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING
from typing import Any

import torch

from pytest_torchlens.capture.generators import Generators
from pytest_torchlens.checks.catalog import CHEAP
from pytest_torchlens.checks.catalog import CheckNameError
from pytest_torchlens.checks.catalog import known_checks
from pytest_torchlens.checks.catalog import plan
from pytest_torchlens.checks.catalog import settings_of
from pytest_torchlens.history.history_options import arguments_of
from pytest_torchlens.history.view import HistoryView
from pytest_torchlens.plugin.checks import named_checks
from pytest_torchlens.plugin.checks import own_checks
from pytest_torchlens.plugin.failure import checks_failed_text
from pytest_torchlens.plugin.marker import marker_options
from pytest_torchlens.records import checks_text
from pytest_torchlens.records import nearest
from pytest_torchlens.run.checks import check_model
from pytest_torchlens.run.preserved_state import preserved_global_state

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from pytest_torchlens.checks.catalog import PlannedCheck
    from pytest_torchlens.records import CheckResult


_ARGUMENTS = ("model", "input_args", "input_kwargs", "checks", "random_seed", "build")


class NotTheSameError(AssertionError):
    """A model computes something else when it is run another way; the message says what broke, where, what to do."""


class _Factory:
    """A factory of a test, called when a check needs another instance.

    Attributes
    ----------
    error
        What is wrong with it; None if nothing is, or nobody called it.
    """

    def __init__(self, build: Callable[[], torch.nn.Module]) -> None:
        __tracebackhide__ = True
        if not callable(build):
            raise TypeError(f"lens_same: build: expected {_FACTORY}, got {build!r:.80}")
        self._build = build
        self._was_called = False
        self.error: Exception | None = None

    def raise_if_wrong(self) -> None:
        """Raise what is wrong with it; it is called for that if no check has called it."""
        __tracebackhide__ = True
        if not self._was_called:
            with contextlib.suppress(Exception), preserved_global_state():  # `error` has what it raises
                generators = Generators()
                try:
                    self()
                finally:
                    generators.restore()
        if self.error is not None:
            raise self.error

    def __call__(self) -> torch.nn.Module:
        """Return another instance."""
        self._was_called = True
        try:
            made: object = self._build()
        except Exception as error:
            self.error = ValueError(f"lens_same: build raised {type(error).__name__}: {error}; expected {_FACTORY}")
            self.error.__cause__ = error
            raise
        if not isinstance(made, torch.nn.Module):
            self.error = TypeError(f"lens_same: build: expected {_FACTORY}; it returned {made!r:.80}")
            raise self.error
        return made


_FACTORY = "a function that makes another instance of the model, as build=lambda: Net()"


class Same:
    """Runs checks of the models of one test.

    Parameters
    ----------
    request
        The request of the test's fixture.
    """

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._item = request.node
        self._config = request.config

    def __call__(
        self,
        model: torch.nn.Module,
        input_args: Any = (),
        input_kwargs: dict[str, Any] | None = None,
        *,
        checks: Any = None,
        random_seed: int | None = None,
        build: Callable[[], torch.nn.Module] | None = None,
        **unknown: Any,
    ) -> tuple[CheckResult, ...]:
        """Run the checks, and return their results; raises `NotTheSameError` if one fails."""
        __tracebackhide__ = True
        for name in unknown:
            raise TypeError(f"lens_same: unknown argument {name!r}; {nearest(name, _ARGUMENTS)}")
        if isinstance(model, HistoryView):
            raise TypeError(
                "lens_same runs a model: lens_same(model, x); lens_check compares a history with a baseline"
            )
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"lens_same: expected a model, as in lens_same(model, x), got {type(model).__name__}")
        chosen = self._plan(checks)
        factory = None if build is None else _Factory(build)
        results = check_model(model, arguments_of(model, input_args, input_kwargs), chosen, random_seed, factory)
        if factory is not None:
            factory.raise_if_wrong()
        self._note(type(model).__name__, results)
        if any(result.fails for result in results):
            raise NotTheSameError(checks_failed_text(results, type(model).__name__))
        return results

    def _plan(self, checks: Any) -> tuple[PlannedCheck, ...]:
        """Return the checks that the call names, else the marker, else the command line, else the cheap ones."""
        __tracebackhide__ = True
        own = own_checks(self._config)
        if checks is None:
            checks = marker_options(self._item).get("checks") or named_checks(self._config)
        if checks is None:
            checks = [name for name, check in known_checks(own).items() if check.cost <= CHEAP]
        try:
            return plan(None, settings_of(checks, known_checks(own)), own)
        except CheckNameError as error:
            raise ValueError(f"lens_same: checks: {error}") from None

    def _note(self, name: str, results: tuple[CheckResult, ...]) -> None:
        """Add the results to the test's report, and to its properties in JUnit XML."""
        lines = [f"{name}: {checks_text(results)}", *(f"  {result.name}: {result.words}" for result in results)]
        self._item.add_report_section("call", "lens", "\n".join(lines))
        if self._config.getini("lens_junit_properties"):
            self._item.user_properties += [(f"lens.check.{result.name}", result.word) for result in results]
