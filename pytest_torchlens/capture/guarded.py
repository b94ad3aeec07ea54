"""Records a call inside a user's test; an error of our own ends the recording, and never changes the call."""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
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
from pytest_torchlens.capture.function_tracer import body_of
from pytest_torchlens.capture.functions import FunctionInfo
from pytest_torchlens.capture.functions import info_of
from pytest_torchlens.capture.record import OnePass
from pytest_torchlens.capture.threads import SharedTracer

__tracebackhide__ = True  # pytest leaves our frames out of the traceback of what a model raises


@dataclass(frozen=True)
class Limits:
    """How far a recording goes.

    Attributes
    ----------
    calls
        Recorded calls.
    until
        Moment of `time.perf_counter`, in seconds.
    """

    calls: int
    until: float

    def reason_to_stop(self, calls: int) -> str:
        """Return which of them has been passed, in words; ``""`` for none."""
        if calls >= self.calls:
            return f"it makes more than {self.calls:,} calls"
        return "the time for this test was up" if perf_counter() > self.until else ""


@dataclass(frozen=True)
class GuardedResult:
    """What came of a call.

    Attributes
    ----------
    result
        What it returned.
    recording
        The record; None if there is none.
    stop_reason
        Why there is none: a limit that was passed.
    fault
        Why there is none: the traceback of an error of ours.
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
    """Make ``call(module, *args, **kwargs)`` once, and record it if that can be done.

    The dispatcher is watched between recorded functions, and not in them: some take another path where it is.

    Parameters
    ----------
    call
        What stands for ``nn.Module.__call__``.
    module, args, kwargs
        What to call it with.
    limits
        Where to leave off recording.

    Raises
    ------
    Exception
        Whatever the module raises, and nothing else.
    """
    try:
        with _torch_function_disabled():
            one = OnePass(module, args, kwargs, kind=GuardedTracer)
            one.add_checks(watch=True, parameters=True)
    except Exception:  # noqa: BLE001 - an error of ours is to be told, not raised
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
    recording.num_dispatched = (recording.num_dispatched or 0) + len(recording.calls)
    return GuardedResult(result, recording)


# modes and tensor classes of the test's are not to hear of our own looks at tensors
_torch_function_disabled = torch._C.DisableTorchFunction


class _EarlyStop:
    """Why recording was left off, in whichever of the threads."""

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
        """Return `func` so that it notes its outcome here, until `forget`: a replay calls it later."""

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

        return wrapped

    def forget(self) -> None:
        """Hold no outcome any more: a recording may hold the function."""
        self.result, self.error, self.closed = None, None, True


class _FaultGuard:
    """Work of our own: an error in it ends the recording."""

    def __init__(self, tracer: GuardedTracer, outcome: _CallOutcome) -> None:
        self._tracer = tracer
        self._outcome = outcome

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        model_error, self._outcome.error = self._outcome.error, None  # its traceback has a frame that holds us
        if not isinstance(error, Exception) or model_error is error:
            return False
        if model_error is not None:
            raise model_error from None
        self._tracer.on_fault(error)
        return True


class GuardedTracer(SharedTracer):
    """A tracer whose own errors end the recording, and not the call."""

    def guard(self, limits: Limits) -> None:
        """Start guarding."""
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
        """Around work of ours, and maybe a function of the module's: what that raises, and nothing else, is raised."""
        return _FaultGuard(self, _CallOutcome() if outcome is None else outcome)

    def on_fault(self, error: Exception) -> None:
        """End the recording because of an error of our own code."""
        self.stop(fault="".join(traceback.format_exception(error)))

    def stop(self, *, stop_reason: str = "", fault: str = "") -> None:
        """End the recording, and not the call."""
        if not self.over:
            self.early_stop.stop_reason, self.early_stop.fault = stop_reason, fault
            self.over = True
            with contextlib.suppress(Exception):
                super().close()

    def stop_and_exit_modes(self, reason: str) -> None:
        """End the recording and come off the stacks of modes, before what is to happen under none of them.

        Leaving what was left so does nothing.
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
        """Return a tracer for the thread `name`; this one, which records no more, after an error of ours."""
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
    """Return an override of the method ``call_...`` of this name: an error of ours in it ends the recording only."""

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
