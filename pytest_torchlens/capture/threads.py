"""Records the threads that a forward pass starts: each has its own tracer, and all fill the same recording."""

from __future__ import annotations

import contextlib
import copy
import threading
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from pytest_torchlens.capture.calls import Frames
from pytest_torchlens.capture.calls import ModuleCall
from pytest_torchlens.capture.calls import Recording
from pytest_torchlens.capture.functions import Function
from pytest_torchlens.capture.functions import FunctionInfo
from pytest_torchlens.capture.functions import is_of_torch
from pytest_torchlens.capture.memory import Retention
from pytest_torchlens.capture.tracer import Tracer

__tracebackhide__ = True  # pytest leaves our frames out of the traceback of what a model raises

_IN_PROGRESS = frozenset(["_expanding", "_num_escapes", "_group", "busy", "transforming"])


class PassOverError(Exception):
    """A function of the model returned `result` after the pass was over."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


class SharedTracer(Tracer):
    """A tracer that shares its recording with tracers of other threads.

    Our own work on a call is done under a lock, and a call is added after its function has returned.  Other threads
    can use the result only later, so the calls can be replayed in the recorded order.  Calls that draw random numbers
    run one at a time, so that each finds the generator in its recorded state.
    """

    def share(self) -> None:
        """Create the lock, and the list of tracers that share the recording."""
        self.lock = threading.RLock()
        self._draw_lock = threading.RLock()
        self._thread_tracers: list[SharedTracer] = []
        self._thread = ""

    def for_thread(self, name: str) -> SharedTracer:
        """Return a tracer for the thread `name` that fills the same recording."""
        self.recording.threaded = True
        other = copy.copy(self)
        other.reset_call_state()
        other._thread, other.function_modes = name, ()
        other.watch = self.watch.for_thread(other, name) if self.watch is not None else None
        self._thread_tracers.append(other)
        return other

    def __torch_function__(
        self, func: Function, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.over:
            self._note_late_call()
            return func(*args, **kwargs or {})
        return super().__torch_function__(func, types, args, kwargs)

    def stop_and_exit_modes(self, reason: str) -> None:
        """Called before code that recording could change; does nothing here."""

    def _leaf(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        one_at_a_time = (
            self._draw_lock if info.draws and not info.opaque and is_of_torch(info.func) else contextlib.nullcontext()
        )
        with one_at_a_time, self.lock:  # type: ignore[union-attr]
            self.table.set_callbacks(self._record_view, self._record_write)
            try:
                return super()._leaf(info, args, kwargs)
            except PassOverError as error:
                return error.result

    def _call_unlocked(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        lock = self.lock
        lock.release()  # type: ignore[union-attr]
        try:
            result = info.func(*args, **kwargs)
        finally:
            lock.acquire()  # type: ignore[union-attr]
        if self.over:
            raise PassOverError(result)
        return result

    def _enter(self, module: Any, frames: Frames, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ModuleCall:
        with self.lock:  # type: ignore[union-attr]
            return super()._enter(module, frames, args, kwargs)

    def close(self) -> None:
        """Stop recording in all threads; threads that live on keep nothing of the recording alive."""
        with self.lock:  # type: ignore[union-attr]
            super().close()
            for other in self._thread_tracers:
                other._release_recording()
            self._thread_tracers.clear()

    def _release_recording(self) -> None:
        """Switch to an empty recording, so that the thread can finish its current call."""
        self._untraced = self.recording.untraced
        blank = Tracer(Recording("", {}, weakref.ref(torch.nn.Module()), None), Retention(), False, {}, {})
        vars(self).update({name: value for name, value in vars(blank).items() if name not in _IN_PROGRESS})
        self.module, self.over = None, True

    def _note_late_call(self) -> None:
        message = f"thread {self._thread!r} went on after the pass: what it did then was not recorded"
        if message not in self._untraced:
            self._untraced.append(message)


def tracer_for_thread(tracer: Tracer, name: str) -> SharedTracer:
    """Return a tracer for a thread about to start.  A pass that starts no thread never needs a lock."""
    if not isinstance(tracer, SharedTracer):
        tracer.__class__ = SharedTracer
        assert isinstance(tracer, SharedTracer)  # noqa: S101 - for the type checker
        tracer.share()
    return tracer.for_thread(name)
