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
RECORDER = pytest.StashKey["Recorder"]()
BY_MARKER = pytest.StashKey[bool]()
FIXTURE = "lens_recorder"
PLUGIN = "lens-recorder"
LONGEST = 80
NARROWING = ("layers", "window")


def give_recorder(item: pytest.Item) -> None:
    """Give a marked test a recorder; where neither it nor its fixtures ask for one, models are found by themselves."""
    if not isinstance(item, pytest.Function):
        return
    if FIXTURE not in item._fixtureinfo.name2fixturedefs:
        item.stash[BY_MARKER] = True
    if FIXTURE not in item.fixturenames:
        item.fixturenames = [*item.fixturenames, FIXTURE]  # the list is that of all parameter sets of the function


def recorder_of(request: pytest.FixtureRequest) -> Iterator[Recorder]:
    """Yield the recorder of a test, made with what its markers say."""
    from pytest_torchlens.recorder import Recorder
    from pytest_torchlens.recorder.tracking import ModelFinder

    item = request.node
    options, expectations = _asked(item)
    defaults = {"folder": _folder(item), "title": item.nodeid, "videos": find_spec("PIL") is not None}
    try:
        recorder = Recorder(**defaults | options)
        for wanted in filter(None, expectations):
            recorder.expect(**wanted)
    except (TypeError, ValueError, ImportError) as error:
        raise pytest.fail.Exception(f"marker {MARKER}: {error}", pytrace=False) from None
    item.stash[RECORDER] = recorder
    if not request.config.pluginmanager.has_plugin(PLUGIN):
        request.config.pluginmanager.register(RecorderCalls(), PLUGIN)
    finder = ModelFinder(recorder) if item.stash.get(BY_MARKER, False) else None
    try:
        yield recorder
    finally:
        if finder:
            finder.close()
        recorder.abandon()


def _asked(item: pytest.Item) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return options and expectations from all markers of a test, those nearest to it last."""
    from pytest_torchlens.recorder.expectations import NAMES
    from pytest_torchlens.recorder.recorder_options import RecorderOptions

    known = {field.name for field in fields(RecorderOptions)}
    words = known.union(NAMES, NARROWING)
    options: dict[str, Any] = {}
    expectations = []
    for marker in reversed(list(item.iter_markers(MARKER))):
        if marker.args:
            pytest.fail(f"marker {MARKER} takes keywords only, such as no_nan=True", pytrace=False)
        if not marker.kwargs:
            pytest.fail(f"marker {MARKER} expects nothing: say what, such as no_nan=True", pytrace=False)
        for name in marker.kwargs.keys() - words:
            pytest.fail(
                f"marker {MARKER}: there is no expectation or option {name!r}; {nearest(name, words)}", pytrace=False
            )
        options |= {name: value for name, value in marker.kwargs.items() if name in known}
        expectations.append({name: value for name, value in marker.kwargs.items() if name not in known})
    return options, expectations


def _folder(item: pytest.Item) -> Path | None:
    report = report_folder(item.config)
    if report is None:
        return None
    safe = re.sub(r"[^\w.-]+", "_", item.nodeid, flags=re.ASCII)[-LONGEST:].strip("._")
    digest = hashlib.blake2b(item.nodeid.encode(), digest_size=4).hexdigest()
    return report / "training" / f"{safe}-{digest}"


class RecorderCalls:
    """Closes the recorder of a test while the test still can fail; registered by the first that has one."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[Any]:
        """Run the test, then look at what is expected of the whole training."""
        __tracebackhide__ = True
        try:
            result = yield
        except BaseException:
            if recorder := item.stash.get(RECORDER, None):
                recorder.abandon()
                _tell(recorder, item)
            raise
        if recorder := item.stash.get(RECORDER, None):
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
    _tell(recorder, item)
    if problem:
        pytest.fail(problem, pytrace=False)


def _tell(recorder: Recorder, item: pytest.Item) -> None:
    """Say where the recording is, also of a test that failed at a step."""
    if not (recorder.folder and recorder.series):
        return
    said = ""
    if counts := recorder.report.values():
        written, dropped = sum(one.written for one in counts), sum(one.dropped for one in counts)
        said = f"{written:,} frames of {len(counts)} tensors, {dropped:,} dropped: "
    item.add_report_section("call", "lens", f"recorder: {said}{recorder.folder}")


class TrainingReport:
    """Lists the recordings of a run on a page, and says where it is; of the process that tells of the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._folder = report_folder(config)
        self._begun = time.time()
        self._index: Path | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Write the list."""
        from pytest_torchlens.report.folder import write_training_index

        if self._folder:
            self._index = write_training_index(self._folder, self._begun)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say where it is."""
        if self._index:
            terminalreporter.write_line(f"lens: recordings of training: {self._index.absolute().as_uri()}")
