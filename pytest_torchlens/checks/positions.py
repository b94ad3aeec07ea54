"""Compares what a model gives at some positions of a sequence while others change at the same shape: bit for bit.

Where the positions are in a tensor is seen from a pass on a sequence of only these: its dimensions are shorter there.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import torch

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.checks import results
from pytest_torchlens.checks.evidence import ReachedPositions
from pytest_torchlens.checks.held import listed
from pytest_torchlens.checks.inputs import Arguments
from pytest_torchlens.checks.places import pairs_of
from pytest_torchlens.checks.replays import in_step
from pytest_torchlens.checks.replays import put_inputs
from pytest_torchlens.checks.replays import tensors_of
from pytest_torchlens.checks.results import values_text
from pytest_torchlens.checks.side_by_side import ancestors
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import OutOfTimeError
from pytest_torchlens.checks.subject import Outputs
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.tolerance import is_plainly_explained
from pytest_torchlens.checks.tolerance import judge
from pytest_torchlens.checks.vacuity import dependent_outputs
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import Failure
from pytest_torchlens.records import output_name
from pytest_torchlens.replay import Player


class Region(NamedTuple):
    """Some of the positions of a sequence.

    Attributes
    ----------
    start, length, total
        These are `length` from `start` on, of `total`.
    shown
        How many positions the shorter sequence has that shows which dimensions are positions; `length` if 0.
    """

    start: int
    length: int
    total: int
    shown: int = 0

    def of(self, tensor: torch.Tensor, shape: torch.Size) -> torch.Tensor | None:
        """Return what a tensor of the whole holds for these positions; None if it has another shape in the shorter."""
        if tensor.dim() != len(shape):
            return None
        for dim, size in enumerate(shape):
            if tensor.size(dim) == self.total and size == (self.shown or self.length):
                tensor = tensor.narrow(dim, self.start, self.length)
            elif tensor.size(dim) != size:
                return None
        return tensor

    def fit(self, other: torch.Tensor, reference: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield what a tensor of the whole holds for these positions, as a `Fit`."""
        view = self.of(other, reference.shape)
        if view is not None:
            yield view

    def fit_positions(self, other: torch.Tensor, reference: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the same of a tensor that has positions only."""
        if other.shape != reference.shape:
            yield from self.fit(other, reference)


class Excerpt(NamedTuple):
    """A sequence, and some of its positions alone.

    Attributes
    ----------
    full
        The model with the whole sequence.
    short
        The model with the positions of the region alone, or as many as it says.
    region
        Where they are in the whole.
    """

    full: Subject
    short: Subject
    region: Region

    def of(self, outputs: Outputs, path: str) -> torch.Tensor | None:
        """Return what an output of the whole holds for the region; None if nothing has the shape that it has alone."""
        alone, whole = self.short.outputs.get(path), outputs.get(path)
        return None if alone is None or whole is None else self.region.of(whole, alone.shape)


class Question(NamedTuple):
    """What is asked, in words.

    Attributes
    ----------
    name
        Of the check.
    way
        How the model is run: ``"with other inputs after position 7"``.
    what
        What must not change: ``"before position 7"``.
    cause
        What the first operation does.
    advice
        What to do.
    """

    name: str
    way: str
    what: str
    cause: str
    advice: str


def unreached(
    question: Question,
    excerpt: Excerpt,
    changed: dict[str, Any],
    *,
    pooled: bool = False,
    vacuous: bool = True,
    depend: set[str] | None = None,
) -> CheckResult:
    """Return whether other values outside a region change nothing in it.

    Parameters
    ----------
    question
        The words.
    excerpt
        The sequence and the region.
    changed
        The arguments with other values outside the region.
    pooled
        Whether outputs without positions must not change, either.
    vacuous
        Whether an output that the change does not reach anywhere proves nothing.
    depend
        Paths of the outputs that depend on the input; None to find out.
    """
    depend = dependent_outputs(excerpt.full) if depend is None else depend
    found = _compare(excerpt, changed_outputs(excerpt.full, changed, question.way), depend, pooled, vacuous)
    if not found.pairs:
        raise NotApplicableError("; ".join(found.unseen) or "its output holds no tensor to compare")
    fields: dict[str, Any] = {"unseen": tuple(found.unseen), "redrawn": excerpt.full.redrawn}
    wrong = {path: pair for path, pair in found.pairs.items() if fingerprint(pair[0]) != fingerprint(pair[1])}
    if not wrong:
        return results.passed(question.name, len(found.pairs), **fields)
    path = _unexplained(excerpt, wrong)
    if path is None:
        note = f"bits differ {question.way}, by what rounding explains"
        return results.passed(question.name, len(found.pairs), notes=(note,), **fields)
    what = f"{output_name(path)} changes {question.what} {question.way}"
    plain = Failure(message=what, advice=question.advice, values=values_text(*wrong[path]))
    failure, unseen = _placed(plain, excerpt, changed, path, question.cause)
    fields["unseen"] = (*found.unseen, *unseen)
    return results.failed(question.name, failure, compared=len(found.pairs), **fields)


def changed_outputs(subject: Subject, changed: dict[str, Any], way: str) -> Outputs:
    """Return the outputs on other values; one pass for each way.

    Raises
    ------
    NotApplicableError
        If the model raises on them.
    """
    try:
        return subject.once(("changed", way), lambda: subject.call((), changed, way=way))
    except ModelRaisedError as error:
        raise NotApplicableError(str(error)) from error


class _Found:
    def __init__(self) -> None:
        self.pairs: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        """What outputs hold in the region, before and after the change, by path."""
        self._unseen: dict[str, list[str]] = defaultdict(list)

    def skip(self, path: str, reason: str) -> None:
        """Note an output that cannot be compared."""
        self._unseen[reason].append(output_name(path))

    @property
    def unseen(self) -> list[str]:
        """Outputs that were not compared, with the reasons."""
        return [f"{reason}: {listed(names, 2)}" for reason, names in self._unseen.items()]


def _compare(excerpt: Excerpt, changed: Outputs, depend: set[str], pooled: bool, vacuous: bool) -> _Found:
    found = _Found()
    plain = excerpt.full.outputs
    for path, output in plain.items():
        one, two = excerpt.of(plain, path), excerpt.of(changed, path)
        if path not in depend:
            found.skip(path, "not dependent on the input")
        elif one is None or two is None or (one.shape == output.shape and not pooled):
            found.skip(path, "without positions")
        elif vacuous and fingerprint(output) == fingerprint(changed[path]):
            found.skip(path, "not dependent on the inputs that change")
        else:
            found.pairs[path] = one, two
    return found


def _unexplained(excerpt: Excerpt, wrong: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> str | None:
    """Return the path of the first output that rounding does not explain; None if it explains all.

    Where values choose shapes on the way, as routes of tokens do, kernels round otherwise.
    """
    for path, (one, two) in wrong.items():
        if is_plainly_explained(two, one):
            continue
        truth = excerpt.of(excerpt.full.exact, path)
        if truth is None or not judge(two, one, truth).within:
            return path
    return None


def _placed(
    plain: Failure, excerpt: Excerpt, changed: dict[str, Any], path: str, cause: str
) -> tuple[Failure, tuple[str, ...]]:
    """Return the failure at the first operation that is reached, and why that is not known."""
    history = excerpt.full.history
    try:
        place = _first_reached(excerpt, changed, path)
    except OutOfTimeError as error:
        return plain, (f"the operation: {error}",)
    except Exception as error:  # noqa: BLE001 - any call may raise when it is run again
        return plain, (f"the operation: {type(error).__name__}: {error}",)
    if place is None:
        return _decided(plain, excerpt, changed)
    if place.through:
        cause += f"; it reads {history.label(place.through[-1])}, which has no positions, and changes"
    changes = tensors_of(Arguments((), changed))
    excerpt.full.tools.witness(
        ReachedPositions(
            history=history,
            number=place.number,
            place=place.at,
            inside=place.inside,
            changed=changes,
            through=place.through,
            alive=excerpt.full,
        )
    )
    return results.failure_at(history, place.number, plain.message, plain.advice, values=place.values, cause=cause), ()


def _decided(plain: Failure, excerpt: Excerpt, changed: dict[str, Any]) -> tuple[Failure, tuple[str, ...]]:
    """Return the failure at the first operation that one of two passes alone has: Python decides by the values."""
    one, other = excerpt.full.history, excerpt.full.with_inputs((), changed).history
    pair = next((pair for pair in pairs_of(one, other) if None in pair), None)
    if pair is None:
        return plain, ("the operation: none is reached in a replay",)
    history, number = (other, pair.other) if pair.one is None else (one, pair.one)
    return results.failure_at(history, number, plain.message, _ADVICE_DECIDED, cause=_DECIDED), ()


_DECIDED = "one of the two passes alone has this operation: Python reads a value that depends on the changed inputs"
_ADVICE_DECIDED = "let no condition, length or number of steps depend on values of all positions"


class _Place(NamedTuple):
    number: int
    values: str
    at: int
    """Which result of the call changes."""
    inside: torch.Tensor
    """In the shape of the result: whether an element is in the region."""
    through: tuple[int, ...]
    """The calls without positions that the change came through."""


def _first_reached(excerpt: Excerpt, changed: dict[str, Any], path: str) -> _Place | None:
    """Return the first call, of those that an output depends on, that gives other values in the region.

    If there is none, as where a maximum over all positions is the output, it is the first one without positions.
    """
    history = excerpt.full.history
    recording = history.recording
    leading, shapes = ancestors(recording, path), _shapes(history, excerpt.short.history)
    pooled: set[int] = set()
    first: _Place | None = None
    with torch.no_grad(), contextlib.ExitStack() as stack:
        players = [stack.enter_context(Player(recording)) for _ in range(2)]
        put_inputs(players[1], recording, tensors_of(Arguments((), changed)))
        for number, (plain, other) in in_step(recording, players):
            excerpt.full.check_time()
            for at, (one, two) in enumerate(zip(plain, other, strict=True)):
                shape = shapes.get((number, at))
                values = _reached(one, two, shape, excerpt.region)
                if values and number in leading:
                    inside = torch.zeros(one.shape, dtype=torch.bool, device=one.device)
                    if shape is not None and (part := excerpt.region.of(inside, shape)) is not None:
                        part.fill_(True)
                    return _Place(number, values, at, inside, _through(recording, number, pooled))
                if shape == one.shape == two.shape and not torch.equal(one, two):
                    pooled.add(number)
                    if number in leading and first is None:
                        everywhere = torch.ones(one.shape, dtype=torch.bool, device=one.device)
                        first = _Place(number, values_text(one, two), at, everywhere, ())
    return first


def _shapes(full: ModelHistory, short: ModelHistory) -> dict[tuple[int, int], torch.Size]:
    """Return the shape that each output of a call has in the pass on the region alone, by its call and place."""
    found = {}
    for pair in pairs_of(full, short):
        if pair.one is not None and pair.other is not None:
            for at, value in enumerate(short.recording.calls[pair.other].outputs):
                found[pair.one, at] = torch.Size(value.shape)
    return found


def _reached(one: torch.Tensor, two: torch.Tensor, shape: torch.Size | None, region: Region) -> str:
    """Return both values where a call gives other ones in the region; empty if it does not."""
    if shape is None or shape == one.shape or one.shape != two.shape:
        return ""
    views = region.of(one, shape), region.of(two, shape)
    if views[0] is None or views[1] is None or is_plainly_explained(views[1], views[0]):
        return ""
    return values_text(views[0], views[1])


def _through(recording: Recording, number: int, pooled: set[int]) -> tuple[int, ...]:
    """Return the calls without positions that lead to a call by none but each other, in order."""
    waiting, found = [number], set[int]()
    while waiting:
        makers = {value_of(read).call for _, read in edges_in(recording.calls[waiting.pop()])}
        waiting += (makers & pooled) - found
        found |= makers & pooled
    return tuple(sorted(found))
