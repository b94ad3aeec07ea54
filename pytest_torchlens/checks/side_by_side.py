"""Runs two recorded passes side by side, and one in float64, to find where they part by more than rounding explains.

The plain pass is the reference.  Where a decision of the other pass (an argmax, a mask) falls the other way on inputs
that agree, the other pass goes on with the decision of the reference.  If the outputs then agree, it is a tie.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import NamedTuple

import torch

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.checks.exact import CASTS
from pytest_torchlens.checks.exact import CASTS_TO
from pytest_torchlens.checks.exact import ExactPlayer
from pytest_torchlens.checks.exact import OwnError
from pytest_torchlens.checks.exact import is_discrete
from pytest_torchlens.checks.exact import steps
from pytest_torchlens.checks.places import pairs_of
from pytest_torchlens.checks.results import values_text
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.tolerance import FLOOR
from pytest_torchlens.checks.tolerance import Judgement
from pytest_torchlens.checks.tolerance import eps_of
from pytest_torchlens.checks.tolerance import factor
from pytest_torchlens.checks.tolerance import judge
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.source import source_place
from pytest_torchlens.records import SourcePlace
from pytest_torchlens.replay import Player
from pytest_torchlens.replay.run import Read
from pytest_torchlens.replay.run import needed_values

Fit = Callable[[torch.Tensor, torch.Tensor], Iterator[torch.Tensor]]
"""Yields the views of a tensor of the other pass that may correspond to one of the reference, the likeliest first."""
_STEPS = frozenset(["round", "floor", "ceil", "trunc", "sign", "sgn", "heaviside", "fake_quantize_per_tensor_affine"])
"""Functions whose results are discrete, whatever their dtype."""


def whole(other: torch.Tensor, reference: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield a tensor of the same shape as it is."""
    if other.shape == reference.shape:
        yield other


def first_of(size: int, row: int = 0) -> Fit:
    """Return a fit for a batch of `size`, whose first example, or another one, is the reference."""

    def fit(other: torch.Tensor, reference: torch.Tensor) -> Iterator[torch.Tensor]:
        if other.shape == reference.shape:
            yield other
        if other.dim() != reference.dim():
            return
        unequal = [dim for dim in range(other.dim()) if other.size(dim) != reference.size(dim)]
        if len(unequal) == 1 and other.size(unequal[0]) == size * reference.size(unequal[0]):
            length = reference.size(unequal[0])
            yield other.narrow(unequal[0], row * length, length)
            yield other[(slice(None),) * unequal[0] + (slice(row, None, size),)]

    return fit


class Place(NamedTuple):
    """The call of the reference at which two passes part."""

    number: int
    judgement: Judgement
    values: str
    cause: str
    added_at: SourcePlace | None = None
    """The line of an operation before it that only the other pass has, and that makes the difference."""


@dataclass
class Parting:
    """Where two passes part.

    Attributes
    ----------
    place
        The first unexplained difference that an output depends on; None if none was found.
    flips
        Decisions that fell the other way on inputs that agree, the first one first.
    agrees
        Whether the outputs agree once these decisions are those of the reference.
    unfit
        Number of values that have no counterpart of a fitting shape.
    """

    place: Place | None = None
    flips: list[Place] = field(default_factory=list)
    agrees: bool = False
    unfit: int = 0

    @property
    def is_tie(self) -> bool:
        """Whether decisions on gaps below the explained error make all the difference."""
        return bool(self.flips) and self.agrees


def part(
    subject: Subject, reference: ModelHistory, other: ModelHistory, fit: Fit = whole, path: str | None = None
) -> Parting:
    """Return where two recorded passes of a subject part, on the way to the output at `path`, or to any.

    Raises
    ------
    OutOfTimeError
        If no time is left.
    Exception
        Whatever a call raises when it is run again.
    """
    with subject.tools.preserved(), torch.no_grad():  # players that take turns leave settings of each other
        return _SideBySide(subject, reference, other, fit, path).run()


