"""What was found of the models that tests call, in words: in a test's report, and at the end of the run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from pytest_torchlens.plugin.failure import part_text
from pytest_torchlens.records import UNCHECKED
from pytest_torchlens.records import Status
from pytest_torchlens.records import TracedCall
from pytest_torchlens.records import TracedTest
from pytest_torchlens.records import Verdict
from pytest_torchlens.records import from_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

MOST_LINES = 40
SHOWN = 10
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
    return (note for part in verdict.parts for note in part.notes if note.startswith(UNCHECKED))


def _parts(call: TracedCall) -> Iterator[str]:
    for part in call.verdict.parts if call.verdict is not None else ():
        if not part.status.ok:
            yield from part_text(part)


class Traced:
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
        for nodeid, call in failed[:SHOWN]:
            yield f"FAILED {nodeid}: {call.model}: {call.verdict.words if call.verdict is not None else ''}"
        if len(failed) > SHOWN:
            yield f"... and {_many(len(failed) - SHOWN, 'failed verdict')} more"

    def _unproved(self) -> Iterator[str]:
        reasons = Counter(
            part.reason
            for _, call in self._calls()
            if call.verdict is not None and not call.verdict and not has_failed(call)
            for part in call.verdict.parts
            if part.name == "replay"
        )
        for reason, count in reasons.most_common(SHOWN):
            yield f"not replayed: {count:,}, for {reason}"
        notes = Counter(note for _, call in self._calls() if call.verdict for note in _unchecked(call.verdict))
        for note, count in notes.most_common(SHOWN):
            yield f"{note} ({_many(count, 'call')})"

    def _not_recorded(self) -> Iterator[str]:
        reasons: Counter[str] = Counter()
        for test in self._tests.values():
            reasons.update(test.passed_over)
            reasons.update(call.left_off for call in test.found if call.left_off)
        for reason, count in reasons.most_common(SHOWN):
            yield f"not recorded: {count:,}, for {reason}"
        trouble = [(nodeid, call) for nodeid, call in self._calls() if call.trouble]
        if trouble:
            nodeid, call = trouble[0]
            error = call.trouble.strip().splitlines()[-1]
            yield f"not recorded: {len(trouble):,}, by errors of pytest-torchlens's; please report the first"
            yield f"  {nodeid}: {call.model}: {error}"


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"
