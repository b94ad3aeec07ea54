"""Runs one recorded call again with other values for some of its tensor arguments.

`Trial` compares the outcome with a reference.  `places_in_result` needs only two runs to find which of many arguments
appear in the result of a concatenation, where one run for each argument would be slow.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.calls import values_read
from pytest_torchlens.capture.fingerprint import begin_differently
from pytest_torchlens.capture.functions import is_of_torch
from pytest_torchlens.capture.memory import duplicate
from pytest_torchlens.capture.opaque import OpaqueModule
from pytest_torchlens.capture.storage import Extent
from pytest_torchlens.capture.storage import reach
from pytest_torchlens.capture.values import shape_of
from pytest_torchlens.capture.wrappers import is_wrapper
from pytest_torchlens.replay import Player
from pytest_torchlens.replay.player import Arguments
from pytest_torchlens.validate.bounded import BoundedRun
from pytest_torchlens.validate.bounded import EndlessError
from pytest_torchlens.validate.containers import ObjectGraph
from pytest_torchlens.validate.noise import is_dense

Outcome = list[torch.Tensor]
_REPEATS = 3


class Trial:
    """Runs a call with changed arguments during a replay, without changing the replay.

    Parameters
    ----------
    player
        The replay, at this call.
    call
        The call.
    tensors
        Its tensor arguments in the order of `edges`.
    reference
        The outcome for these arguments; None to run the call for it when it is first asked for.  An opaque call runs
        for it in any case, if it can be bounded: under a mode, as with other values, some compute otherwise.

    Attributes
    ----------
    edges
        Path and value of each tensor argument.
    """

    tolerant = False
    """Whether outcomes within tolerance count as the same, because the operation does not repeat itself."""

    def __init__(
        self, player: Player, call: Call, tensors: list[torch.Tensor], reference: Outcome | None = None
    ) -> None:
        self.call = call
        self.edges = values_read(call)
        self.tensors = tensors
        self._player = player
        self._also_written = _only_written(call)
        self._former = reference

    @functools.cached_property
    def reference(self) -> Outcome | None:
        """The outcome for the unchanged arguments; None if the call raises."""
        bounded, _ = self._bounded if self.call.info.opaque else (None, None)
        if bounded is not None:
            return bounded
        return self.outcome({}) if self._former is None else self._former

    @functools.cached_property
    def _bounded(self) -> tuple[Outcome | None, int | None]:
        """The outcome under a mode that counts operations, and their number; None if the call raises under it."""
        counter = BoundedRun()
        outcome = self._outcome_of_opaque({}, counter)
        return outcome, None if outcome is None else counter.count

    def with_call(self, call: Call, tensors: list[torch.Tensor] | None = None) -> Trial:
        """Return a trial of another call, with the same tensors unless others are given."""
        return Trial(self._player, call, self.tensors if tensors is None else tensors)

    def with_tensors(self, tensors: list[torch.Tensor]) -> Trial:
        """Return a trial of the same call with other tensors, which may have other shapes."""
        return Trial(self._player, self.call, tensors)

    def arguments(self) -> Arguments:
        """Return the arguments of the call, unchanged."""
        tensors = iter(self.tensors)
        return self._player.arguments(self.call, lambda _: next(tensors))

    def reacts(self, changed: dict[int, torch.Tensor]) -> bool:
        """Return whether the outcome differs with ``changed[place]`` for these edges."""
        reference = self.reference
        outcome = self.outcome(changed)  # None: the function read the values, because it rejected them
        return reference is not None and (outcome is None or not self.same(outcome, reference))

    def repeats_itself(self) -> bool:
        """Return whether the call has the same outcome each time it runs with the same arguments."""
        reference = self.reference or []
        again = (self.outcome({}) for _ in range(_REPEATS))
        return all(outcome is not None and same(outcome, reference) for outcome in again)

    def same(self, one: Outcome, other: Outcome) -> bool:
        """Return whether two outcomes are equal: bit for bit, or within tolerance."""
        return same(one, other) or (self.tolerant and len(one) == len(other) and all(map(is_close, one, other)))

    def outcome(self, changed: dict[int, torch.Tensor]) -> Outcome | None:
        """Return the tensors that the call returns or writes with ``changed[place]``; None if it raises."""
        if not self.call.info.opaque:
            return self._outcome(changed)
        _, usual = self._bounded  # an opaque call that cannot be bounded may have no end with other values
        return self._outcome_of_opaque(changed, None if usual is None else BoundedRun(usual))

    def _outcome_of_opaque(self, changed: dict[int, torch.Tensor], mode: BoundedRun | None) -> Outcome | None:
        module = self.call.info.func.module() if isinstance(self.call.info.func, OpaqueModule) else None
        contents = ObjectGraph({"attribute": module}) if module is not None else None
        try:
            return self._outcome(changed, mode)
        finally:
            if contents is not None:
                contents.restore()
                contents.restore_states()

    def _outcome(self, changed: dict[int, torch.Tensor], mode: BoundedRun | None = None) -> Outcome | None:
        tensors = [changed.get(place, tensor) for place, tensor in enumerate(self.tensors)]
        given = iter(tensors)
        try:
            overwritten = self._copies(changed, tensors) if self.call.writes else {}
            with mode or contextlib.nullcontext():
                returned = self._player.run(self.call, self._player.arguments(self.call, lambda _: next(given)))
        except (Exception, EndlessError):  # noqa: BLE001 - a function may raise anything for values that it rejects
            return None
        if not self.call.writes:
            return list(returned)
        outputs = returned if self.call.returned else tuple([overwritten[value.slot] for value in self.call.outputs])
        return [*outputs, *(overwritten[slot] for slot in self._also_written)]

    def _copies(self, changed: dict[int, torch.Tensor], tensors: list[torch.Tensor]) -> dict[int, torch.Tensor]:
        """Replace those of the `tensors` that the call overwrites by copies; return the copies by slot.

        Arguments in one slot share the copy of the changed one, or of the last of them if several are.
        """
        copies: dict[int, torch.Tensor] = {}
        for place, (_, value) in enumerate(self.edges):
            if value.slot in self.call.writes:
                if place in changed or value.slot not in copies:
                    copies[value.slot] = copy_of(tensors[place])
                tensors[place] = copies[value.slot]
        return copies


def same(one: Outcome, other: Outcome) -> bool:
    """Return whether two outcomes are equal, bit for bit; most differences show in the first bytes."""
    if len(one) != len(other):
        return False
    if any(map(begin_differently, one, other)):
        return False
    return all(_kind(a) == _kind(b) and fingerprint(a) == fingerprint(b) for a, b in zip(one, other, strict=True))


def _kind(tensor: torch.Tensor) -> tuple[torch.dtype, torch.Size]:
    return tensor.dtype, shape_of(tensor)


_BOUNDS: ContextVar[tuple[float, float] | None] = ContextVar("bounds", default=None)


@contextmanager
def tolerance(bounds: tuple[float, float] | None) -> Iterator[None]:
    """Compare operations that do not repeat themselves by ``(rtol, atol)``; None means those of `torch.testing`.

    Deterministic operations are always compared bit for bit.
    """
    token = _BOUNDS.set(bounds)
    try:
        yield
    finally:
        _BOUNDS.reset(token)


def is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors are equal within the tolerance; by default that of `torch.testing` for their dtype."""
    rtol, atol = _BOUNDS.get() or (None, None)
    try:
        torch.testing.assert_close(one, other, equal_nan=True, rtol=rtol, atol=atol)
    except (AssertionError, RuntimeError, NotImplementedError):
        return False
    return True