class _SideBySide:
    def __init__(
        self, subject: Subject, reference: ModelHistory, other: ModelHistory, fit: Fit, path: str | None
    ) -> None:
        self._path = path
        self._subject = subject
        self._reference = reference.recording
        self._other = other.recording
        self._fit = fit
        self._partners = {one: two for one, two in pairs_of(reference, other) if one is not None and two is not None}
        self._leading = ancestors(self._reference)
        self._alone = set(range(len(self._reference.calls))) - self._partners.keys()
        self._added = set(range(len(self._other.calls))) - {*self._partners.values()}
        self._unexplained: set[int] = set()
        """Ids of the values of the reference that differ by more than rounding explains."""
        self._compared: set[int] = set()
        """Ids of the values of the reference that have a counterpart."""
        self._shapes: dict[int, tuple[int, tuple[int, ...], tuple[int, ...]]] = {}
        """The call, and both shapes, of values that must have the same one, by id of the value of the reference."""
        self._places: dict[int, Place] = {}
        """Where values differ by more than rounding explains, by the number of the call."""
        self._parting = Parting()

    def run(self) -> Parting:
        with contextlib.ExitStack() as stack:
            self._player = player = stack.enter_context(Player(self._reference))
            self._exact = exact = stack.enter_context(ExactPlayer(self._reference))
            self._mate = stack.enter_context(Player(self._other))
            self._played = 0
            self._settings_vary = len({*self._reference.ambient.rows, *self._other.ambient.rows}) > 1
            for step in steps(self._reference, player, exact, own_errors=True):
                self._subject.check_time()
                if (number := self._partners.get(step.number)) is not None and number >= self._played:
                    self._take_turns([self._mate])
                    self._compare(step.number, step.call, step.outputs, step.exact, step.own_error, number)
                    self._take_turns([player, exact])
            self._take_turns([self._mate])
            self._advance(len(self._other.calls))
            self._parting.place = self._first_place()
            self._parting.agrees = self._outputs_agree()
        return self._parting

    def _take_turns(self, players: list[Player]) -> None:
        """Let players run under their own settings again, where the two passes have more than one kind."""
        if self._settings_vary:
            for player in players:
                player.renew_settings()

    def _advance(self, end: int) -> None:
        """Run the other pass up to a call."""
        for number in range(self._played, end):
            call = self._other.calls[number]
            returned, _ = self._mate.play(number, call, self._mate.arguments(call))
            self._mate.store(number, call, returned)
        self._played = max(self._played, end)

    def _compare(
        self,
        number: int,
        call: Call,
        outputs: tuple[torch.Tensor, ...],
        exact: tuple[torch.Tensor, ...],
        own_error: float | None,
        partner: int,
    ) -> None:
        self._advance(partner)
        mate_call = self._other.calls[partner]
        mate_error = OwnError(self._mate, mate_call)
        returned, others = self._mate.play(partner, mate_call, self._mate.arguments(mate_call))
        for value, output, truth, other in zip(call.outputs, outputs, exact, others, strict=False):
            found = self._judged(other, output, truth)
            if found is None:
                self._parting.unfit += 1
                if self._fit is whole:
                    self._shapes[id(value)] = number, tuple(output.shape), tuple(other.shape)
                continue
            self._compared.add(id(value))
            if not found[1].within and not call.uninitialised:
                self._note(number, partner, value, output, found, own_error, mate_error.of(others))
        self._mate.store(partner, mate_call, returned)
        self._played = partner + 1

    def _judged(
        self, other: torch.Tensor, output: torch.Tensor, truth: torch.Tensor
    ) -> tuple[torch.Tensor, Judgement] | None:
        """Return the view of the other's value that fits best, and how far it is off."""
        best = None
        for view in self._fit(other, output):
            judgement = judge(view, output, truth)
            if best is None or judgement.excess < best[1].excess:
                best = view, judgement
            if judgement.within:
                break
        return best

    def _note(  # noqa: PLR0913 - a value of a call, and what is known of it
        self,
        number: int,
        partner: int,
        value: Value,
        output: torch.Tensor,
        found: tuple[torch.Tensor, Judgement],
        own_error: float | None,
        mate_error: float | None,
    ) -> None:
        view, judgement = found
        call = self._reference.calls[number]
        is_inherited = any(id(value_of(read)) in self._unexplained for _, read in edges_in(call))
        decides = _reads_rounded(call) and (is_discrete(output) or call.info.layer_type in _STEPS)
        cause = _DECISION if decides else _cause(output, judgement, own_error, mate_error)
        place = Place(number, judgement, values_text(output, view), cause)
        if decides and not is_inherited:
            if number in self._leading:
                self._parting.flips.append(place)
            view.copy_(output)
            return
        self._unexplained.add(id(value))
        if number not in self._places:
            self._places[number] = self._in_one_pass(place, _reads_of(call), _reads_of(self._other.calls[partner]))

    def _in_one_pass(self, place: Place, reads: Mapping[str, Read], others: Mapping[str, Read]) -> Place:
        """Return a place, moved to an operation before it that one pass alone has, if that one's result differs."""
        for path in (path for path in reads if path in others):
            mine = _last_maker(self._reference, reads[path], self._alone)
            added = _last_maker(self._other, others[path], self._added)
            if mine is added is None or self._agree(reads[path], others[path]):
                continue
            if mine is not None:
                return place._replace(number=mine, cause=_ALONE if added is None else self._replaced(added))
            if added is not None:
                call = self._other.calls[added]
                return place._replace(cause=_ADDED.format(call.info.layer_type), added_at=source_place(call))
        return place

    def _replaced(self, added: int) -> str:
        """Return that the other pass has another operation in place of one."""
        call = self._other.calls[added]
        return _REPLACED.format(call.info.layer_type, source_place(call))

    def _first_place(self) -> Place | None:
        """Return the first call from which unexplained values, and those without counterpart, lead to an output."""

        def may_differ(value: Value) -> bool:
            return id(value) in self._unexplained or id(value) not in self._compared

        found = ancestors(self._reference, self._path, may_differ)
        number = min(found & self._places.keys(), default=None)
        return self._last_place() if number is None else self._of_other_shape(self._places[number])

    def _of_other_shape(self, place: Place) -> Place:
        """Return a place, moved to the operation from which on what leads there has another shape in the other pass."""
        number, found = place.number, place
        while True:
            reads = (value_of(read) for _, read in edges_in(self._reference.calls[number]))
            shapes = next((self._shapes[id(value)] for value in reads if id(value) in self._shapes), None)
            if shapes is None:
                return found
            number, one, two = shapes
            found = place._replace(number=number, cause=_OTHER_SHAPE.format(one, two), added_at=None)

    def _last_place(self) -> Place | None:
        """Return the operation that only one pass has and whose result is an output."""
        others = dict(self._other.outputs)
        for path, read in self._reference.outputs:
            if self._path not in (None, path) or path not in others or (number := value_of(read).call) < 0:
                continue
            found = self._judged_reads(read, others[path])
            if found is not None and not found[1].within:
                values = values_text(self._player.at(value_of(read).slot), found[0])
                place = self._in_one_pass(Place(number, found[1], values, ""), {path: read}, {path: others[path]})
                if place.cause:
                    return place
        return None

    def _outputs_agree(self) -> bool:
        ours, theirs = self._reference.outputs, self._other.outputs
        return len(ours) == len(theirs) and all(
            self._agree(read, other) for (_, read), (_, other) in zip(ours, theirs, strict=True)
        )

    def _agree(self, read: Read, other: Read) -> bool:
        """Return whether what is read in both passes agrees; values without counterpart do not count against it."""
        found = self._judged_reads(read, other)
        return found is None or found[1].within

    def _judged_reads(self, read: Read, other: Read) -> tuple[torch.Tensor, Judgement] | None:
        """Return how far what is read in the other pass is off what is read in the reference."""
        slot = value_of(read).slot
        return self._judged(self._mate.at(value_of(other).slot), self._player.at(slot), self._exact.at(slot))


