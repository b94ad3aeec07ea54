"""The fixture ``lens_check``: one history against its baseline."""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from pytest_torchlens.baseline.store import key_of
from pytest_torchlens.baseline.wording import comparison_text
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.plugin.hooks import HookError
from pytest_torchlens.plugin.hooks import apply_compare_hook
from pytest_torchlens.plugin.marker import conditions
from pytest_torchlens.plugin.settings import command_options
from pytest_torchlens.plugin.settings import policy_of
from pytest_torchlens.run import find_environment
from pytest_torchlens.run import machine_of
from pytest_torchlens.run import replay_seconds
from pytest_torchlens.run import snapshot_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence

    from torch import nn

    from pytest_torchlens.records import Comparison
    from pytest_torchlens.records import Environment

_MODELS: WeakKeyDictionary[ModelHistory, nn.Module | None] = WeakKeyDictionary()


def with_model_alive(trace: Callable[..., ModelHistory]) -> Callable[..., ModelHistory]:
    """Return a function that records, and holds the model as long as its history: it will be run once more."""

    @wraps(trace)
    def held(*args: Any, **kwargs: Any) -> ModelHistory:
        __tracebackhide__ = True
        history = trace(*args, **kwargs)
        _MODELS[history] = history.recording.model()
        return history

    return held


class Check:
    """Compares histories in one test; each of its baselines has a file of its own.

    Parameters
    ----------
    request
        Of the test.
    """

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._item = request.node
        self._policy = policy_of(request.config)
        self._used: set[str] = set()

    def __call__(self, history: object, name: str = "", fail_on: str | Sequence[str] = ()) -> Comparison:
        """Compare; what fails the test is told with where it began and how to accept it."""
        __tracebackhide__ = True
        if not isinstance(history, ModelHistory):
            kind = type(history).__name__
            raise TypeError(f"lens_check takes a history of this run, as lens_check(lens_trace(model, x)), not {kind}")
        key = self._key(name)
        device = history.operations[0].tensor_device.partition(":")[0] if history.operations else "cpu"
        try:
            environment = replace(find_environment(), device=device)
            snapshot = snapshot_of(history, environment)
            asked = (*self._marked(), *conditions("fail_on", fail_on))
            timed = self._timed(history, environment, asked)
            compared = self._policy.check(key, snapshot, asked, history=history, timed=timed)
            found = apply_compare_hook(compared, key, self._item.config)
        except (ValueError, ReferenceError, HookError) as error:
            pytest.fail(f"lens_check: {error}", pytrace=False)
        text = comparison_text(found, key, key, command_options(self._item.config))
        self._item.add_report_section("call", "lens", text)
        if found.fails:
            pytest.fail(text, pytrace=False)
        return found

    def _key(self, name: str) -> str:
        file, _, test = self._item.nodeid.partition("::")
        key = key_of(file, f"{test}-{name}" if name else test)
        if key in self._used:
            pytest.fail("lens_check: called twice in one test; give each history a name: lens_check(history, name=...)")
        self._used.add(key)
        return key

    def _timed(
        self, history: ModelHistory, environment: Environment, asked: tuple[str, ...]
    ) -> tuple[str, float] | None:
        """Return machine and time of the recorded operations, run again, where a condition asks for it."""
        wanted = self._policy.conditions(asked).cost("time") is not None
        return (machine_of(environment), replay_seconds(history)) if wanted else None

    def _marked(self) -> tuple[str, ...]:
        marks = [conditions("fail_on", mark.kwargs.get("fail_on", ())) for mark in self._item.iter_markers("lens")]
        return tuple(text for texts in reversed(marks) for text in texts)
