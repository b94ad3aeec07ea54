"""Validates the models that tests call (``--lens-validate``).

`AutotracePlugin` runs where tests run: it records and validates module calls, and adds the result to the test's report.
`AutotraceSummary` runs in the controller: it collects these reports and prints the summary at the end of the run.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import Counter
from dataclasses import dataclass
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any

import pytest

from pytest_torchlens.baseline.conditions import Conditions
from pytest_torchlens.plugin.faults import BEGINNING
from pytest_torchlens.plugin.faults import SECTION
from pytest_torchlens.plugin.faults import Faults
from pytest_torchlens.plugin.faults import first_calls
from pytest_torchlens.plugin.faults import has_failed
from pytest_torchlens.plugin.faults import place_of
from pytest_torchlens.plugin.faults import told_once
from pytest_torchlens.plugin.first_call import NOTHING_CALLED
from pytest_torchlens.plugin.first_call import remove_deadline
from pytest_torchlens.plugin.marker import MARKER_OPTIONS
from pytest_torchlens.plugin.marker import conditions
from pytest_torchlens.plugin.marker import marker_options
from pytest_torchlens.plugin.settings import fail_on_of
from pytest_torchlens.plugin.settings import ignored_rules
from pytest_torchlens.records import AuditFinding
from pytest_torchlens.records import Status
from pytest_torchlens.records import TracedCall
from pytest_torchlens.records import TracedTest
from pytest_torchlens.records import Verdict
from pytest_torchlens.records import count_text
from pytest_torchlens.records import from_json
from pytest_torchlens.records import to_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Generator
    from collections.abc import Iterable
    from collections.abc import Iterator

    from pytest_torchlens.history import ModelHistory
    from pytest_torchlens.run.module_calls import Autotrace
    from pytest_torchlens.run.module_calls import Plan


def register_summary(config: pytest.Config, header: str = "") -> None:
    """Register what collects the results of all processes, and begins the run's output with a header, if any."""
    config.pluginmanager.register(AutotraceSummary(config, header), "lens-autotrace-summary")


@dataclass(frozen=True)
class AutotraceSettings:
    """How models that a test calls are validated, from options, ini keys and markers."""

    autotrace: str
    mode: str
    seconds: float
    memory: float
    parts: tuple[str, ...] | list[str] | str | None = None
    fail_on: tuple[str, ...] = ()
    """What fails a test: of the conditions of ``--lens-fail-on`` those about verdicts."""
    ignore: tuple[str, ...] = ()
    """Audit rules whose findings are left out."""

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
        return cls(**values, fail_on=fail_on_of(config), ignore=ignored_rules(config))


def _value(config: pytest.Config, key: str) -> Any:
    """Return the value of an option, as a number if it is one."""
    value = getattr(config.option, key)
    text = config.getini(key) if value is None else value
    with contextlib.suppress(ValueError):
        return float(text)
    return text


MIB = 1 << 20


