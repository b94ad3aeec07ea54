"""Records a call inside a user's test; an error in our code stops the recording, and never changes the call."""

from __future__ import annotations

import contextlib
import functools
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from time import thread_time
from types import TracebackType
from typing import Any

import torch
from torch._C import _get_function_stack_at
from torch._C import _len_torch_function_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils._python_dispatch import _pop_mode_temporarily

from pytest_torchlens.capture.calls import Frames
from pytest_torchlens.capture.calls import ModuleCall
from pytest_torchlens.capture.calls import Recording
from pytest_torchlens.capture.composite_bodies import body_of
from pytest_torchlens.capture.functions import FunctionInfo
from pytest_torchlens.capture.functions import info_of
from pytest_torchlens.capture.record import OnePass
from pytest_torchlens.capture.threads import SharedTracer

__tracebackhide__ = True  # pytest leaves our frames out of the traceback of what a model raises


@dataclass(frozen=True)
class Limits:
    """Limits of a recording.

    Attributes
    ----------
    calls
        Largest number of recorded calls.
    until
        Deadline on the clock of `time.thread_time`, in seconds.
    """

    calls: int
    until: float
    thread: int = field(default_factory=threading.get_ident)
    """The thread whose clock it is; others are not limited in time."""

    def reason_to_stop(self, calls: int) -> str:
        """Return why to stop now, in words; ``""`` if no limit is exceeded."""
        if calls >= self.calls:
            return f"it makes more than {self.calls:,} calls"
        is_late = threading.get_ident() == self.thread and thread_time() > self.until
        return "the time for this test was up" if is_late else ""


@dataclass(frozen=True)
class GuardedResult:
    """The result of a call and its recording.

    Attributes
    ----------
    result
        The result of the call.
    recording
        The recording; None if it was stopped early.
    stop_reason
        Why the recording was stopped: a limit, or a call that must not be recorded.
    fault
        Traceback of the error in our code that stopped the recording.
    """

    result: Any
    recording: Recording | None = None
    stop_reason: str = ""
    fault: str = ""


def record_guarded(
    call: Callable[..., Any],
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    limits: Limits,
) -> GuardedResult:
    """Make ``call(module, *args, **kwargs)`` once, and record it if possible.

    The dispatcher is watched between recorded functions, not inside them: some run differently when it is watched.

    Parameters
    ----------
    call
        ``nn.Module.__call__``, or its replacement by another tool.
    module, args, kwargs
        Its arguments.
    limits
        When to stop recording.

    Raises
    ------
    Exception
        Whatever the module raises, and nothing else.
    """
    try:
        with _torch_function_disabled():
            one = OnePass(module, args, kwargs, kind=GuardedTracer)
            one.add_checks(watch=True, thorough=True)
    except Exception:  # noqa: BLE001 - an error in our code is reported, not raised
        return GuardedResult(call(module, *args, **kwargs), fault=traceback.format_exc())
    tracer = one.tracer
    assert isinstance(tracer, GuardedTracer)  # noqa: S101 - for the type checker
    tracer.guard(limits)
    with one.active():
        result = tracer.call_module(call, (module, *args), kwargs)
    if tracer.early_stop.happened:
        return GuardedResult(result, None, tracer.early_stop.stop_reason, tracer.early_stop.fault)
    try:
        with _torch_function_disabled():
            recording = one.finish(module, result)
    except Exception:  # noqa: BLE001 - as above
        return GuardedResult(result, fault=traceback.format_exc())
    return GuardedResult(result, recording)


# our own operations on tensors must not call the test's modes and tensor classes
_torch_function_disabled = torch._C.DisableTorchFunction


class _EarlyStop:
    """Why recording was stopped, in any of the threads."""

    stop_reason = fault = ""

    @property
    def happened(self) -> bool:
        return bool(self.stop_reason or self.fault)


