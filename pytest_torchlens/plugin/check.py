"""The fixture ``lens_check``: compares a history with its baseline."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from torch import nn

from pytest_torchlens.baseline.store import key_of
from pytest_torchlens.baseline.wording import comparison_text
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.plugin.autotrace import warn
from pytest_torchlens.plugin.hooks import HookError
from pytest_torchlens.plugin.hooks import apply_compare_hook
from pytest_torchlens.plugin.marker import conditions
from pytest_torchlens.plugin.settings import command_options
from pytest_torchlens.plugin.settings import policy_of
from pytest_torchlens.records import Change
from pytest_torchlens.records.files import UnwritableError
from pytest_torchlens.run import find_environment
from pytest_torchlens.run import machine_of
from pytest_torchlens.run import replay_seconds
from pytest_torchlens.run import snapshot_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence

    from pytest_torchlens.baseline.snapshot import Snapshot
    from pytest_torchlens.records import Comparison
    from pytest_torchlens.records import Environment

    Compared = Callable[[str, ModelHistory, Snapshot, Comparison], None]


listeners: list[Compared] = []
"""Called with key, history, snapshot and comparison after each comparison (``pytest-lens repro`` adds one)."""


class Check:
    """Compares the histories of one test; each has its own baseline file.

    Parameters
    ----------
    request
        The request of the test's fixture.
    """

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._item = request.node
        self._policy = policy_of(request.config)
        self._keys: set[str] = set()

    def __call__(self, history: object, name: str = "", fail_on: str | Sequence[str] = ()) -> Comparison:
        """Compare; a failure names the first operation that differs and the command that accepts it."""
        __tracebackhide__ = True
        if not isinstance(history, ModelHistory):
            kind = type(history).__name__
            if isinstance(history, nn.Module):
                kind += "; lens_same(model, x) runs the checks of --lens-checks, which need no baseline"
            raise TypeError(f"lens_check: expected a history, as in lens_check(lens_trace(model, x)), got {kind}")
        key = self._key(name)
        device = history.operations[0].tensor_device.partition(":")[0] if history.operations else "cpu"
        try:
            environment = replace(find_environment(), device=device)
            snapshot = snapshot_of(history, environment)
            own_conditions = (*self._marker_conditions(), *conditions("fail_on", fail_on))
            timed = self._measure_time(history, environment, own_conditions)
            compared = self._policy.check(key, snapshot, own_conditions, history=history, timed=timed)
            found = apply_compare_hook(compared, key, self._item.config)
        except (ValueError, ReferenceError, HookError, UnwritableError) as error:
            pytest.fail(f"lens_check: {error}", pytrace=False)
        for listener in listeners:
            listener(key, history, snapshot, found)
        text = comparison_text(found, key, key, command_options(self._item.config), self._item.nodeid)
        self._item.add_report_section("call", "lens", text)
        if found.fails:
            pytest.fail(text, pytrace=False)
        if found.verdict is Change.NEW and not found.stored:
            accept = f"pytest-lens accept{command_options(self._item.config)} {shlex.quote(key)}"
            warn(self._item, f"lens_check compared nothing: {key} has no baseline yet; store it with: {accept}")
        return found

    def _key(self, name: str) -> str:
        file, _, test = self._item.nodeid.partition("::")
        key = key_of(file, f"{test}-{name}" if name else test)
        if key in self._keys:
            pytest.fail("lens_check: called twice in one test; give each history a name: lens_check(history, name=...)")
        self._keys.add(key)
        return key

    def _measure_time(
        self, history: ModelHistory, environment: Environment, own_conditions: tuple[str, ...]
    ) -> tuple[str, float] | None:
        """Return the machine and the time of a replay, if a condition compares times."""
        compares_times = self._policy.conditions(own_conditions).cost("time") is not None
        return (machine_of(environment), replay_seconds(history)) if compares_times else None

    def _marker_conditions(self) -> tuple[str, ...]:
        marks = [conditions("fail_on", mark.kwargs.get("fail_on", ())) for mark in self._item.iter_markers("lens")]
        return tuple(text for texts in reversed(marks) for text in texts)


_MODELS: WeakKeyDictionary[ModelHistory, nn.Module | None] = WeakKeyDictionary()


def with_model_alive(trace: Callable[..., ModelHistory]) -> Callable[..., ModelHistory]:
    """Return a function that records, and keeps the model alive with its history: `Check` runs it once more."""

    @wraps(trace)
    def trace_and_keep_model(*args: Any, **kwargs: Any) -> ModelHistory:
        __tracebackhide__ = True
        history = trace(*args, **kwargs)
        _MODELS[history] = history.recording.model()
        return history

    return trace_and_keep_model
