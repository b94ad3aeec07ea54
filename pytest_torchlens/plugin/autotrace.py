"""Validates the models that tests call (``--lens-validate``).

`AutotracePlugin` runs where tests run: it records and validates module calls, and adds the result to the test's report.
`AutotraceSummary` runs in the controller: it collects these reports and prints the summary at the end of the run.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from dataclasses import dataclass
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any

import pytest

from pytest_torchlens.plugin.arguments import names_zoo
from pytest_torchlens.plugin.failure import part_text
from pytest_torchlens.plugin.marker import MARKER_OPTIONS
from pytest_torchlens.plugin.marker import marker_options
from pytest_torchlens.records import Status
from pytest_torchlens.records import TracedCall
from pytest_torchlens.records import TracedTest
from pytest_torchlens.records import Verdict
from pytest_torchlens.records import from_json
from pytest_torchlens.records import to_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Generator
    from collections.abc import Iterator

    from pytest_torchlens.history import ModelHistory
    from pytest_torchlens.run.module_calls import Autotrace
    from pytest_torchlens.run.module_calls import Plan


def register_autotrace(config: pytest.Config) -> None:
    """Register the summary in the controller, and the recorder of calls in each process that runs tests."""
    settings = AutotraceSettings.of(config)
    if settings.autotrace == "off" or all(names_zoo(config, arg) for arg in config.args):
        return
    if not hasattr(config, "workerinput"):
        summary = AutotraceSummary(config, settings.autotrace, settings.mode)
        config.pluginmanager.register(summary, "lens-autotrace-summary")
    if not config.pluginmanager.hasplugin("dsession"):
        config.pluginmanager.register(AutotracePlugin(config, settings), "lens-autotrace")


@dataclass(frozen=True)
class AutotraceSettings:
    """How models that a test calls are validated, from options, ini keys and markers."""

    autotrace: str
    mode: str
    seconds: float
    memory: float
    parts: tuple[str, ...] | list[str] | str | None = None

    @classmethod
    def of(cls, config: pytest.Config) -> AutotraceSettings:
        """Read and check options and ini keys.

        Raises
        ------
        pytest.UsageError
            If an option does not accept its value; the message suggests the nearest.
        """
        keys = {"autotrace": "", "mode": "_mode", "seconds": "_seconds", "memory": "_memory"}
        values = {name: _value(config, f"lens_autotrace{ending}") for name, ending in keys.items()}
        try:
            for name, ending in keys.items():
                MARKER_OPTIONS[name].check(f"--lens-autotrace{ending.replace('_', '-')}", values[name])
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None
        return cls(**values)


def _value(config: pytest.Config, key: str) -> Any:
    """Return the value of an option, as a number if it is one."""
    value = getattr(config.option, key)
    text = config.getini(key) if value is None else value
    with contextlib.suppress(ValueError):
        return float(text)
    return text


SECTION = "lens"
MIB = 1 << 20


class AutotracePlugin:
    """Records and validates the module calls of tests that run in this process."""

    def __init__(self, config: pytest.Config, settings: AutotraceSettings) -> None:
        self._config = config
        self._settings = settings
        self._autotrace: Autotrace | None = None
        self._settings_by_test: dict[str, AutotraceSettings] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Check the markers of all tests, before any of them runs."""
        for item in items:
            if not _is_model(item):
                self._settings_by_test[item.nodeid] = replace(self._settings, **self._marker_settings(item))

    def _marker_settings(self, item: pytest.Item) -> dict[str, Any]:
        try:
            return {name: value for name, value in marker_options(item).items() if name != "fail_on"}
        except pytest.UsageError:
            if hasattr(self._config, "workerinput"):  # a worker cannot show it; the test fails in its setup
                return {}
            raise

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Watch module calls while tests run; torch is imported here, after conftest files have set its environment."""
        if not self._settings_by_test or self._config.option.collectonly:
            return (yield)
        from pytest_torchlens.capture.patches import module_calls_intercepted
        from pytest_torchlens.run.module_calls import Autotrace

        self._autotrace = Autotrace()
        with module_calls_intercepted():
            return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        """Begin a test, and record the calls in its fixtures."""
        settings = self._settings_by_test.get(item.nodeid)
        if self._autotrace is None or settings is None or settings.autotrace == "off":
            return (yield)
        self._autotrace.begin(item.nodeid, self._plan(settings))
        remove_deadline(item)
        with self._autotrace.on():
            return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """Record the calls in the test."""
        settings = self._settings_by_test.get(item.nodeid)
        if self._autotrace is None or settings is None or settings.autotrace == "off":
            return (yield)
        with self._autotrace.on():
            return (yield)

    def _plan(self, settings: AutotraceSettings) -> Plan:
        from pytest_torchlens.plugin.marker import validation_parts
        from pytest_torchlens.run.module_calls import Plan
        from pytest_torchlens.validate import PARTS

        chosen = settings.parts or self._config.option.lens_parts or self._config.getini("lens_parts") or PARTS
        return Plan(
            every=settings.autotrace == "all",
            parts=validation_parts("parts", chosen),
            seconds=settings.seconds,
            nbytes=int(settings.memory * MIB),
            keep=bool(self._config.option.lens_report or self._config.getini("lens_report")),
        )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the result to the test's report; a passing test fails if a recorded graph is wrong."""
        report: Any = yield
        if self._autotrace is not None and (call.when == "call" or (call.when == "setup" and not report.passed)):
            result = self._autotrace.result()
            if result.calls:
                report.lens_traced_test = to_json(result)  # xdist sends text to the controller
                self._apply_result(item, report, result)
            called_models: Any = self._config.pluginmanager.get_plugin("lens-called-models")
            for name, history, verdict in self._autotrace.histories:
                called_models.add(item, name, history, verdict)
            self._autotrace.forget()
        changed: pytest.TestReport = report
        return changed

    def with_validation(self, item: pytest.Item, trace: Callable[..., ModelHistory]) -> Callable[..., ModelHistory]:
        """Return a function that records a forward pass and validates the record."""

        @functools.wraps(trace)
        def trace_and_validate(*args: Any, **kwargs: Any) -> ModelHistory:
            __tracebackhide__ = True
            history = trace(*args, **kwargs)
            if self._autotrace is not None and self._settings_by_test[item.nodeid].autotrace != "off":
                self._autotrace.prove(history)
            return history

        return trace_and_validate

    def _apply_result(self, item: pytest.Item, report: pytest.TestReport, result: TracedTest) -> None:
        text = report_section(result)
        if text:
            report.sections.append((SECTION, text))
        failure = failure_of(result)
        if not failure or not report.passed or hasattr(report, "wasxfail"):
            return
        if self._settings_by_test[item.nodeid].mode == "fail":
            report.outcome, report.longrepr = "failed", failure
        else:
            _warn(item, failure)


