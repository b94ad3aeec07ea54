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


_SETTINGS = "_hypothesis_internal_use_settings"


def lift_deadline(item: pytest.Item) -> None:
    """Let each example of a hypothesis test take as long as it does."""
    test: Any = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)
    own = getattr(test, _SETTINGS, None)
    if own is not None and own.deadline is not None:
        from hypothesis import settings

        setattr(test, _SETTINGS, settings(own, deadline=None))


MOST_LINES = 40
MOST_SHOWN = 10
"""Failed verdicts, and reasons, that are told at the end."""


def has_failed(call: TracedCall) -> bool:
    """Whether the verdict on a call is that it failed."""
    return call.verdict is not None and call.verdict.status is Status.FAILED


def failure_of(found: TracedTest) -> str:
    """Return in one line which verdicts failed; ``""`` where none did."""
    failed = [call for call in found.found if has_failed(call)]
    words = [f"lens: {call.model}: validation {call.verdict.words}" for call in failed if call.verdict is not None]
    return "\n".join(words)


def section(found: TracedTest) -> str:
    """Return what a reader of the test's report should know: failed verdicts, and errors of ours."""
    lines: list[str] = []
    for call in found.found:
        if has_failed(call):
            lines += [f"{call.model}: validation failed", *_parts(call)]
        elif call.verdict is not None:
            lines += [f"{call.model}: {line}" for line in _left_open(call.verdict)]
        if call.trouble:
            lines += [f"{call.model} was called, but could not be recorded, by an error of pytest-torchlens's:"]
            lines += call.trouble.strip().splitlines()
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [f"... and {len(lines) - MOST_LINES} lines more"]
    return "\n".join(lines)


def _left_open(verdict: Verdict) -> Iterator[str]:
    """Yield what a verdict that did not fail says nothing about."""
    replay = next((part for part in verdict.parts if part.name == "replay"), None)
    if replay is not None and not verdict:
        yield f"recorded, but not replayed: {replay.reason}"
    yield from _unchecked(verdict)


def _unchecked(verdict: Verdict) -> Iterator[str]:
    return (f"not checked: {what}" for part in verdict.parts for what in part.unchecked)


def _parts(call: TracedCall) -> Iterator[str]:
    for part in call.verdict.parts if call.verdict is not None else ():
        if not part.status.ok:
            yield from part_text(part)


class AutotraceSummary:
    """Gathers what was found, in whichever process, and tells it once."""

    def __init__(self, config: pytest.Config, which: str, mode: str) -> None:
        self._config = config
        self._which = which
        self._mode = mode
        self._tests: dict[str, TracedTest] = {}
        self._seconds = 0.0

    def pytest_report_header(self) -> str:
        """Say what happens to tests."""
        which = {
            "once": "each model that tests call is validated once",
            "all": "all model calls of tests are validated",
        }
        return f"lens: {which[self._which]}; a failed verdict {'fails the test' if self._mode == 'fail' else 'warns'}"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what the report of a test says of its models."""
        self._seconds += report.duration
        if (text := getattr(report, "lens_traced", "")) != "":
            self._tests[report.nodeid] = from_json(text, TracedTest)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Tell it."""
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
        yield from self._failed()
        yield from self._unproved()
        yield from self._not_recorded()
        yield f"it took {sum(test.seconds for test in tests):.1f} s of the {self._seconds:.1f} s that the tests took"

    def _failed(self) -> Iterator[str]:
        failed = [(nodeid, call) for nodeid, call in self._calls() if has_failed(call)]
        for nodeid, call in failed[:MOST_SHOWN]:
            yield f"FAILED {nodeid}: {call.model}: {call.verdict.words if call.verdict is not None else ''}"
        if len(failed) > MOST_SHOWN:
            yield f"... and {_many(len(failed) - MOST_SHOWN, 'failed verdict')} more"

    def _unproved(self) -> Iterator[str]:
        reasons = Counter(
            part.reason
            for _, call in self._calls()
            if call.verdict is not None and not call.verdict and not has_failed(call)
            for part in call.verdict.parts
            if part.name == "replay"
        )
        for reason, count in reasons.most_common(MOST_SHOWN):
            yield f"not replayed: {count:,}, for {reason}"
        notes = Counter(note for _, call in self._calls() if call.verdict for note in _unchecked(call.verdict))
        for note, count in notes.most_common(MOST_SHOWN):
            yield f"{note} ({_many(count, 'call')})"

    def _not_recorded(self) -> Iterator[str]:
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


