"""The check ``rows``: other rows of the batch, changed at the same shape, change nothing in this one.

The first row is compared with all others changed, then the last one.  The second comparison is spared where the last
row is what it gives alone, but for some units in the last place: then no row before it has been let in.

The place is the first operation with an element that depends on two rows.  Three replays show it, whatever the shapes
on the way: of the batch, of the batch with other rows after the first, and of the batch with another first row.  An
element that both changes reach depends on two rows; no element of the inputs does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from typing import Any
from typing import NamedTuple

import torch

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.checks import results
from pytest_torchlens.checks.batch_rank import lost_dim
from pytest_torchlens.checks.evidence import MixedRows
from pytest_torchlens.checks.exact import exact_outputs
from pytest_torchlens.checks.inputs import Arguments
from pytest_torchlens.checks.inputs import Examples
from pytest_torchlens.checks.inputs import RefusedError
from pytest_torchlens.checks.inputs import first_example
from pytest_torchlens.checks.places import pairs_of
from pytest_torchlens.checks.replays import in_step
from pytest_torchlens.checks.replays import put_inputs
from pytest_torchlens.checks.replays import tensors_of
from pytest_torchlens.checks.results import apart
from pytest_torchlens.checks.results import values_text
from pytest_torchlens.checks.side_by_side import ancestors
from pytest_torchlens.checks.side_by_side import first_of
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import OutOfTimeError
from pytest_torchlens.checks.subject import Outputs
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.tolerance import is_plainly_explained
from pytest_torchlens.checks.tolerance import judge
from pytest_torchlens.checks.vacuity import Find
from pytest_torchlens.checks.vacuity import dependent
from pytest_torchlens.checks.vacuity import dependent_in_batch
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import Failure
from pytest_torchlens.records import output_name
from pytest_torchlens.replay import Player

NAME = "rows"
_ADVICE = "let no operation mix the examples of a batch: look for a reduction, a reshape or an index over its dimension"
_ADVICE_IN_TRAIN = (
    "batch norm in train mode normalises by the batch, so that rows depend on each other: check the model in eval "
    "mode, or name the failure with 'xfail'"
)


def run(subject: Subject, size: int = 2, dim: int = 0) -> CheckResult:
    """Change all rows of a batch but the first, then all but the last, and compare that row bit for bit."""
    find = dependent_in_batch(dim, size)
    given, alone = _given(subject, dim, find)
    batch = _Batch(given, Examples(given, dim), size, alone)
    plain, depend = batch.examples.outputs(size), find(given)
    found = _compare(plain, batch.examples.other_outputs(size), batch.fits(0), depend)
    if not found.count:
        raise NotApplicableError("; ".join(found.unseen) or "its output holds no tensor to compare")
    row = _Row("first", batch.fits(0), batch.with_others(0))
    fields: dict[str, Any] = {"unseen": tuple(found.unseen), "redrawn": given.redrawn}
    if not found.differ and not batch.last_is_as_alone(depend):
        row = _Row("last", batch.fits(size - 1), batch.with_others(size - 1))
        with contextlib.suppress(ModelRaisedError):  # which says nothing of rows
            others = given.call(*row.others, way=f"in a batch of {size} with other rows")
            found = _compare(plain, others, row.fits, depend, found)
    if not found.differ:
        return results.passed(NAME, found.count, **fields)
    if note := _only_rounding(batch, row, found):
        return results.passed(NAME, found.count, notes=(note,), **fields)
    path, (one, two) = next(iter(found.differ.items()))
    what = f"the {row.word} row of {output_name(path)} changes when the other rows change"
    failure, unseen = _failure(batch, what, path, values_text(one, two))
    return results.failed(NAME, failure, compared=found.count, **fields | {"unseen": (*found.unseen, *unseen)})


Fits = Callable[[str, torch.Tensor], list[torch.Tensor]]
"""Returns what may be one row of an output of a batch; nothing if it has no rows."""


def _given(subject: Subject, dim: int, find: Find) -> tuple[Subject, Outputs | None]:
    """Return the subject to make batches of, and its outputs for one example; None if it takes none alone."""
    try:
        alone = dependent(first_example(subject, dim), find)
    except RefusedError:
        return dependent(subject, find), None
    return alone, alone.outputs


class _Row(NamedTuple):
    """One row of a batch: its name, what finds it in an output, and the batch with others in place of all others."""

    word: str
    fits: Fits
    others: Arguments


class _Batch(NamedTuple):
    """The batch whose rows are compared.

    The dimension of rows in an output is the one that grows with the batch; of a model that takes no example alone it
    is that of the inputs.
    """

    subject: Subject
    examples: Examples
    size: int
    alone: Outputs | None

    def fits(self, row: int) -> Fits:
        """Return what finds a row in the outputs."""
        fit = first_of(self.size, row)

        def grown(path: str, output: torch.Tensor) -> list[torch.Tensor]:
            reference = (self.alone or {}).get(path)
            if reference is None or reference.shape == output.shape:
                return []
            lost = lost_dim(tuple(reference.shape), tuple(output.shape), self.size)
            return list(fit(output, reference)) if lost is None else [output.select(lost, row)]

        return grown if self.alone is not None else lambda _, output: self._along(output, row)

    def _along(self, output: torch.Tensor, row: int) -> list[torch.Tensor]:
        dim = self.examples.dim
        if output.dim() <= dim or not output.size(dim) or output.size(dim) % self.size:
            return []
        length = output.size(dim) // self.size
        return [output.narrow(dim, row * length, length)]

    def with_others(self, row: int) -> Arguments:
        """Return the batch with other rows in place of all but the first, or all but the last."""
        return self.examples.others(self.size, row)

    def changes(self) -> list[Arguments]:
        """Return the batch with other rows after the first, and with another first row."""
        return [self.with_others(0), self.examples.batch(self.size, first_seed=_SEED)]

    def last_is_as_alone(self, depend: set[str]) -> bool:
        """Return whether the last row is what it gives alone, so that no other row can have changed it plainly.

        Alone it has another shape, at which kernels round otherwise: some units in the last place are no difference.
        """
        if self.alone is None:
            return False
        try:
            last = self.examples.last_alone(self.size).outputs
        except ModelRaisedError:
            return False
        fits = self.fits(self.size - 1)
        for path, output in self.examples.outputs(self.size).items():
            rows = fits(path, output) if path in depend else []
            if rows and not (path in last and any(_is_near(row, last[path]) for row in rows)):
                return False
        return True


_SEED = 3


def _is_near(one: torch.Tensor, other: torch.Tensor) -> bool:
    return is_plainly_explained(one, other) or fingerprint(one) == fingerprint(other)


@dataclass
class _Found:
    """One row of outputs, with some other rows and with others."""

    count: int = 0
    differ: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    """The row with the ones and with the others where it differs, by the path of the output."""
    unseen: list[str] = field(default_factory=list)


def _compare(plain: Outputs, others: Outputs, fits: Fits, depend: set[str], former: _Found | None = None) -> _Found:
    """Return what differs in a row; the former comparison, if there is one and nothing can be compared here."""
    found = _Found()
    for path, output in plain.items():
        name, other = output_name(path), others.get(path)
        rows = fits(path, output)
        if path not in depend:
            found.unseen.append(f"{name} does not depend on the input")
        elif not rows or other is None or other.shape != output.shape:
            found.unseen.append(f"{name} has no rows: its shape is {tuple(output.shape)} in a batch")
        else:
            found.count += 1
            pairs = list(zip(rows, fits(path, other), strict=True))
            if not any(fingerprint(one) == fingerprint(two) for one, two in pairs):
                found.differ[path] = pairs[0]
    return found if found.count or former is None else former


def _only_rounding(batch: _Batch, row: _Row, found: _Found) -> str:
    """Return a note if other rows change shapes or places on the way, as routes of tokens do, and outputs by rounding.

    A kernel rounds otherwise at another shape or place.  The note is empty if that does not explain the difference.
    """
    given = batch.subject
    plain, others = given.record(*batch.examples.batch(batch.size)), given.record(*row.others)
    label = _first_other_shape(plain, others) or _first_other_place(batch, plain, next(iter(found.differ)))
    if not label:
        return ""
    exact = exact_outputs(given, plain).outputs
    for path, (one, two) in found.differ.items():
        if not judge(two, one, row.fits(path, exact[path])[0]).within:
            return ""
    return f"bits differ, by what rounding explains: from {label} on, shapes or places depend on other rows"


def _first_other_shape(one: ModelHistory, other: ModelHistory) -> str:
    """Return the label of the first operation that has another shape in the other pass, or runs in one pass only."""
    for pair in pairs_of(one, other):
        if pair.one is None or pair.other is None:
            return one.label(pair.one) if pair.one is not None else other.label(pair.other or 0)
        calls = one.recording.calls[pair.one], other.recording.calls[pair.other]
        if [value.shape for value in calls[0].outputs] != [value.shape for value in calls[1].outputs]:
            return one.label(pair.one)
    return ""


def _is_real(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _first_other_place(batch: _Batch, plain: ModelHistory, path: str) -> str:
    """Return the label of the first operation that mixes rows, if it gives whole numbers: the places of all rows."""
    try:
        number = _first_mixing(batch.subject, plain, path, batch.changes())
    except OutOfTimeError:
        raise
    except Exception:  # noqa: BLE001 - any call may raise when it is run again
        return ""
    outputs = plain.recording.calls[number].outputs if number is not None else ()
    return plain.label(number or 0) if outputs and any(not _is_real(value.dtype) for value in outputs) else ""


def _failure(batch: _Batch, what: str, path: str, values: str) -> tuple[Failure, tuple[str, ...]]:
    """Return the failure at the first operation that lets another row in, and why that is not known."""
    subject = batch.subject
    advice = _ADVICE_IN_TRAIN if subject.is_training else _ADVICE
    try:
        history = subject.record(*batch.examples.batch(batch.size))
        changes = batch.changes()
        number = _first_mixing(subject, history, path, changes)
    except OutOfTimeError as error:
        return Failure(message=what, advice=advice, values=values), (f"the operation: {error}",)
    except Exception as error:  # noqa: BLE001 - any call may raise when it is run again
        return Failure(message=what, advice=advice, values=values), (f"the operation: {type(error).__name__}: {error}",)
    if number is None:
        return Failure(message=what, advice=advice, values=values), ("the operation: none mixes rows in a replay",)
    mixed = MixedRows(history=history, number=number, changes=[*map(tensors_of, changes)], alive=subject)
    subject.tools.witness(mixed)
    cause = "the first operation with an element that depends on two rows"
    return results.failure_at(history, number, what, advice, values=values, cause=cause), ()


def _first_mixing(subject: Subject, history: ModelHistory, path: str, changes: list[Arguments]) -> int | None:
    """Return the first call, of those that an output depends on, with an element that both changes reach."""
    recording = history.recording
    leading = ancestors(recording, path)
    with torch.no_grad(), contextlib.ExitStack() as stack:
        players = [stack.enter_context(Player(recording)) for _ in range(1 + len(changes))]
        for player, change in zip(players[1:], changes, strict=True):
            put_inputs(player, recording, tensors_of(change))
        for number, outputs in in_step(recording, players):
            subject.check_time()
            if number in leading and any(_mixes(*values) for values in zip(*outputs, strict=True)):
                return number
    return None


def _mixes(plain: torch.Tensor, *changed: torch.Tensor) -> bool:
    """Return whether an element is another one after each of the changes; also if a shape is."""
    if any(tensor.shape != plain.shape for tensor in changed):
        return True
    reached = [apart(plain, tensor) != 0 for tensor in changed]
    return bool(torch.stack(reached).all(0).any())