class AutotracePlugin:
    """Records and validates the module calls of tests that run in this process, from the first one on.

    `FirstCall` waits for that.
    """

    def __init__(self, config: pytest.Config, settings: AutotraceSettings) -> None:
        self._config = config
        self._settings = settings
        self._settings_by_test: dict[str, AutotraceSettings] = {}
        self._autotrace: Autotrace | None = None
        self._begun = False
        """Whether `_autotrace` has begun the present test."""
        self._item: pytest.Item | None = None
        """The test that runs; None between its setup, call and teardown.  A report made meanwhile is a subtest's."""
        self._phase = contextlib.ExitStack()
        """Undone after the setup, call or teardown of a test."""

    def check(self, item: pytest.Item) -> None:
        """Check the markers of a test."""
        self._settings_of(item)

    def is_recorded(self, item: pytest.Item) -> bool:
        """Whether calls in a test are recorded; not those of a zoo's model."""
        return not _is_model(item) and self._settings_of(item).autotrace != "off"

    def _settings_of(self, item: pytest.Item) -> AutotraceSettings:
        settings = self._settings_by_test.get(item.nodeid)
        if settings is None:
            settings = self._settings_by_test[item.nodeid] = self._marked_settings(item)
        return settings

    def _marked_settings(self, item: pytest.Item) -> AutotraceSettings:
        try:
            options = marker_options(item)
            fail_on = conditions("fail_on", options.pop("fail_on", ()))
        except pytest.UsageError:
            if hasattr(self._config, "workerinput"):  # a worker cannot show it; the test fails in its setup
                return self._settings
            raise
        if not options and not fail_on:
            return self._settings
        return replace(self._settings, **options, fail_on=(*self._settings.fail_on, *fail_on))

    @contextlib.contextmanager
    def watching(self, forward: Any, original: Any) -> Iterator[Any]:
        """Watch module calls; yield what makes those that reach `forward`: see `module_calls_intercepted`."""
        from pytest_torchlens.capture.patches import module_calls_intercepted
        from pytest_torchlens.run.module_calls import Autotrace

        self._autotrace = Autotrace()
        with module_calls_intercepted(forward, original) as call:
            yield call

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        """Begin a test, and record the calls in its fixtures."""
        self._begun = False
        if self.is_recorded(item):
            remove_deadline(item)
        return (yield from self._phase_of(item))

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        """Record the calls in the test."""
        return (yield from self._phase_of(item))

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        """Record the calls in the teardown of fixtures."""
        return (yield from self._phase_of(item, goes_on=True))

    def _phase_of(self, item: pytest.Item, *, goes_on: bool = False) -> Generator[None, None, None]:
        self.begin_phase(item, goes_on=goes_on)
        try:
            return (yield)
        finally:
            self.end_phase()

    def begin_phase(self, item: pytest.Item, *, goes_on: bool = False) -> None:
        """Record module calls in this thread until the phase ends."""
        if self._autotrace is None or not self.is_recorded(item):
            return
        self._item = item
        if not self._begun or goes_on:
            self._autotrace.begin(item.nodeid, self._plan(item), goes_on=goes_on)
            self._begun = True
        self._phase.enter_context(self._autotrace.on())

    def end_phase(self) -> None:
        """Record no more module calls, until another phase begins."""
        self._phase.close()
        self._item = None

    def _plan(self, item: pytest.Item) -> Plan:
        settings = self._settings_of(item)
        return self._usual_plan if settings is self._settings else self._plan_of(settings)

    @functools.cached_property
    def _usual_plan(self) -> Plan:
        """The plan of tests without a marker."""
        return self._plan_of(self._settings)

    def _plan_of(self, settings: AutotraceSettings) -> Plan:
        from pytest_torchlens.plugin.marker import validation_parts
        from pytest_torchlens.run.module_calls import Plan
        from pytest_torchlens.validate import PARTS

        called_models: Any = self._config.pluginmanager.get_plugin("lens-called-models")
        chosen = settings.parts or self._config.option.lens_parts or self._config.getini("lens_parts") or PARTS
        return Plan(
            every=settings.autotrace == "all",
            parts=validation_parts("parts", chosen),
            seconds=settings.seconds,
            nbytes=int(settings.memory * MIB),
            ignore=settings.ignore,
            keep=called_models is not None and called_models.wanted,
        )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the result to the test's report; a passing test fails if a recorded graph is wrong."""
        report = yield
        is_last = call.when != "setup" or not report.passed
        if self._autotrace is not None and self._begun and is_last and self._item is None:
            self._add_result(item, report, self._autotrace)
        return report

    def _add_result(self, item: pytest.Item, report: Any, autotrace: Autotrace) -> None:
        result = autotrace.result()
        if result.calls:
            report.lens_traced_test = to_json(result)  # xdist sends text to the controller
            self._apply_result(item, report, result)
        called_models: Any = self._config.pluginmanager.get_plugin("lens-called-models")
        for name, *kept in autotrace.histories:
            called_models.add(item, name, *kept)
            called_models.attach(item, report)  # its own hook has run before
        autotrace.forget()
        self._begun = False

    def with_validation(self, item: pytest.Item, trace: Callable[..., ModelHistory]) -> Callable[..., ModelHistory]:
        """Return a function that records a forward pass and validates the record."""

        @functools.wraps(trace)
        def trace_and_validate(*args: Any, **kwargs: Any) -> ModelHistory:
            __tracebackhide__ = True
            history = trace(*args, **kwargs)
            if self._autotrace is not None and self.is_recorded(item):
                self._autotrace.prove(history)
            return history

        return trace_and_validate

    def _apply_result(self, item: pytest.Item, report: pytest.TestReport, result: TracedTest) -> None:
        text = report_section(result)
        if text:
            report.sections.append((SECTION, text))
        failure = failure_of(result, Conditions.of(self._settings_of(item).fail_on))
        if not failure or not report.passed or hasattr(report, "wasxfail"):
            return
        if self._settings_of(item).mode == "fail":
            report.outcome, report.longrepr = "failed", failure
        else:
            warn(item, failure)


