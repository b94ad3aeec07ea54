"""Finds what calls count in a model and around it, and whether later calls read that.

The output may not change while the count goes on: the next values of a counter are tried, in as many calls, and larger
ones.  Of a buffer the recorded pass tells whether anything reads it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import torch

from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.checks.compare import differing_outputs
from pytest_torchlens.checks.draws import is_whole
from pytest_torchlens.checks.held import listed
from pytest_torchlens.checks.places import differing
from pytest_torchlens.checks.results import failure_at
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import OutOfTimeError
from pytest_torchlens.checks.subject import Outputs
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.surroundings import Container
from pytest_torchlens.checks.surroundings import Place
from pytest_torchlens.checks.surroundings import places_in
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import Failure
from pytest_torchlens.records import output_name
from pytest_torchlens.replay.run import needed_values
from pytest_torchlens.replay.run import read_by_python

_NEXT = 6
"""So many values that follow are tried: with those of the calls before, each remainder by up to eight."""
_LARGER = (11, 101, 1009, 100_003)
_CALLED = 4
"""The number of the first call that is tried: after the first, one on other values, and the second."""
_FEW = 1000


class Counter(NamedTuple):
    """A number that calls change by the same each time, or a container that they lengthen."""

    name: str
    place: Place
    key: Any
    """Where the number is; None for a container."""
    value: Any
    step: Any
    """How much one call changes it by."""

    @property
    def is_number(self) -> bool:
        """Whether it can be set."""
        return self.key is not None

    def jump(self, calls: int) -> None:
        """Set the number as if so many calls had been made."""
        if self.is_number:
            self.place.put(self.key, self.value + self.step * calls)


class Numbers:
    """The whole and real numbers in a model and around it, and the lengths of containers, at one time."""

    def __init__(self, subject: Subject) -> None:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            self._found = dict(_numbers_in(subject.once(("places",), lambda: _places(subject))))

    def counted(self, later: Numbers, calls: int) -> list[Counter]:
        """Return what so many calls have counted until later."""
        with torch._C.DisableTorchFunction(), torch.no_grad():
            both = ((key, self._found[key], later._found[key]) for key in self._found.keys() & later._found.keys())
            return [
                Counter(place.words_of(at) if at is not None else place.words, place, at, value, step)
                for (_, at), (_, before), (place, value) in both
                if (step := _step(before, value, calls)) is not None
            ]


def _places(subject: Subject) -> list[Place]:
    uncalled = subject.tools.uncalled
    return [*places_in(subject.model), *(uncalled.surroundings.places if uncalled is not None else ())]


def _numbers_in(places: list[Place]) -> Iterator[tuple[tuple[int, Any], tuple[Place, Any]]]:
    for place in places:
        if isinstance(place, Container):
            yield (id(place.owner), None), (place, len(place.contents()))
        for key, value in place.items():
            if type(value) in (int, float):
                yield (id(place.owner), key), (place, value)
            elif is_a(value, torch.Tensor) and _may_count(value):
                yield (id(place.owner), key), (place, value.detach().clone())


def _may_count(tensor: torch.Tensor) -> bool:
    return not is_lazy(tensor) and is_whole(tensor) and tensor.layout is torch.strided and tensor.numel() <= _FEW


def _step(before: Any, value: Any, calls: int) -> Any:
    """Return how much one of several calls has changed a number by; None if it is the same, or no number."""
    if is_a(value, torch.Tensor):
        is_like = is_a(before, torch.Tensor) and before.shape == value.shape and before.dtype is value.dtype
        return (value - before) // calls if is_like and not torch.equal(value, before) else None
    if type(before) is not type(value) or before == value or not math.isfinite(value - before):
        return None
    return (value - before) / calls if isinstance(value, float) else (value - before) // calls or value - before


class Counted:
    """What the calls between two looks have counted.

    Attributes
    ----------
    notes
        Buffers that nothing reads.
    unseen
        Numbers of which not all values can be tried.
    """

    def __init__(self, subject: Subject, before: Numbers | None, after: Numbers | None, *, calls: int) -> None:
        self._subject = subject
        self._counters = before.counted(after, calls) if before and after else []
        self.notes: tuple[str, ...] = ()
        self.unseen: tuple[str, ...] = ()

    def only_counts(self, name: str) -> bool:
        """Return whether a buffer counts, and nothing reads it; then it is not looked at any more."""
        others = [counter for counter in self._counters if counter.name != name]
        if len(others) == len(self._counters) or _reads_buffer(self._subject.history, name):
            return False
        self._counters = others
        self.notes += (f"{name} counts calls, and nothing reads it",)
        return True

    def failure(self, first: Outputs, advice: str) -> Failure | None:
        """Return the failure of a later call whose output is not that of the first one; None if it is."""
        if not self._counters:
            return None
        names = listed([counter.name for counter in self._counters])
        try:
            found = self._later_difference(first)
        except (ModelRaisedError, OutOfTimeError) as error:
            self.unseen += (f"whether a later call reads {names}: {error}",)
            return None
        if found is None:
            numbers = [counter.name for counter in self._counters if counter.is_number]
            tried = _NEXT + len(_LARGER)
            what = f"whether a much later call reads {listed(numbers)}: {tried} later calls were tried"
            self.unseen += (what,) if numbers else ()
            return None
        later, path = found
        what, cause = (
            f"{output_name(path)} is another one in call {later + _CALLED}",
            f"it reads {names}, which calls count",
        )
        return failure_at(*self._place(later), what, advice, cause=cause)

    def _later_difference(self, first: Outputs) -> tuple[int, str] | None:
        """Return how much later the output is another one, and which."""
        jumps = _LARGER if any(counter.is_number for counter in self._counters) else ()
        with self._subject.runs(way="called often") as call, self._counting_on():
            for later in (*range(_NEXT), *jumps):
                self._jump(later)
                if differ := differing_outputs(first, call()):
                    return later, differ[0]
        return None

    def _place(self, later: int) -> tuple[ModelHistory | None, int | None]:
        """Return a recorded pass as much later, and its first operation that gives something else than at first."""
        with self._subject.recordings(way="called often") as run, self._counting_on():
            first = run()
            self._jump(later)
            other = run()
        found = next((pair for pair in differing(other, first) if pair.one is not None), None)
        return other, found and found.one

    def _jump(self, calls: int) -> None:
        for counter in self._counters:
            counter.jump(calls)

    @contextlib.contextmanager
    def _counting_on(self) -> Iterator[None]:
        """Put back the counts around the model, which a subject does not."""
        try:
            yield
        finally:
            self._jump(0)


def _reads_buffer(history: ModelHistory, name: str) -> bool:
    """Return whether an output of a recorded pass, or a value that Python reads, depends on a buffer."""
    recording = history.recording
    buffers = {id(source.value) for source in recording.sources if f"{source.kind} {source.name!r}" == name}
    waiting = [value for _, read in recording.outputs for value in needed_values(read)]
    waiting += [value for escape in recording.escapes for value in read_by_python(escape)]
    entered: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in buffers:
            return True
        if value.call >= 0 and value.call not in entered:
            entered.add(value.call)
            reads = (read for _, read in edges_in(recording.calls[value.call]))
            waiting += [needed for read in reads for needed in needed_values(read)]
    return False
