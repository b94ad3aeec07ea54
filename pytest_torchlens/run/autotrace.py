"""Records and validates the models that somebody's tests call, as they call them."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

from pytest_torchlens.capture.guarded import Guarded
from pytest_torchlens.capture.guarded import Limits
from pytest_torchlens.capture.guarded import record_guarded
from pytest_torchlens.capture.patches import listening
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.graph import unlink
from pytest_torchlens.history.history_options import TraceOptions
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import TracedCall
from pytest_torchlens.records import TracedTest
from pytest_torchlens.records import Verdict
from pytest_torchlens.run.likeness import likeness
from pytest_torchlens.run.untraced import why_not_traced
from pytest_torchlens.validate.single import Bounds
from pytest_torchlens.validate.single import validate_once

__tracebackhide__ = True  # pytest leaves our frames out of the traceback of what a model raises

MOST_CALLS = 100_000
"""Calls of torch functions in one module call, above which recording leaves off: some 150 MiB."""
NO_TIME = "the time for this test was up"
RAISED = "it raised"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is traced in one test.

    Attributes
    ----------
    every
        Whether calls that are like one validated before are validated too.
    parts
        Parts of the validation.
    seconds
        Time that may be spent in the test, in seconds; a module call that was begun is made to its end.
    nbytes
        Memory that the replay of one call may hold, in bytes.
    keep
        Whether the records of the calls are kept, for a report.
    """

    every: bool
    parts: tuple[str, ...]
    seconds: float
    nbytes: int
    keep: bool = False


NOTHING = Plan(every=False, parts=(), seconds=0.0, nbytes=0)


@dataclass(frozen=True)
class ModuleCall:
    """An outermost call of a module, to be made once."""

    call: Callable[..., Any]
    """What stands for ``nn.Module.__call__``."""
    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def make(self) -> Any:
        """Make it, with nothing recorded."""
        return self.call(self.module, *self.args, **self.kwargs)


class Autotrace:
    """Hears of the outermost module calls of tests, one test at a time, and makes them.

    What the test gets is what it would get without: see `record_guarded` and `validate_once`.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._known: dict[str, str] = {}
        self.begin("", NOTHING)

    def begin(self, test: str, plan: Plan) -> None:
        """Begin with a test, or anew with one that is run again."""
        self._test, self._plan = test, plan
        self._calls = self._alike = 0
        self._passed_over: Counter[str] = Counter()
        self._digests: set[str] = set()
        self._found: list[TracedCall] = []
        self._seconds = 0.0
        self.histories: list[tuple[str, HistoryRecord, Verdict]] = []
        """Class name, record and verdict of each call that was validated, where they are kept."""

    def found(self) -> TracedTest:
        """Return what was found in the test."""
        return TracedTest(
            calls=self._calls,
            known=self._alike,
            passed_over=dict(self._passed_over),
            found=tuple(self._found),
            seconds=self._seconds,
        )

    def forget(self) -> None:
        """Be done with the test."""
        self.begin("", NOTHING)

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Listen for as long as this lasts, in this thread."""
        with listening(self._hear):
            yield

    def _hear(
        self, call: Callable[..., Any], module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        one = ModuleCall(call, module, args, kwargs)
        if os.getpid() != self._process:  # a child of the test's, whose findings nobody would hear of
            return one.make()
        start = perf_counter()
        self._calls += 1
        with torch._C.DisableTorchFunction():
            digest = self._digest_if_new(one)
        self._seconds += perf_counter() - start
        return one.make() if digest is None else self._trace(one, digest)

    def _digest_if_new(self, one: ModuleCall) -> str | None:
        """Return what calls like this one have in common; None if this one is not to be traced."""
        try:
            if reason := NO_TIME if self._seconds >= self._plan.seconds else why_not_traced(one.module):
                self._passed_over[reason] += 1
                return None
            digest = likeness(one.module, one.args, one.kwargs)
        except Exception as error:  # noqa: BLE001 - a module may be in any state, and is the test's affair
            self._passed_over[f"it could not be looked at: {type(error).__name__}: {error}"] += 1
            return None
        if not self._plan.every and self._is_known(digest):
            self._alike += 1
            return None
        return digest

    def _is_known(self, digest: str) -> bool:
        """Return whether a call like this was traced before, but for the last time that the same test was run."""
        known = digest in self._digests or self._known.setdefault(digest, self._test) != self._test
        self._digests.add(digest)
        return known

    def _trace(self, one: ModuleCall, digest: str) -> Any:
        start = perf_counter()
        limits = Limits(MOST_CALLS, start + self._plan.seconds - self._seconds)
        guarded: Guarded | None = None
        try:
            guarded = record_guarded(one.call, one.module, one.args, one.kwargs, limits)
            self._note(type(one.module).__name__, self._judge(guarded, limits.until), start)
        finally:
            self._seconds += perf_counter() - start
            if guarded is None:
                self._passed_over[RAISED] += 1
            if guarded is None or guarded.given_up:  # there may be a better chance
                self._known.pop(digest, None)
        return guarded.result

    def prove(self, history: ModelHistory) -> None:
        """Validate a history that the test itself made, of a call right before."""
        start = perf_counter()
        self._calls += 1
        found = self._validated(history, start + self._plan.seconds - self._seconds)
        self._note(history.model_name, found, start)
        self._seconds += perf_counter() - start

    def _note(self, model: str, found: TracedCall, start: float) -> None:
        self._found.append(replace(found, model=model, seconds=perf_counter() - start))

    def _judge(self, guarded: Guarded, until: float) -> TracedCall:
        if guarded.recording is None:
            return TracedCall(model="", left_off=guarded.given_up, trouble=guarded.broken)
        history = ModelHistory(guarded.recording, TraceOptions(layers_to_save=None))
        try:
            return self._validated(history, until)
        finally:  # a test may ask whether what it let go of is freed
            unlink(vars(history).get("nodes", []))

    def _validated(self, history: ModelHistory, until: float) -> TracedCall:
        operations = len(history.recording.calls)
        try:
            verdict = validate_once(history, Bounds(until, self._plan.nbytes), self._plan.parts).verdict
            if self._plan.keep:
                self.histories.append((history.model_name, history.record(), verdict))
        except Exception:  # noqa: BLE001 - an error of ours is to be told, not raised
            return TracedCall(model="", trouble=traceback.format_exc(), operations=operations)
        return TracedCall(model="", verdict=verdict, operations=operations)