class LensWarning(UserWarning):
    """The recorded graph of a model that a test called is wrong, or ``lens_check`` had nothing to compare with."""


def warn(item: pytest.Item, text: str) -> None:
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


MOST_LINES = 40
MOST_SHOWN = 10
"""Faults, and reasons, in the summary."""


class AutotraceSummary:
    """Collects the results of all processes, and prints them at the end of the run."""

    def __init__(self, config: pytest.Config, header: str) -> None:
        self._config = config
        self._header = header
        self._tests: dict[tuple[str, str], TracedTest] = {}
        """Result of each test and phase; the last of a test that was run again."""

    def pytest_report_header(self) -> str:
        """Say which calls are validated, and what a failed verdict does."""
        return self._header

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Store the result that a test's report carries."""
        if (text := getattr(report, "lens_traced_test", "")) != "":
            self._tests[report.nodeid, str(report.when)] = from_json(text, TracedTest)

    @pytest.hookimpl(specname="pytest_terminal_summary", wrapper=True, tryfirst=True)
    def pytest_tell_each_fault_once(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
        """Group the failures that pytest prints; the reports themselves stay as they are."""
        with told_once(terminalreporter.stats, report_section, lambda test: failure_of(test, Conditions.of(()))):
            return (yield)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the summary; with ``-q``, and without a failed verdict, one line."""
        if self._config.option.collectonly:
            return
        if self._config.get_verbosity() < 0 and not any(has_failed(call) for _, call in self._calls()):
            if self._tests:
                terminalreporter.write_line(f"lens: {self._counts()}")
            return
        terminalreporter.section("lens: models called in tests")
        for line in self._lines():
            terminalreporter.write_line(line)
        if self._tests:
            reports = itertools.chain(*terminalreporter.stats.values())
            total = sum(getattr(report, "duration", 0.0) for report in reports)
            seconds = sum(test.seconds for test in self._tests.values())
            terminalreporter.write_line(f"it took {seconds:.1f} s of the {total:.1f} s that the tests took")

    def _calls(self) -> Iterator[tuple[str, TracedCall]]:
        return ((nodeid, call) for (nodeid, _), test in self._tests.items() for call in test.results)

    def _counts(self) -> str:
        """Return one line with the number of calls and their results; the numbers add up."""
        tests = self._tests.values()
        counts = Counter(call.verdict.status for _, call in self._calls() if call.verdict is not None)
        known, left_out = sum(test.known for test in tests), sum(sum(test.left_out.values()) for test in tests)
        parts = {
            Status.FAILED.value: counts[Status.FAILED],
            "proven": counts[Status.PASSED] + counts[Status.PASSED_WITH_TOLERANCE],
            "like one before": known,
            Status.UNPROVEN.value: counts[Status.UNPROVEN],
            "left out": left_out,
        }
        total = count_text(sum(test.calls for test in tests), "outermost module call")
        words = ", ".join(f"{count:,} {word}" for word, count in parts.items() if count)
        if severe := sum(len(call.findings) for _, call in self._calls()):
            words += f"; {count_text(severe, 'high finding')}"
        return f"{total} in {count_text(len({nodeid for nodeid, _ in self._tests}), 'test')}: {words}"

    def _lines(self) -> Iterator[str]:
        if not self._tests:
            yield NOTHING_CALLED
            return
        yield self._counts()
        yield from self._failed_calls()
        yield from _by_reason("high", ((one.words, nodeid, 1) for nodeid, one in self._findings()))
        yield from self._unproven_calls()
        yield from self._left_out_calls()

    def _failed_calls(self) -> Iterator[str]:
        faults = [*Faults((place_of(*key), test) for key, test in self._tests.items())]
        for place, call, elsewhere in faults[:MOST_SHOWN]:
            yield f"FAILED {place}: {call.model}: {call.verdict.words if call.verdict is not None else ''}"
            yield from (f"  {text}" for text in filter(None, [elsewhere]))
        if len(faults) > MOST_SHOWN:
            yield f"... and {count_text(len(faults) - MOST_SHOWN, 'fault')} more"

    def _findings(self) -> Iterator[tuple[str, AuditFinding]]:
        return ((nodeid, one) for nodeid, call in self._calls() for one in call.findings)

    def _unproven_calls(self) -> Iterator[str]:
        calls = [
            (nodeid, call.verdict)
            for nodeid, call in self._calls()
            if call.verdict is not None and not has_failed(call)
        ]
        unproven = ((one.message, nodeid, 1) for nodeid, verdict in calls for one in verdict.unproven)
        yield from _by_reason("unproven", unproven)
        unchecked = ((what, nodeid, 1) for nodeid, verdict in calls for what in _unchecked(verdict))
        yield from _by_reason("not checked", unchecked)

    def left_out(self) -> Iterator[tuple[str, str, int]]:
        """Yield reason, test and number of the calls that were not validated."""
        for (nodeid, _), test in self._tests.items():
            for reason, count in test.left_out.items():
                yield reason, nodeid, count

    def _left_out_calls(self) -> Iterator[str]:
        yield from _by_reason("left out", self.left_out())
        trouble = next(((nodeid, call) for nodeid, call in self._calls() if call.trouble), None)
        if trouble is not None:
            nodeid, call = trouble
            yield "please report this error of pytest-torchlens:"
            yield f"  {nodeid}: {call.model}: {call.trouble.strip().splitlines()[-1]}"


def _by_reason(word: str, reasons: Iterable[tuple[str, str, int]]) -> Iterator[str]:
    """Yield one line for each of the commonest reasons, each given with a test and its number of calls."""
    calls: Counter[str] = Counter()
    first: dict[str, str] = {}
    for reason, nodeid, count in reasons:
        calls[reason] += count
        first.setdefault(reason, nodeid)
    ordered = calls.most_common()
    for reason, count in ordered[:MOST_SHOWN]:
        yield f"{word}: {count_text(count, 'call')}: {reason} (first in {first[reason]})"
    if len(ordered) > MOST_SHOWN:
        yield f"{word}: {count_text(sum(count for _, count in ordered[MOST_SHOWN:]), 'call')} for other reasons"


def failure_of(test: TracedTest, fail_on: Conditions) -> str:
    """Return one line for each fault, and for what `fail_on` fails; ``""`` if there is none."""
    found = [*first_calls(test).values()]
    if fail_on.has("unproven"):
        found += [call for call in test.results if call.verdict is not None and call.verdict.status is Status.UNPROVEN]
    calls = ((call.model, call.verdict) for call in found)
    lines = [f"{BEGINNING}{model}: validation {verdict.words}" for model, verdict in calls if verdict is not None]
    if fail_on.has("high"):
        lines += [f"{BEGINNING}{call.model}: high: {one.words}" for call in test.results for one in call.findings]
    if fail_on.has("unvalidated"):
        lines += [
            f"{BEGINNING}{count_text(count, 'call')} left out: {reason}" for reason, count in test.left_out.items()
        ]
    return "\n".join(dict.fromkeys(lines))


def report_section(test: TracedTest, failures: Iterable[str] | None = None) -> str:
    """Return the section of a test's report: failed verdicts, parts that were not checked, and internal errors.

    `failures` are the lines about failed verdicts; None for those of this test alone.
    """
    lines = [*(Faults([("", test)]).lines("", test) if failures is None else failures)]
    for call in test.results:
        lines += [f"{call.model}: high: {one.words}" for one in call.findings]
        if call.verdict is not None and not has_failed(call):
            lines += [f"{call.model}: {line}" for line in _open_questions(call.verdict)]
        if call.trouble:
            lines += [f"{call.model} was called, but could not be recorded, by an error of pytest-torchlens's:"]
            lines += call.trouble.strip().splitlines()
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [f"... and {len(lines) - MOST_LINES} lines more"]
    return "\n".join(lines)


def _open_questions(verdict: Verdict) -> Iterator[str]:
    """Yield what a verdict that did not fail leaves unproven or unchecked."""
    yield from (f"unproven: {one.words}" for one in verdict.unproven)
    yield from (f"not checked: {what}" for what in _unchecked(verdict))


def _unchecked(verdict: Verdict) -> Iterator[str]:
    return (what for part in verdict.parts for what in part.unchecked)
