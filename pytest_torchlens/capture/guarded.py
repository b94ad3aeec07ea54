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

    def passed(self, calls: int) -> str:
        """Return which of them has been passed, in words; ``""`` for none."""
        if calls >= self.calls:
            return f"it makes more than {self.calls:,} calls"
        return "the time for this test was up" if perf_counter() > self.until else ""


@dataclass(frozen=True)
class Guarded:
    """What came of a call.

    Attributes
    ----------
    result
        What it returned.
    recording
        The record; None if there is none.
    given_up
        Why there is none: a limit that was passed.
    broken
        Why there is none: the traceback of an error of ours.
    """

    result: Any
    recording: Recording | None = None
    given_up: str = ""
    broken: str = ""


def record_guarded(
    call: Callable[..., Any],
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    limits: Limits,
) -> Guarded:
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
        with _unheard():
            one = OnePass(module, args, kwargs, kind=GuardedTracer)
            one.thoroughly(watch=True, parameters=True)
    except Exception:  # noqa: BLE001 - an error of ours is to be told, not raised
        return Guarded(call(module, *args, **kwargs), broken=traceback.format_exc())
    tracer = one.tracer
    assert isinstance(tracer, GuardedTracer)  # noqa: S101 - for the type checker
    tracer.guard(limits)
    with one.running():
        result = tracer.call_module(call, (module, *args), kwargs)
    if tracer.trouble.left_off:
        return Guarded(result, None, tracer.trouble.given_up, tracer.trouble.broken)
    try:
        with _unheard():
            recording = one.finish(module, result)
    except Exception:  # noqa: BLE001 - as above
        return Guarded(result, broken=traceback.format_exc())
    recording.dispatched = (recording.dispatched or 0) + len(recording.calls)
    return Guarded(result, recording)


# modes and tensor classes of the test's are not to hear of our own looks at tensors
_unheard = torch._C.DisableTorchFunction


class _Trouble:
    """Why recording was left off, in whichever of the threads."""

    given_up = broken = ""

    @property
    def left_off(self) -> bool:
        return bool(self.given_up or self.broken)


class _Ran:
    """The outcome of the model's function, if it has been called."""

    returned = over = False
    result: Any = None
    error: Exception | None = None

    def noting(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Return `func` so that it notes its outcome here, until `forget`: a replay calls it later."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            if self.over:
                return func(*args, **kwargs)
            try:
                self.result = func(*args, **kwargs)
            except Exception as error:
                self.error = error
                raise
            self.returned = True
            return self.result

        return noted

    def forget(self) -> None:
        """Hold no outcome any more: a recording may hold the function."""
        self.result, self.error, self.over = None, None, True


class _Ours:
    """Work of our own: an error in it ends the recording."""

    def __init__(self, tracer: GuardedTracer, ran: _Ran) -> None:
        self._tracer = tracer
        self._ran = ran

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        theirs, self._ran.error = self._ran.error, None  # its traceback has a frame that holds us
        if not isinstance(error, Exception) or theirs is error:
            return False
        if theirs is not None:
            raise theirs from None
        self._tracer.on_fault(error)
        return True


class GuardedTracer(SharedTracer):
    """A tracer whose own errors end the recording, and not the call."""

    def guard(self, limits: Limits) -> None:
        """Start guarding."""
        self._limits = limits
        self.trouble = _Trouble()
        self._ran = _Ran()
        self._left = 0
        self.share()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.compiler.is_compiling():
            return func(*args, **kwargs or {})
        with self._ours():
            info_of(func)
        if self.over:
            return func(*args, **kwargs or {})
        return super().__torch_function__(func, types, args, kwargs)

    def _ours(self, ran: _Ran | None = None) -> _Ours:
        """Around work of ours, and maybe a function of the module's: what that raises, and nothing else, is raised."""
        return _Ours(self, _Ran() if ran is None else ran)

    def on_fault(self, error: Exception) -> None:
        """End the recording because of an error of our own code."""
        self.leave_off(broken="".join(traceback.format_exception(error)))

    def leave_off(self, *, given_up: str = "", broken: str = "") -> None:
        """End the recording, and not the call."""
        if not self.over:
            self.trouble.given_up, self.trouble.broken = given_up, broken
            self.over = True
            with contextlib.suppress(Exception):
                super().close()

    def give_way(self, reason: str) -> None:
        """End the recording and come off the stacks of modes, before what is to happen under none of them.

        Leaving what was left so does nothing.
        """
        watch = self.watch
        self.leave_off(given_up=reason)
        with self._ours():
            if watch is not None:
                watch.leave()
            height = _len_torch_function_stack()
            if height and _get_function_stack_at(height - 1) is self:
                self.__exit__(None, None, None)
                self._left += 1

    def __exit__(self, *error: object) -> None:
        if self._left:
            self._left -= 1
        else:
            super().__exit__(*error)  # type: ignore[no-untyped-call]

    def twin(self, name: str) -> SharedTracer:
        """Return a tracer for the thread `name`; this one, which records no more, after an error of ours."""
        with self._ours():
            return super().twin(name)
        return self

    def close(self) -> None:
        """Stop recording."""
        with self._ours():
            super().close()

    def _leaf(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if passed := self._limits.passed(len(self.calls)):
            self.leave_off(given_up=passed)
            return info.func(*args, **kwargs)
        outer, self._ran = self._ran, _Ran()
        try:
            with self._ours(self._ran), _unheard():
                return super()._leaf(info, args, kwargs)
            return self._ran.result if self._ran.returned else info.func(*args, **kwargs)
        finally:
            self._ran = outer

    def _unlocked(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        watched = self.watch is not None and _get_current_dispatch_mode() is self.watch
        call = functools.partial(super()._unlocked, info)
        with torch._C._EnableTorchFunction(), _pop_mode_temporarily() if watched else contextlib.nullcontext():
            return self._ran.noting(call)(args, kwargs)

    def _expand(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._ours():
            body_of(info.func)  # type: ignore[arg-type]
        return info.func(*args, **kwargs) if self.over else super()._expand(info, args, kwargs)

    def _note_escape(self, info: FunctionInfo, args: tuple[Any, ...], result: Any) -> None:
        with self._ours(), _unheard():
            super()._note_escape(info, args, result)

    def _enter(self, module: Any, frames: Frames, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ModuleCall:
        with _unheard():
            return super()._enter(module, frames, args, kwargs)

    def _leave(self, call: ModuleCall, result: Any) -> None:
        with _unheard():
            super()._leave(call, result)


def _guarded(name: str) -> Callable[..., Any]:
    """Return an override of the method ``call_...`` of this name: an error of ours in it ends the recording only."""

    @functools.wraps(getattr(SharedTracer, name))
    def call(
        self: GuardedTracer, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *facts: Any
    ) -> Any:
        ran = _Ran()
        try:
            with self._ours(ran):
                return getattr(super(GuardedTracer, self), name)(ran.noting(func), args, kwargs, *facts)
            return ran.result if ran.returned else func(*args, **kwargs)
        finally:
            ran.forget()

    return call


for _name in dir(SharedTracer):
    if _name.startswith("call_"):
        setattr(GuardedTracer, _name, _guarded(_name))
