"""Gives a test a recorder, checks its expectations, and lists the recordings of the run."""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import fields
from importlib.util import find_spec
from typing import TYPE_CHECKING
from typing import Any

import pytest

from pytest_torchlens.plugin.settings import report_folder
from pytest_torchlens.records.names import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_torchlens.recorder import Recorder

MARKER = "lens_expect"
RECORDER_KEY = pytest.StashKey["Recorder"]()
FINDS_MODELS_KEY = pytest.StashKey[bool]()
FIXTURE = "lens_recorder"
PLUGIN_NAME = "lens-recorder"
LONGEST_NAME = 80
EXPECTATION_OPTIONS = ("layers", "window")


def add_recorder_fixture(item: pytest.Item) -> None:
    """Add the fixture to a test with the marker; if the test does not use it, the recorder finds the models."""
    if not isinstance(item, pytest.Function):
        return
    if FIXTURE not in item._fixtureinfo.name2fixturedefs:
        item.stash[FINDS_MODELS_KEY] = True
    if FIXTURE not in item.fixturenames:
        item.fixturenames = [
            *item.fixturenames,
            FIXTURE,
        ]  # parameter sets of a function share one list


def recorder_of(request: pytest.FixtureRequest) -> Iterator[Recorder]:
    """Yield the recorder of a test, with the options and expectations of its markers."""
    from pytest_torchlens.recorder import Recorder
    from pytest_torchlens.recorder.tracking import ModelFinder

    item = request.node
    options, expectations = _marker_arguments(item)
    defaults = {"folder": _folder(item), "title": item.nodeid, "videos": find_spec("PIL") is not None}
    try:
        recorder = Recorder(**defaults | options)
        for expectation in filter(None, expectations):
            recorder.expect(**expectation)
    except (TypeError, ValueError, ImportError) as error:
        raise pytest.fail.Exception(f"marker {MARKER}: {error}", pytrace=False) from None
    item.stash[RECORDER_KEY] = recorder
    if not request.config.pluginmanager.has_plugin(PLUGIN_NAME):
        request.config.pluginmanager.register(RecorderCalls(), PLUGIN_NAME)
    finder = ModelFinder(recorder) if item.stash.get(FINDS_MODELS_KEY, False) else None
    try:
        yield recorder
    finally:
        if finder:
            finder.close()
        recorder.abandon()


def _marker_arguments(item: pytest.Item) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return options and expectations from all markers of a test, the nearest marker's last."""
    from pytest_torchlens.recorder.expectations import NAMES
    from pytest_torchlens.recorder.recorder_options import RecorderOptions

    option_names = {field.name for field in fields(RecorderOptions)}
    names = option_names.union(NAMES, EXPECTATION_OPTIONS)
    options: dict[str, Any] = {}
    expectations = []
    for marker in reversed(list(item.iter_markers(MARKER))):
        if marker.args:
            pytest.fail(
                f"marker {MARKER}: expected keywords such as no_nan=True, got {marker.args[0]!r:.80}", pytrace=False
            )
        if not marker.kwargs:
            pytest.fail(f"marker {MARKER}: expected keywords such as no_nan=True, got none", pytrace=False)
        for name in marker.kwargs.keys() - names:
            pytest.fail(
                f"marker {MARKER}: unknown expectation or option {name!r}; {nearest(name, names)}", pytrace=False
            )
        options |= {name: value for name, value in marker.kwargs.items() if name in option_names}
        expectations.append({name: value for name, value in marker.kwargs.items() if name not in option_names})
    return options, expectations


def _folder(item: pytest.Item) -> Path | None:
    report = report_folder(item.config)
    if report is None:
        return None
    safe = re.sub(r"[^\w.-]+", "_", item.nodeid, flags=re.ASCII)[-LONGEST_NAME:].strip("._")
    digest = hashlib.blake2b(item.nodeid.encode(), digest_size=4).hexdigest()
    return report / "training" / f"{safe}-{digest}"


class RecorderCalls:
    """Closes the recorder of a test while the test can still fail; the first recorder registers it."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[Any]:
        """Run the test, then check the expectations of the whole training."""
        __tracebackhide__ = True
        try:
            result = yield
        except BaseException:
            if recorder := item.stash.get(RECORDER_KEY, None):
                recorder.abandon()
                _add_section(recorder, item)
            raise
        if recorder := item.stash.get(RECORDER_KEY, None):
            _finish(recorder, item)
        return result


def _finish(recorder: Recorder, item: pytest.Item) -> None:
    from pytest_torchlens.recorder import ExpectationError
    from pytest_torchlens.recorder import RecorderError

    problem = ""
    try:
        recorder.close()
    except (ExpectationError, RecorderError) as error:
        problem = str(error)
    _add_section(recorder, item)
    if problem:
        pytest.fail(problem, pytrace=False)


def _add_section(recorder: Recorder, item: pytest.Item) -> None:
    """Add the recording's path to the test's report, even if the test failed at a step."""
    if not (recorder.folder and recorder.series):
        return
    counts_text = ""
    if counts := recorder.report.values():
        written, dropped = sum(one.written for one in counts), sum(one.dropped for one in counts)
        counts_text = f"{written:,} frames of {len(counts)} tensors, {dropped:,} dropped: "
    item.add_report_section("call", "lens", f"recorder: {counts_text}{recorder.folder}")


class TrainingReport:
    """Writes a page that lists the recordings of a run, and prints its path; it runs in the controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._folder = report_folder(config)
        self._start = time.time()
        self._index: Path | None = None
        self._error = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the page."""
        from pytest_torchlens.report.folder import write_training_index

        try:
            if self._folder:
                self._index = write_training_index(self._folder, self._start)
        except OSError as error:
            self._error = f"ERROR: --lens-report: {error}"
            if session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the path of the page, or why it could not be written."""
        if self._error:
            terminalreporter.write_line(self._error, red=True)
        if self._index:
            terminalreporter.write_line(f"lens: recordings of training: {self._index.absolute().as_uri()}")