class LensWarning(UserWarning):
    """The recorded graph of a model that a test called does not compute what the model does."""


def _warn(item: pytest.Item, text: str) -> None:
    """Add a warning to pytest's summary, past Python's filters, which could turn it into an error."""
    import warnings

    location = item.reportinfo()
    item.ihook.pytest_warning_recorded.call_historic(
        kwargs={
            "warning_message": warnings.WarningMessage(
                LensWarning(text), LensWarning, str(location[0]), (location[1] or 0) + 1
            ),
            "nodeid": item.nodeid,
            "when": "runtest",
            "location": None,
        }
    )


def _is_model(item: pytest.Item) -> bool:
    return type(item).__module__ == "pytest_torchlens.plugin.items"


_HYPOTHESIS_SETTINGS = "_hypothesis_internal_use_settings"


def remove_deadline(item: pytest.Item) -> None:
    """Remove the deadline of a hypothesis test, which recording would exceed."""
    test: Any = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)
    test_settings = getattr(test, _HYPOTHESIS_SETTINGS, None)
    if test_settings is not None and test_settings.deadline is not None:
        from hypothesis import settings

        setattr(test, _HYPOTHESIS_SETTINGS, settings(test_settings, deadline=None))


MOST_LINES = 40
MOST_SHOWN = 10
"""Failed verdicts, and reasons, in the summary."""


