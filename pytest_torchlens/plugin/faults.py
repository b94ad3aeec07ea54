"""Groups failed calls of tests by their fault, so that each fault is told once, however many tests it fails.

A fault is a class of model with the parts that fail, the lines where they do, and the causes; a failure without any
line is a fault of its own.  Only what pytest prints is grouped: each test keeps its own outcome and, in JUnit XML, its
own text.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING
from typing import Any

from pytest_torchlens.plugin.failure import part_text
from pytest_torchlens.records import Status
from pytest_torchlens.records import TracedCall
from pytest_torchlens.records import TracedTest
from pytest_torchlens.records import count_text
from pytest_torchlens.records import from_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterable
    from collections.abc import Iterator
    from typing import TypeAlias

    import pytest

Fault: TypeAlias = "tuple[str, tuple[tuple[str, str, str], ...] | int]"
SECTION = "lens"
BEGINNING = "lens: "
"""Begins each line of the text of a test that fails by its calls alone."""
MOST_NAMES = 3
"""Other tests with the same fault that are named."""
_HIDDEN = "_pdbshown"
"""The attribute by which pytest leaves a report out of its section of failures."""


def has_failed(call: TracedCall) -> bool:
    """Whether the verdict on a call is a failure."""
    return call.verdict is not None and call.verdict.status is Status.FAILED


class Faults:
    """The faults of a run's tests.

    Parameters
    ----------
    tests
        Node id and result of each test, in the order in which they are told.
    """

    def __init__(self, tests: Iterable[tuple[str, TracedTest]]) -> None:
        self._calls: dict[Fault, Counter[str]] = {}
        self._example: dict[Fault, TracedCall] = {}
        for nodeid, test in tests:
            for call in filter(has_failed, test.results):
                fault = _fault_of(call)
                self._calls.setdefault(fault, Counter())[nodeid] += 1
                self._example.setdefault(fault, call)

    def __iter__(self) -> Iterator[tuple[str, TracedCall, str]]:
        """Yield for each fault the first test, its first call, and in words where else it is."""
        for fault, call in self._example.items():
            yield next(iter(self._calls[fault])), call, self._elsewhere(fault)

    def _elsewhere(self, fault: Fault) -> str:
        _, *others = self._calls[fault]
        more = self._calls[fault].total() - 1
        where = f", in {_names(others)}" if others else " of this test"
        return f"the same fault in {count_text(more, 'more call')}{where}" if more else ""

    def lines(self, nodeid: str, test: TracedTest) -> Iterator[str]:
        """Yield the failures of a test in full, except faults that an earlier test has: these name that test."""
        for fault, call in first_calls(test).items():
            first = next(iter(self._calls[fault]))
            if first == nodeid:
                yield f"{call.model}: validation failed"
                yield from filter(None, [self._elsewhere(fault)])
                for part in call.verdict.failed_parts if call.verdict is not None else ():
                    yield from part_text(part)
            else:
                yield f"{call.model}: validation failed as in {first}"

    def are_told_before(self, nodeid: str, test: TracedTest) -> bool:
        """Whether an earlier test has all faults of a test."""
        return nodeid not in {next(iter(self._calls[fault])) for fault in first_calls(test)}


def first_calls(test: TracedTest) -> dict[Fault, TracedCall]:
    """Return the faults of a test, each with the first call that has it."""
    found: dict[Fault, TracedCall] = {}
    for call in filter(has_failed, test.results):
        found.setdefault(_fault_of(call), call)
    return found


def place_of(nodeid: str, when: str) -> str:
    """Return the name of a test, or of its teardown."""
    return f"{nodeid} (teardown)" if when == "teardown" else nodeid


def _names(places: list[str]) -> str:
    rest = f" and {len(places) - MOST_NAMES:,} more" if len(places) > MOST_NAMES else ""
    return f"{count_text(len(places), 'other test')}: {', '.join(places[:MOST_NAMES])}{rest}"


def _fault_of(call: TracedCall) -> Fault:
    """Return what calls with the same fault have in common; a call whose fault has no line is like no other."""
    return call.model, (call.verdict.fault if call.verdict is not None else ()) or id(call)


@contextlib.contextmanager
def told_once(
    stats: dict[str, list[Any]],
    section: Callable[[TracedTest, Iterable[str]], str],
    failure: Callable[[TracedTest], str],
) -> Iterator[None]:
    """Let pytest print each fault once inside the block.

    Parameters
    ----------
    stats
        The reports of the run by category, as the terminal reporter has them.
    section
        Returns the section of a test from its result and the lines about its failed calls.
    failure
        Returns the text of a test that failed by its calls' verdicts alone.
    """
    reports = [
        (report, place_of(report.nodeid, report.when), from_json(report.lens_traced_test, TracedTest))
        for category in ("error", "failed")
        for report in stats.get(category, ())
        if getattr(report, "lens_traced_test", "")
    ]
    faults = Faults((place, test) for _, place, test in reports)
    with contextlib.ExitStack() as changes:
        for report, place, test in reports:
            if any(map(has_failed, test.results)):
                changes.enter_context(_with_section(report, section(test, faults.lines(place, test))))
                if report.longrepr == failure(test) and faults.are_told_before(place, test):
                    changes.enter_context(_hidden(report))
        for (first, _), *others in _by_text(reports):
            if others:
                text = f"the same in {_names([place for _, place in others])}"
                changes.enter_context(_with_sections(first, [*first.sections, (SECTION, text)]))
                for report, _ in others:
                    changes.enter_context(_hidden(report))
        yield


def _by_text(reports: Iterable[tuple[Any, str, TracedTest]]) -> Iterable[list[tuple[Any, str]]]:
    """Return reports, each with its test, that no failed verdict but ``--lens-fail-on`` fails; together if alike."""
    found: dict[str, list[tuple[Any, str]]] = {}
    for report, place, test in reports:
        is_ours = isinstance(report.longrepr, str) and report.longrepr.startswith(BEGINNING)
        if is_ours and not any(map(has_failed, test.results)) and all(map(_has_line, test.results)):
            found.setdefault(report.longrepr, []).append((report, place))
    return found.values()


def _has_line(call: TracedCall) -> bool:
    """Whether the text about a call names a line, or nothing of it is unproven."""
    unproven = call.verdict.unproven if call.verdict is not None else ()
    return not unproven or any(one.source_line for one in unproven)


def _with_section(report: pytest.TestReport, text: str) -> contextlib.AbstractContextManager[None]:
    return _with_sections(report, [(name, text if name == SECTION else content) for name, content in report.sections])


@contextlib.contextmanager
def _with_sections(report: pytest.TestReport, sections: list[tuple[str, str]]) -> Iterator[None]:
    former, report.sections = report.sections, sections
    try:
        yield
    finally:
        report.sections = former


@contextlib.contextmanager
def _hidden(report: pytest.TestReport) -> Iterator[None]:
    if hasattr(report, _HIDDEN):  # by pytest itself: with --pdb it was shown already
        yield
        return
    setattr(report, _HIDDEN, True)
    try:
        yield
    finally:
        delattr(report, _HIDDEN)