class _CallOutcome:
    """The outcome of the model's function, if it has been called."""

    has_returned = closed = False
    result: Any = None
    error: Exception | None = None

    def wrap(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `func` so that its outcome is stored here, until `forget` is called: a replay may call it later."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if self.closed:
                return func(*args, **kwargs)
            try:
                self.result = func(*args, **kwargs)
            except Exception as error:
                self.error = error
                raise
            self.has_returned = True
            return self.result

        wrapped.__name__ = getattr(func, "__name__", wrapped.__name__)  # names the operation of a transform
        return wrapped

    def forget(self) -> None:
        """Drop the outcome and store no other: a recording may keep the wrapped function alive."""
        self.result, self.error, self.closed = None, None, True


class _FaultGuard:
    """Guards our own code: an error in it stops the recording."""

    def __init__(self, tracer: GuardedTracer, outcome: _CallOutcome) -> None:
        self._tracer = tracer
        self._outcome = outcome

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        model_error, self._outcome.error = (
            self._outcome.error,
            None,
        )  # breaks a cycle: its traceback references this object
        if not isinstance(error, Exception) or model_error is error:
            return False
        if model_error is not None:
            raise model_error from None
        self._tracer.on_fault(error)
        return True


class GuardedTracer(SharedTracer):
    """A tracer whose own errors stop the recording, not the call."""

    def guard(self, limits: Limits) -> None:
        """Start guarding the call, with these limits."""
        self._limits = limits
        self.early_stop = _EarlyStop()
        self._outcome = _CallOutcome()
        self._exits_to_skip = 0
        self.share()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.compiler.is_compiling():
            return func(*args, **kwargs or {})
        with self._fault_guard():
            info_of(func)
        if self.over:
            return func(*args, **kwargs or {})
        return super().__torch_function__(func, types, args, kwargs)

    def _fault_guard(self, outcome: _CallOutcome | None = None) -> _FaultGuard:
        """Guard our own code; errors of the model's function, whose outcome is passed, are raised."""
        return _FaultGuard(self, _CallOutcome() if outcome is None else outcome)

    def on_fault(self, error: Exception) -> None:
        """Stop the recording because of an error in our own code."""
        self.stop(fault="".join(traceback.format_exception(error)))

    def stop(self, *, stop_reason: str = "", fault: str = "") -> None:
        """Stop the recording, not the call."""
        if not self.over:
            self.early_stop.stop_reason, self.early_stop.fault = stop_reason, fault
            self.over = True
            with contextlib.suppress(Exception):
                super().close()

    def stop_and_exit_modes(self, reason: str) -> None:
        """Stop the recording and exit our modes, before code that must not run under them.

        The later, regular exit of a mode exited here does nothing.
        """
        watch = self.watch
        self.stop(stop_reason=reason)
        with self._fault_guard():
            if watch is not None:
                watch.exit_early()
            height = _len_torch_function_stack()
            if height and _get_function_stack_at(height - 1) is self:
                self.__exit__(None, None, None)
                self._exits_to_skip += 1

    def __exit__(self, *error: object) -> None:
        if self._exits_to_skip:
            self._exits_to_skip -= 1
        else:
            super().__exit__(*error)  # type: ignore[no-untyped-call]

    def for_thread(self, name: str) -> SharedTracer:
        """Return a tracer for the thread `name`; after an error in our code this one, which no longer records."""
        with self._fault_guard():
            return super().for_thread(name)
        return self

    def close(self) -> None:
        """Stop recording."""
        with self._fault_guard():
            super().close()

    def _leaf(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if reason := self._limits.reason_to_stop(len(self.calls)):
            self.stop(stop_reason=reason)
            return info.func(*args, **kwargs)
        outer, self._outcome = self._outcome, _CallOutcome()
        try:
            with self._fault_guard(self._outcome), _torch_function_disabled():
                return super()._leaf(info, args, kwargs)
            return self._outcome.result if self._outcome.has_returned else info.func(*args, **kwargs)
        finally:
            self._outcome = outer

    def _call_unlocked(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        watched = self.watch is not None and _get_current_dispatch_mode() is self.watch
        call = functools.partial(super()._call_unlocked, info)
        with torch._C._EnableTorchFunction(), _pop_mode_temporarily() if watched else contextlib.nullcontext():
            return self._outcome.wrap(call)(args, kwargs)

    def _expand(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._fault_guard():
            body_of(info.func)  # type: ignore[arg-type]
        return info.func(*args, **kwargs) if self.over else super()._expand(info, args, kwargs)

    def _note_escape(self, info: FunctionInfo, args: tuple[Any, ...], result: Any) -> None:
        with self._fault_guard(), _torch_function_disabled():
            super()._note_escape(info, args, result)

    def _enter(self, module: Any, frames: Frames, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ModuleCall:
        with _torch_function_disabled():
            return super()._enter(module, frames, args, kwargs)

    def _leave(self, call: ModuleCall, result: Any) -> None:
        with _torch_function_disabled():
            super()._leave(call, result)


def _guarded_method(name: str) -> Callable[..., Any]:
    """Return an override of the method ``call_...`` of this name: an error in our code only stops the recording."""

    @functools.wraps(getattr(SharedTracer, name))
    def call(
        self: GuardedTracer, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *facts: Any
    ) -> Any:
        outcome = _CallOutcome()
        try:
            with self._fault_guard(outcome):
                return getattr(super(GuardedTracer, self), name)(outcome.wrap(func), args, kwargs, *facts)
            return outcome.result if outcome.has_returned else func(*args, **kwargs)
        finally:
            outcome.forget()

    return call


for _name in dir(SharedTracer):
    if _name.startswith("call_"):
        setattr(GuardedTracer, _name, _guarded_method(_name))