class AutotraceSummary:
    """Collects the results of all processes, and prints them at the end of the run."""

    def __init__(self, config: pytest.Config, which: str, mode: str) -> None:
        self._config = config
        self._which = which
        self._mode = mode
        self._tests: dict[str, TracedTest] = {}
        self._seconds = 0.0

    def pytest_report_header(self) -> str:
        """Say which calls are validated, and what a failed verdict does."""
        which = {
            "once": "each model that tests call is validated once",
            "all": "all model calls of tests are validated",
        }
        return f"lens: {which[self._which]}; a failed verdict {'fails the test' if self._mode == 'fail' else 'warns'}"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Store the result that a test's report carries."""
        self._seconds += report.duration
        if (text := getattr(report, "lens_traced_test", "")) != "":
            self._tests[report.nodeid] = from_json(text, TracedTest)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the summary."""
        quiet = self._config.get_verbosity() < 0 and not any(has_failed(call) for _, call in self._calls())
        if quiet or self._config.option.collectonly:
            return
        terminalreporter.section("lens: models called in tests")
        for line in self._lines():
            terminalreporter.write_line(line)

    def _calls(self) -> Iterator[tuple[str, TracedCall]]:
        return ((nodeid, call) for nodeid, test in self._tests.items() for call in test.found)

    def _lines(self) -> Iterator[str]:
        tests = self._tests.values()
        calls = sum(test.calls for test in tests)
        if not calls:
            yield "no test called a model in its own thread and process"
            return
        known = sum(test.known for test in tests)
        yield f"{_many(calls, 'outermost module call')} in {_many(len(tests), 'test')}" + (
            f"; {known:,} like one validated before" if known else ""
        )
        statuses = Counter(call.verdict.status.value for _, call in self._calls() if call.verdict is not None)
        if statuses:
            yield "validated: " + ", ".join(f"{count:,} {word}" for word, count in statuses.most_common())
        yield from self._failed_calls()
        yield from self._unreplayed_calls()
        yield from self._unrecorded_calls()
        yield f"it took {sum(test.seconds for test in tests):.1f} s of the {self._seconds:.1f} s that the tests took"

    def _failed_calls(self) -> Iterator[str]:
        failed = [(nodeid, call) for nodeid, call in self._calls() if has_failed(call)]
        for nodeid, call in failed[:MOST_SHOWN]:
            yield f"FAILED {nodeid}: {call.model}: {call.verdict.words if call.verdict is not None else ''}"
        if len(failed) > MOST_SHOWN:
            yield f"... and {_many(len(failed) - MOST_SHOWN, 'failed verdict')} more"

    def _unreplayed_calls(self) -> Iterator[str]:
        reasons = Counter(
            part.reason
            for _, call in self._calls()
            if call.verdict is not None and not call.verdict and not has_failed(call)
            for part in call.verdict.parts
            if part.name == "replay"
        )
        for reason, count in reasons.most_common(MOST_SHOWN):
            yield f"not replayed: {count:,}, for {reason}"
        notes = Counter(note for _, call in self._calls() if call.verdict for note in _unchecked_notes(call.verdict))
        for note, count in notes.most_common(MOST_SHOWN):
            yield f"{note} ({_many(count, 'call')})"

    def _unrecorded_calls(self) -> Iterator[str]:
        reasons: Counter[str] = Counter()
        for test in self._tests.values():
            reasons.update(test.passed_over)
            reasons.update(call.left_off for call in test.found if call.left_off)
        for reason, count in reasons.most_common(MOST_SHOWN):
            yield f"not recorded: {count:,}, for {reason}"
        trouble = [(nodeid, call) for nodeid, call in self._calls() if call.trouble]
        if trouble:
            nodeid, call = trouble[0]
            error = call.trouble.strip().splitlines()[-1]
            yield f"not recorded: {len(trouble):,}, by errors of pytest-torchlens's; please report the first"
            yield f"  {nodeid}: {call.model}: {error}"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def has_failed(call: TracedCall) -> bool:
    """Whether the verdict on a call is a failure."""
    return call.verdict is not None and call.verdict.status is Status.FAILED


def failure_of(test: TracedTest) -> str:
    """Return one line for each failed verdict; ``""`` if none failed."""
    failed = [call for call in test.found if has_failed(call)]
    words = [f"lens: {call.model}: validation {call.verdict.words}" for call in failed if call.verdict is not None]
    return "\n".join(words)


def report_section(test: TracedTest) -> str:
    """Return the section of a test's report: failed verdicts, parts that were not checked, and internal errors."""
    lines: list[str] = []
    for call in test.found:
        if has_failed(call):
            lines += [f"{call.model}: validation failed", *_failed_parts(call)]
        elif call.verdict is not None:
            lines += [f"{call.model}: {line}" for line in _open_questions(call.verdict)]
        if call.trouble:
            lines += [f"{call.model} was called, but could not be recorded, by an error of pytest-torchlens's:"]
            lines += call.trouble.strip().splitlines()
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [f"... and {len(lines) - MOST_LINES} lines more"]
    return "\n".join(lines)


def _open_questions(verdict: Verdict) -> Iterator[str]:
    """Yield what a verdict that did not fail leaves unchecked."""
    replay = next((part for part in verdict.parts if part.name == "replay"), None)
    if replay is not None and not verdict:
        yield f"recorded, but not replayed: {replay.reason}"
    yield from _unchecked_notes(verdict)


def _unchecked_notes(verdict: Verdict) -> Iterator[str]:
    return (f"not checked: {what}" for part in verdict.parts for what in part.unchecked)


def _failed_parts(call: TracedCall) -> Iterator[str]:
    for part in call.verdict.parts if call.verdict is not None else ():
        if not part.status.ok:
            yield from part_text(part)
