"""Threads that a forward pass starts: each has a tracer of its own that fills the same recording, call by call."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable
from typing import Any

from pytest_torchlens.capture.calls import ModuleCall
from pytest_torchlens.capture.functions import Function
from pytest_torchlens.capture.tracer import Tracer


class SharedTracer(Tracer):
    """A tracer whose recording other threads fill too: one call at a time, so that their order is one to replay."""

    lock: threading.RLock

    def __torch_function__(
        self, func: Function, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with self.lock:
            if self.ledger.closed:
                return func(*args, **kwargs or {})
            return super().__torch_function__(func, types, args, kwargs)

    def _enter(self, module: Any, outer: ModuleCall | None) -> ModuleCall:
        with self.lock:
            return super()._enter(module, outer)


def tracer_for_thread(tracer: Tracer, name: str) -> SharedTracer:
    """Return a tracer for a thread about to start; the passes that start none never pay for a lock."""
    if not isinstance(tracer, SharedTracer):
        tracer.__class__ = SharedTracer
        assert isinstance(tracer, SharedTracer)  # noqa: S101 - for the type checker
        tracer.lock = threading.RLock()
    twin = copy.copy(tracer)
    twin.apart()
    twin.watch = tracer.watch.for_thread(twin, name) if tracer.watch is not None else None
    return twin