SECTION = "lens"
MIB = 1 << 20


class LensWarning(UserWarning):
    """A model that a test called computes something else than its recorded graph says."""


@dataclass(frozen=True)
class AutotraceSettings:
    """What is to be done about the models that a test calls, from options, ini keys and markers."""

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
            If an option does not take a value.
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
    """Return the value of an option, a number where it is one."""
    given = getattr(config.option, key)
    text = config.getini(key) if given is None else given
    with contextlib.suppress(ValueError):
        return float(text)
    return text


def register_autotrace(config: pytest.Config) -> None:
    """Add what this run needs: where tests run, what listens; where it is told, what gathers."""
    settings = AutotraceSettings.of(config)
    if settings.autotrace == "off" or all(names_zoo(config, arg) for arg in config.args):
        return
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(AutotraceSummary(config, settings.autotrace, settings.mode), "lens-traced")
    if not config.pluginmanager.hasplugin("dsession"):
        config.pluginmanager.register(AutotracePlugin(config, settings), "lens-autotrace")


class AutotracePlugin:
    """Listens to the tests that run in this process."""

    def __init__(self, config: pytest.Config, settings: AutotraceSettings) -> None:
        self._config = config
        self._settings = settings
        self._autotrace: Autotrace | None = None
        self._of: dict[str, AutotraceSettings] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Check the markers of all tests, before any of them runs."""
        for item in items:
            if not _is_model(item):
                self._of[item.nodeid] = replace(self._settings, **self._marked(item))

    def _marked(self, item: pytest.Item) -> dict[str, Any]:
        try:
            return {name: value for name, value in marker_options(item).items() if name != "fail_on"}
        except pytest.UsageError:
            if hasattr(self._config, "workerinput"):  # nobody would hear of it; the test itself fails when it begins
                return {}
            raise

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Be told of module calls as long as tests run; torch is imported here, after whatever conftest files set."""
        if not self._of or self._config.option.collectonly:
            return (yield)
        from pytest_torchlens.capture.patches import module_calls_seen
        from pytest_torchlens.run.module_calls import Autotrace

        self._autotrace = Autotrace()
        with module_calls_seen():
            return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        """Begin with a test, and listen to its fixtures."""
        settings = self._of.get(item.nodeid)
        if self._autotrace is None or settings is None or settings.autotrace == "off":
            return (yield)
        self._autotrace.begin(item.nodeid, self._plan(settings))
        lift_deadline(item)
        with self._autotrace.on():
            return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """Listen to the test."""
        settings = self._of.get(item.nodeid)
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
        """Say what was found; a test that passed fails if a model's graph does not hold."""
        report: Any = yield
        if self._autotrace is not None and (call.when == "call" or (call.when == "setup" and not report.passed)):
            found = self._autotrace.result()
            if found.calls:
                report.lens_traced = to_json(found)  # plain text, which gets out of a worker
                self._tell(item, report, found)
            called: Any = self._config.pluginmanager.get_plugin("lens-called")
            for name, history, verdict in self._autotrace.histories:
                called.add(item, name, history, verdict)
            self._autotrace.forget()
        told: pytest.TestReport = report
        return told

    def with_validation(self, item: pytest.Item, trace: Callable[..., ModelHistory]) -> Callable[..., ModelHistory]:
        """Return a function that records a forward pass, and has the record proved."""

        @functools.wraps(trace)
        def proved(*args: Any, **kwargs: Any) -> ModelHistory:
            __tracebackhide__ = True
            history = trace(*args, **kwargs)
            if self._autotrace is not None and self._of[item.nodeid].autotrace != "off":
                self._autotrace.prove(history)
            return history

        return proved

    def _tell(self, item: pytest.Item, report: pytest.TestReport, found: TracedTest) -> None:
        text = section(found)
        if text:
            report.sections.append((SECTION, text))
        failure = failure_of(found)
        if not failure or not report.passed or hasattr(report, "wasxfail"):
            return
        if self._of[item.nodeid].mode == "fail":
            report.outcome, report.longrepr = "failed", failure
        else:
            _warn(item, failure)


def _warn(item: pytest.Item, text: str) -> None:
    """Put a warning into pytest's summary; not through Python's filters, which may make an error of it."""
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