def _reads_of(call: Call) -> dict[str, Read]:
    return dict(edges_in(call))


def _last_maker(recording: Recording, read: Read, numbers: set[int]) -> int | None:
    """Return the last of some calls that a value comes from by nothing but others of them that keep all values."""
    waiting = [value_of(read).call]
    while waiting:
        maker = waiting.pop()
        if maker in numbers:
            call = recording.calls[maker]
            if call.info.layer_type not in _ARRANGES and not _widens(call):
                return maker
            waiting += [value_of(one).call for _, one in edges_in(call)]
    return None


def _widens(call: Call) -> bool:
    """Return whether a call only casts to a type that holds all values of the former one."""
    if call.info.name not in CASTS | CASTS_TO:
        return False
    before, after = value_of(edges_in(call)[0][1]).dtype, call.outputs[0].dtype
    return torch.promote_types(before, after) is after


def _reads_rounded(call: Call) -> bool:
    """Return whether a call reads values that are rounded: what whole numbers alone decide, rounding does not."""
    kinds = (value_of(read).dtype for _, read in edges_in(call))
    return any(kind.is_floating_point or kind.is_complex for kind in kinds)


def _cause(output: torch.Tensor, judgement: Judgement, own: float | None, mate: float | None) -> str:
    if own is not None and mate is not None and mate > factor(output) * own + FLOOR * eps_of(output):
        return f"the operation itself rounds more: its own error is {mate:.1e} of the RMS, {own:.1e} in the plain run"
    if judgement.excess > _JUMP:
        return "given inputs that agree, the operation gives another result"
    return "no single operation errs: the difference has grown from operation to operation, and passes the limit here"


_OTHER_SHAPE = "its result has shape {}, and {} in the other run"
_ALONE = "the other run has not this operation, and gets another result"
_REPLACED = "in its place the other run has {} ({}), and gets another result"
_ADDED = (
    "only the other run has this {}, whose result is read here: a condition, or the length of a loop, depends on how "
    "the model runs"
)
_ARRANGES = frozenset(["view", "reshape", "flatten", "unflatten", "transpose", "permute", "t", "contiguous", "clone"])
_ARRANGES |= {"chunk", "split", "getitem", "cat", "unsqueeze", "squeeze", "expand"}
"""Functions that only arrange values."""
_DECISION = "a decision fell the other way"
_JUMP = 10.0
"""An error so many times as large as explained has not grown from rounding alone."""


def ancestors(
    recording: Recording, path: str | None = None, through: Callable[[Value], bool] = lambda value: True
) -> set[int]:
    """Return the numbers of the calls that an output depends on: the one at `path`, or any.

    The way goes only through values of which `through` is true.
    """
    outputs = [read for at, read in recording.outputs if path in (None, at)]
    waiting = [value for read in outputs for value in needed_values(read)]
    found: set[int] = set()
    while waiting:
        value = waiting.pop()
        if value.call >= 0 and value.call not in found and through(value):
            found.add(value.call)
            reads = (read for _, read in edges_in(recording.calls[value.call]))
            waiting += [needed for read in reads for needed in needed_values(read)]
    return found