def arguments_of(player: Player, call: Call, originals: dict[int, torch.Tensor]) -> list[torch.Tensor]:
    """Return the former tensor arguments of a call that has just run; `originals` has those that it overwrote."""
    slots = [value.slot for _, value in values_read(call)]
    return [originals[slot] if slot in originals else player.at(slot) for slot in slots]


def originals_of(player: Player, call: Call) -> dict[int, torch.Tensor]:
    """Return copies of the tensors that a call is about to overwrite, by slot."""
    return {slot: copy_of(player.at(slot)) for slot in call.writes}


def outcome_of(player: Player, call: Call, outputs: tuple[torch.Tensor, ...]) -> Outcome:
    """Return the outputs of a call that has just run, and the other tensors that it wrote to."""
    return [*outputs, *map(player.at, _only_written(call))]


def _only_written(call: Call) -> list[int]:
    """Return the slots that a call overwrote and did not return."""
    returned = {value.slot for value in call.outputs} if call.writes else ()
    return [slot for slot in call.writes if slot not in returned]


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a detached copy with the same strides."""
    if is_wrapper(tensor):
        return duplicate(tensor)
    with torch.no_grad():
        tensor = tensor.detach()
        if tensor.layout is not torch.strided or tensor.is_quantized or not tensor.numel():
            return tensor.clone()
        try:
            block = duplicate(tensor.as_strided((reach(tensor),), (1,), tensor.storage_offset()))
        except RuntimeError:  # PyTorch makes no view of a tensor whose ``data`` was replaced in inference mode
            return tensor.clone()
        return block.as_strided(tensor.shape, tensor.stride(), 0)


def shows_in_result(trial: Trial) -> bool:
    """Return whether the only argument of a call has an effect because the result is over its memory: it is a view."""
    outcome = trial.reference
    if len(trial.edges) != 1 or not outcome or trial.call.writes or not is_of_torch(trial.call.info.func):
        return False
    argument, result = trial.tensors[0], outcome[0]
    if not (is_dense(argument) and is_dense(result) and result.numel()):
        return False
    if argument.untyped_storage()._cdata != result.untyped_storage()._cdata:
        return False
    whole, part = Extent.of(argument), Extent.of(result)
    return whole is not None and part is not None and whole.covers(part)


_MANY = 4
_AT_A_TIME = 120  # integers that every numeric dtype can represent


def places_in_result(trial: Trial, places: list[int]) -> set[int]:
    """Return those of `places` inside lists whose values appear in the result, as in a concatenation or a stack.

    Each argument is filled with its own number, the rest with zeros; then the numbers are read from the result.  A
    second run with the numbers shifted by one excludes numbers that appear by arithmetic.
    """
    places = [place for place in places if "." in trial.edges[place][0]]
    if len(places) < _MANY or trial.call.writes or not all(_can_be_filled(trial.tensors[place]) for place in places):
        return set()
    moved: set[int] = set()
    with torch.no_grad():
        for first in range(0, len(places), _AT_A_TIME):
            some = places[first : first + _AT_A_TIME]
            moved |= _tags_in_result(trial, places, some) & _tags_in_result(trial, places, some[1:] + some[:1])
    return moved


def _can_be_filled(tensor: torch.Tensor) -> bool:
    return is_dense(tensor) and tensor.dtype is not torch.bool and type(tensor) is torch.Tensor and tensor.numel() > 0


def _tags_in_result(trial: Trial, places: list[int], tagged: list[int]) -> set[int]:
    tags = {place: tag for tag, place in enumerate(tagged, start=1)}
    filled = {place: _constant_like(trial.tensors[place], tags.get(place, 0)) for place in places}
    outcome = trial.outcome(filled)
    if outcome is None or not all(is_dense(tensor) and not tensor.is_complex() for tensor in outcome):
        return set()
    found = [_whole_numbers(tensor, len(tags)) for tensor in outcome]
    if None in found:  # it does more than move values
        return set()
    return {place for place, tag in tags.items() if any(numbers and tag in numbers for numbers in found)}


def _whole_numbers(tensor: torch.Tensor, most: int) -> set[int] | None:
    """Return the numbers in a tensor; None if there are others than whole ones from 0 to `most`."""
    flat = tensor.flatten()
    whole = flat.to(torch.int64)
    if not torch.equal(whole.to(flat.dtype), flat) or ((whole < 0) | (whole > most)).any():
        return None
    return set(torch.bincount(whole).nonzero().flatten().tolist())


def _constant_like(tensor: torch.Tensor, number: int) -> torch.Tensor:
    return torch.full((), number, dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)
