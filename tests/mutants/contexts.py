"""A pytest plugin for a run under coverage: it names the test that runs, and writes how long each test took.

Load it with ``-p tests.mutants.contexts``. What a fixture wider than one test runs is booked under the test's file, for
all tests of that file may depend on it. Processes that a test starts find the name in the environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import coverage
import pytest

CONTEXT = "MUTANTS_CONTEXT"
"""The environment variable that names the running test; the coverage settings of child processes read it."""
TIMES = "MUTANTS_TIMES"
"""The environment variable that names the file for the seconds of each test that passed."""

_seconds: dict[str, float] = {}
_not_passed: set[str] = set()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    _switch(item.nodeid)
    try:
        return (yield)
    finally:
        _switch("")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
    test = os.environ.get(CONTEXT, "")
    wide = fixturedef.scope != "function" and "::" in test
    if wide:
        _switch(test.partition("::")[0])
    try:
        return (yield)
    finally:
        if wide:
            _switch(test)


def _switch(name: str) -> None:
    os.environ[CONTEXT] = name
    running = coverage.Coverage.current()
    if running is not None:
        running.switch_context(name)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if report.failed or report.skipped:
        _not_passed.add(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    running = coverage.Coverage.current()
    if running is not None:
        running.save()
    if not hasattr(session.config, "workerinput") and TIMES in os.environ:
        passed = {test: seconds for test, seconds in _seconds.items() if test not in _not_passed}
        Path(os.environ[TIMES]).write_text(json.dumps(passed), encoding="utf-8")
