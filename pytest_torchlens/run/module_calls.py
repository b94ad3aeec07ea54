"""Records and validates the outermost module calls that a test makes.

`Autotrace` makes each call once, for the test.  It does not record calls that recording would change
(`why_not_traced`), nor calls with the same signature as one validated before (`call_signature`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace
from time import perf_counter
from time import thread_time
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from pytest_torchlens.capture.guarded import GuardedResult
from pytest_torchlens.capture.guarded import Limits
from pytest_torchlens.capture.guarded import record_guarded
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.looks import named_buffers
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.capture.opaque import is_opaque
from pytest_torchlens.capture.patches import module_call_listener
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.graph import unlink
from pytest_torchlens.history.history_options import TraceOptions
from pytest_torchlens.records import AuditFinding
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import Status
from pytest_torchlens.records import TracedCall
from pytest_torchlens.records import TracedTest
from pytest_torchlens.records import Verdict
from pytest_torchlens.run.activation_statistics import severe_findings
from pytest_torchlens.run.call_signature import call_signature
from pytest_torchlens.validate.single import Bounds
from pytest_torchlens.validate.single import validate_once
from pytest_torchlens.validate.unobtrusive import hooks_and_modes_disabled


def why_not_traced(module: torch.nn.Module) -> str:
    """Return why the next call of a module is not recorded; ``""`` if it is recorded."""
    return next((reason for reason, holds in _REASONS if holds(module)), "")


def _in_backward(_: torch.nn.Module) -> bool:
    return torch._C._current_graph_task_id() != -1


def _in_transform(_: torch.nn.Module) -> bool:
    return torch._C._functorch.peek_interpreter_stack() is not None


def _is_fake(_: torch.nn.Module) -> bool:
    modes = _get_current_dispatch_mode_stack()
    return any(mode.is_infra_mode() for mode in modes)


def _is_profiled(_: torch.nn.Module) -> bool:
    return bool(torch._C._autograd._profiler_enabled())


def _is_compiled(module: torch.nn.Module) -> bool:
    return is_opaque(module) or module._compiled_call_impl is not None


def _has_compiled(module: torch.nn.Module) -> bool:
    return any(_is_compiled(part) and not isinstance(part, torch.jit.ScriptModule) for _, part in named_modules(module))


def _is_lazy(module: torch.nn.Module) -> bool:
    return any(is_lazy(tensor) for _, tensor in itertools.chain(named_parameters(module), named_buffers(module)))


def _has_hooks_that_stay(_: torch.nn.Module) -> bool:
    """Whether hooks on saved tensors are set that this PyTorch cannot list, and so cannot disable for a while."""
    hooks: Any = torch._C._autograd
    if hasattr(hooks, "_top_saved_tensors_default_hooks") or not hooks._saved_tensors_hooks_is_enabled():
        return False
    try:
        hooks._saved_tensors_hooks_disable("")
    except RuntimeError:  # some are set
        return True
    finally:
        hooks._saved_tensors_hooks_enable()
    return False


def _is_distributed(_: torch.nn.Module) -> bool:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return bool(distributed.get_world_size() > 1)


def _is_captured(_: torch.nn.Module) -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


_REASONS: tuple[tuple[str, Callable[[torch.nn.Module], bool]], ...] = (
    ("it was made in backward", _in_backward),
    ("it was made inside a function transform", _in_transform),
    ("its tensors are fake", _is_fake),
    ("a profiler was on", _is_profiled),
    ("it is compiled or scripted", _is_compiled),
    ("a module of it is compiled", _has_compiled),
    ("it has yet to make its parameters", _is_lazy),
    ("hooks on saved tensors are set, which this PyTorch cannot take aside", _has_hooks_that_stay),
    ("other processes take part in it", _is_distributed),
    ("a CUDA graph was captured", _is_captured),
)


__tracebackhide__ = True  # pytest leaves our frames out of the traceback of what a model raises

MOST_CALLS = 100_000
"""Torch function calls in one module call above which recording stops; they take some 150 MiB."""
NO_TIME = "the time for this test was up"
CALL_RAISED = "it raised"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much to trace in one test.

    Attributes
    ----------
    every
        Whether to validate calls with the same signature as one validated before, too.
    parts
        Parts of the validation.
    seconds
        CPU time of this thread that our own work may take in the test, in seconds; a module call that has begun is
        made to its end.
    nbytes
        Memory that the replay of one call may hold, in bytes.
    ignore
        Audit rules whose findings are left out.
    keep
        Whether to keep the records of the calls, for a report.
    """

    every: bool
    parts: tuple[str, ...]
    seconds: float
    nbytes: int
    ignore: tuple[str, ...] = ()
    keep: bool = False


NOTHING = Plan(every=False, parts=(), seconds=0.0, nbytes=0)


@dataclass(frozen=True)
class OutermostCall:
    """An outermost call of a module, to be made once."""

    call: Callable[..., Any]
    """The original ``nn.Module.__call__``."""
    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def make(self) -> Any:
        """Make the call without recording it."""
        return self.call(self.module, *self.args, **self.kwargs)


