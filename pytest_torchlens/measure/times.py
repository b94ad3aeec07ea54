"""Times the plain forward pass, and each operation of recorded passes without the overhead of recording."""

from __future__ import annotations

import functools
import statistics
import timeit
from collections.abc import Callable
from time import perf_counter
from time import perf_counter_ns
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import record
from pytest_torchlens.replay.calls import replay_calls

_SHORTEST = 0.01
"""Minimum seconds of one timing; it runs a shorter pass several times."""
_MOST_RUNS = 20
"""Maximum runs of one timing, however short a pass is."""
_TINY = 400
"""Number of tiny operations that measure the overhead."""


class Times(NamedTuple):
    """Median and interquartile range of the plain passes, and the time of each operation; all in seconds."""

    median: float
    spread: float
    runs: int
    threads: int
    operations: tuple[float, ...]
    overhead: float
    method: str


def times_of(run: Callable[[], object], again: Callable[[], Recording], recording: Recording, passes: int) -> Times:
    """Time plain and recorded passes alternately, so that both run under the same conditions.

    Parameters
    ----------
    run
        A plain pass.
    again
        Records one more pass.
    recording
        The recording whose operations are timed.
    passes
        Number of passes of each kind.
    """
    threads = torch.get_num_threads()
    seconds_of(run, 1)  # warms up
    number = min(max(1, round(_SHORTEST / max(seconds_of(run, 1), 1e-9))), _MOST_RUNS)
    plain: list[float] = []
    recorded: list[list[int]] = []
    for _ in range(passes):
        plain.append(seconds_of(run, number))
        other = again()
        recorded += [_call_nanoseconds(other)] if same_calls(other, recording) else []
    recorded = recorded or [_call_nanoseconds(recording)]
    overhead = overhead_seconds()
    seconds = tuple(max(0.0, statistics.median(each) / 1e9 - overhead) for each in zip(*recorded, strict=True))
    method = f"median of {len(recorded)} recorded passes, less {overhead * 1e6:.1f} µs each that recording adds"
    lower, median, upper = map(float, np.quantile(plain, (0.25, 0.5, 0.75)))
    return Times(median, upper - lower, number * passes, threads, seconds, overhead, method)


def seconds_of(run: Callable[[], object], number: int) -> float:
    """Return the mean seconds of `number` runs after a warm-up, with garbage collection disabled."""
    timer = timeit.Timer(run, timer=clock)
    timer.timeit(max(number // 100, 2))
    return timer.timeit(number) / number


def clock() -> float:
    """Return the time in seconds, after waiting for the accelerator."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return perf_counter()


def _call_nanoseconds(recording: Recording) -> list[int]:
    return [call.elapsed for call in recording.calls]


def same_calls(one: Recording, other: Recording) -> bool:
    """Return whether two passes called the same functions in the same order."""
    return [call.info.name for call in one.calls] == [call.info.name for call in other.calls]


class _Chain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(_TINY):
            x = torch.neg(x)
        return x


@functools.cache
def overhead_seconds() -> float:
    """Return the seconds that recording adds to the time of one operation, measured on a chain of tiny ones."""
    chain, x = _Chain(), torch.ones(4)
    with torch.no_grad():
        record(chain, (x,))
        recorded = min(statistics.median(call.elapsed for call in record(chain, (x,)).calls) for _ in range(5))
        plain = min(_nanoseconds(functools.partial(chain, x)) for _ in range(5)) / _TINY
    return max(0.0, recorded - plain) / 1e9


def _nanoseconds(run: Callable[[], object]) -> int:
    start = perf_counter_ns()
    run()
    return perf_counter_ns() - start


def seconds_on_cuda(recording: Recording) -> tuple[float, ...]:
    """Run each call again between two CUDA events, and return the seconds between them.

    Raises
    ------
    NotReplayableError
        If a call cannot be run again.
    """
    starts: list[torch.cuda.Event] = []
    ends: list[torch.cuda.Event] = []
    for _ in replay_calls(recording, lambda: _mark(starts)):
        _mark(ends)
    torch.cuda.synchronize()
    return tuple(start.elapsed_time(end) / 1e3 for start, end in zip(starts, ends, strict=True))


def _mark(events: list[torch.cuda.Event]) -> None:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    events.append(event)