class Autotrace:
    """Intercepts the outermost module calls of tests, one test at a time, and makes them.

    The test gets the same results as without it: see `record_guarded` and `validate_once`.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._known: dict[str, str] = {}
        self._cut_short = False
        """Whether the last verdict was limited by time or memory."""
        self._ended: tuple[set[str], float] = set(), 0.0
        """Digests of the calls, and CPU seconds, of the test that ended last."""
        self.begin("", NOTHING)

    def begin(self, test: str, plan: Plan, *, goes_on: bool = False) -> None:
        """Begin a test, which may be a rerun of the same one; its teardown `goes_on` with its budget and its calls."""
        self._test, self._plan = test, plan
        self._calls = self._alike = 0
        self._skip_reasons: Counter[str] = Counter()
        self._digests, self._cpu_seconds = self._ended if goes_on else (set[str](), 0.0)
        self._results: list[TracedCall] = []
        self._seconds = 0.0
        self.histories: list[tuple[str, HistoryRecord, Verdict, tuple[AuditFinding, ...]]] = []
        """Class name, record, verdict and severe findings of each validated call, if the plan keeps them."""

    def result(self) -> TracedTest:
        """Return the result of the test."""
        return TracedTest(
            calls=self._calls,
            known=self._alike,
            skip_reasons=dict(self._skip_reasons),
            results=tuple(self._results),
            seconds=self._seconds,
        )

    def forget(self) -> None:
        """End the test and free its data."""
        self._ended = self._digests, self._cpu_seconds
        self.begin("", NOTHING)

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Intercept module calls in this thread inside the block."""
        with module_call_listener(self._hear):
            yield

    def _hear(
        self, call: Callable[..., Any], module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        one = OutermostCall(call, module, args, kwargs)
        if os.getpid() != self._process:  # a process that the test forked: its findings would be lost
            return one.make()
        self._calls += 1
        with self._timed(), torch._C.DisableTorchFunction():
            digest = self._digest_if_new(one)
        return one.make() if digest is None else self._trace(one, digest)

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        start, cpu_start = perf_counter(), thread_time()
        try:
            yield
        finally:
            self._seconds += perf_counter() - start
            self._cpu_seconds += thread_time() - cpu_start

    def _deadline(self) -> float:
        """Return the moment of `time.thread_time` at which the budget of the test is used up."""
        return thread_time() + self._plan.seconds - self._cpu_seconds

    def _digest_if_new(self, one: OutermostCall) -> str | None:
        """Return the signature of a call, ``""`` for a call without one; None if the call is not to be traced."""
        try:
            if reason := NO_TIME if self._cpu_seconds >= self._plan.seconds else why_not_traced(one.module):
                self._skip_reasons[reason] += 1
                return None
            digest = call_signature(one.module, one.args, one.kwargs)
        except Exception as error:  # noqa: BLE001 - a module may be in any state
            self._skip_reasons[f"it could not be looked at: {type(error).__name__}: {error}"] += 1
            return None
        if digest is not None and not self._plan.every and self._is_known(digest):
            self._alike += 1
            return None
        return digest or ""

    def _is_known(self, digest: str) -> bool:
        """Return whether a call with this signature was traced before, except in an earlier run of the same test."""
        known = digest in self._digests or self._known.setdefault(digest, self._test) != self._test
        self._digests.add(digest)
        return known

    def _trace(self, one: OutermostCall, digest: str) -> Any:
        start = perf_counter()
        limits = Limits(MOST_CALLS, self._deadline())
        guarded: GuardedResult | None = None
        found: TracedCall | None = None
        try:
            with self._timed():
                guarded = record_guarded(one.call, one.module, one.args, one.kwargs, limits)
                found = self._judge(guarded, limits.until)
                self._note(type(one.module).__name__, found, start)
        finally:
            if guarded is None:
                self._skip_reasons[CALL_RAISED] += 1
            if found is None or not found.verdict or self._cut_short:  # not proven: other tests record alike calls
                self._known.pop(digest, None)
            if found is None or found.verdict is None or self._cut_short:  # and this one too
                self._digests.discard(digest)
        return guarded.result

    def prove(self, history: ModelHistory) -> None:
        """Validate a history that the test itself has just made."""
        start = perf_counter()
        self._calls += 1
        with self._timed():
            self._note(history.model_name, self._validated(history, self._deadline()), start)

    def _note(self, model: str, found: TracedCall, start: float) -> None:
        self._results.append(replace(found, model=model, seconds=perf_counter() - start))

    def _judge(self, guarded: GuardedResult, until: float) -> TracedCall:
        if guarded.recording is None:
            return TracedCall(model="", stop_reason=guarded.stop_reason, trouble=guarded.fault)
        try:
            history = ModelHistory(guarded.recording, TraceOptions(layers_to_save=None))
        except Exception:  # noqa: BLE001 - our own error is reported, not raised
            return TracedCall(model="", trouble=traceback.format_exc())
        try:
            return self._validated(history, until)
        finally:  # a test may check that its objects are freed
            unlink(vars(history).get("nodes", []))

    def _validated(self, history: ModelHistory, until: float) -> TracedCall:
        operations = len(history.recording.calls)
        try:
            validation = validate_once(history, Bounds(until, self._plan.nbytes), self._plan.parts)
            verdict, self._cut_short = validation.verdict, validation.cut_short
            findings = self._severe_findings(history, verdict)
            if self._plan.keep:
                self.histories.append((history.model_name, history.record(), verdict, findings))
        except Exception:  # noqa: BLE001 - report our own error, do not raise it
            return TracedCall(model="", trouble=traceback.format_exc(), operations=operations)
        return TracedCall(model="", verdict=verdict, findings=findings, operations=operations)

    def _severe_findings(self, history: ModelHistory, verdict: Verdict) -> tuple[AuditFinding, ...]:
        """Return what the audit finds in a call whose output is not finite, except of ignored rules."""
        replay = next((part.status for part in verdict.parts if part.name == "replay"), Status.NOT_RUN)
        with hooks_and_modes_disabled():
            found = severe_findings(history, replay in (Status.PASSED, Status.PASSED_WITH_TOLERANCE))
        return tuple(one for one in found if one.rule not in self._plan.ignore)
