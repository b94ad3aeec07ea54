"""The check ``rows``: other rows of the batch, changed at the same shape, change nothing in this one.

The first row is compared with all others changed, then the last one.  The second comparison is spared where the last
row is what it gives alone, but for some units in the last place: then no row before it has been let in.
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
from pytest_torchlens.checks.batch_rank import Lists
from pytest_torchlens.checks.batch_rank import lost_dim
from pytest_torchlens.checks.draws import scaled
from pytest_torchlens.checks.draws import without_extremes
from pytest_torchlens.checks.evidence import MixedRows
from pytest_torchlens.checks.exact import exact_outputs
from pytest_torchlens.checks.inputs import Arguments
from pytest_torchlens.checks.inputs import Examples
from pytest_torchlens.checks.inputs import RefusedError
from pytest_torchlens.checks.inputs import are_equal
from pytest_torchlens.checks.inputs import are_finite
from pytest_torchlens.checks.inputs import first_example
from pytest_torchlens.checks.inputs import with_inputs
from pytest_torchlens.checks.places import pairs_of
from pytest_torchlens.checks.replays import tensors_of
from pytest_torchlens.checks.results import values_text
from pytest_torchlens.checks.row_places import row_place
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
    depend = find(given)
    row = batch.row("first", 0)
    found = _compare(batch, row, batch.examples.other_outputs(size), depend)
    if not found.count:
        raise NotApplicableError("; ".join(found.unseen) or "its output holds no tensor to compare")
    if not found.differ and not batch.last_is_as_alone(depend):
        row = batch.row("last", size - 1)
        with contextlib.suppress(ModelRaisedError):  # which says nothing of rows
            others = given.call(*row.others, way=f"in a batch of {size} with other rows")
            found = _compare(batch, row, others, depend, found)
    if not found.differ:
        batch, row, found = _with_other_extremes(batch, depend, row, found)
    if not found.differ and batch.examples.is_read_by_python(size):
        batch, row, found = _decided_by_others(batch, depend, row, found)
        found.unseen += [] if found.differ else _undecided(batch)
    fields: dict[str, Any] = {"unseen": tuple(found.unseen), "redrawn": given.redrawn}
    if not found.differ:
        return results.passed(NAME, found.count, **fields)
    if note := _only_rounding(batch, row, found):
        return results.passed(NAME, found.count, notes=(note,), **fields)
    path, (one, two) = next(iter(found.differ.items()))
    path = batch.lists.path(path, row.number)
    what = f"the {row.word} row of {output_name(path)} changes when the other rows change"
    failure, unseen = _failure(batch, what, path, values_text(one, two))
    return results.failed(NAME, failure, compared=found.count, **fields | {"unseen": (*found.unseen, *unseen)})


def _with_other_extremes(batch: _Batch, depend: set[str], row: _Row, found: _Found) -> tuple[_Batch, _Row, _Found]:
    """Return a row that differs with others of larger and smaller whole numbers; what is given, if it does not.

    Other rows of ids hold the same numbers in another order, which neither a largest nor a sum of the batch shows.
    """
    narrow = batch.narrowed()
    if narrow is None:
        return batch, row, found
    with contextlib.suppress(ModelRaisedError, NotApplicableError):
        first = narrow.row("first", 0)
        outputs = narrow.subject.call(*first.others, way=f"in a batch of {batch.size} with other rows")
        compared = _compare(narrow, first, outputs, depend, found)
        if compared.differ:
            return narrow, first, compared
    return batch, row, found


def _decided_by_others(batch: _Batch, depend: set[str], row: _Row, found: _Found) -> tuple[_Batch, _Row, _Found]:
    """Return a row that differs with others for which Python may decide otherwise; what is given, if none does.

    The number of steps of a loop that runs until all rows have converged is that of the slowest row.  In a batch of one
    row alone it is that row's, and rows of another size need more steps, or fewer.
    """
    size, small = batch.size, batch.scaled(1 / _MUCH)
    first, last = batch.row("first", 0), batch.row("last", size - 1)
    tried = [
        (batch, first._replace(others=batch.examples.repeated(size))),
        (batch, last._replace(others=batch.examples.last_repeated(size))),
        (batch, first._replace(others=batch.examples.enlarged(size, _MUCH))),
        (small, first._replace(others=small.examples.enlarged(size, _MUCH))),
    ]
    for its, one in tried:
        with contextlib.suppress(ModelRaisedError, NotApplicableError):
            outputs = its.subject.call(*one.others, way=f"in a batch of {size} with other rows")
            compared = _compare(its, one, outputs, depend, found)
            if compared.differ and (are_finite(outputs) or not are_finite(its.plain)):
                return its, one, compared
    return batch, row, found


def _undecided(batch: _Batch) -> list[str]:
    """Return that Python decides by all rows of a batch, though no other rows change a decision."""
    try:
        history = batch.subject.record(*batch.examples.batch(batch.size))
        path = next(iter(batch.plain))
        place = row_place(batch.subject, history, path, batch.changes(), batch.size)
    except OutOfTimeError:
        raise
    except Exception:  # noqa: BLE001 - any call may raise when it is run again
        return []
    if place is None or not place.is_read:
        return []
    what = f"whether rows share what Python decides by {history.label(place.number)}"
    return [f"{what}: the other rows that were tried change no row"]


_MUCH = 16.0
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
    number: int
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
    wider: Examples | None = None
    """Examples of the same kind, whose whole numbers go beyond those of the batch."""

    def narrowed(self) -> _Batch | None:
        """Return a batch without the least and largest of the whole numbers in its inputs; None if all stay."""
        given = self.subject.with_inputs(*with_inputs(self.subject, without_extremes))
        if are_equal(given, self.subject):
            return None
        return self._replace(subject=given, examples=Examples(given, self.examples.dim), wider=self.examples)

    def scaled(self, factor: float) -> _Batch:
        """Return a batch of an example whose real numbers are so many times as large."""
        given = self.subject.with_inputs(*with_inputs(self.subject, lambda tensor: scaled(tensor, tensor, factor)))
        return self._replace(subject=given, examples=Examples(given, self.examples.dim))

    @property
    def plain(self) -> Outputs:
        """The outputs of the batch."""
        return self.examples.outputs(self.size)

    @property
    def lists(self) -> Lists:
        """The lists of the output with an item for each row; none where the output for one example is not known."""
        return Lists(self.alone or {}, self.plain, self.size)

    def row(self, word: str, number: int) -> _Row:
        """Return a row, and the batch with others in place of all others."""
        return _Row(word, number, self.fits(number), self.with_others(number))

    def fits(self, row: int) -> Fits:
        """Return what finds a row in the outputs."""
        fit, lists = first_of(self.size, row), self.lists

        def grown(path: str, output: torch.Tensor) -> list[torch.Tensor]:
            if path in lists:
                return [output]
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
        if self.wider is None:
            return self.examples.others(self.size, row)
        return self.examples.with_rows_of(self.wider, self.size, {*range(self.size)} - {row})

    def changes(self) -> list[Arguments]:
        """Return the batch with other rows after the first, and with another first row."""
        if self.wider is not None:
            return [self.with_others(0), self.examples.with_rows_of(self.wider, self.size, {0})]
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
        for path, output in self.lists.of_row(self.plain, self.size - 1).items():
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


def _compare(batch: _Batch, row: _Row, others: Outputs, depend: set[str], former: _Found | None = None) -> _Found:
    """Return what differs in a row; the former comparison, if there is one and nothing can be compared here."""
    found, lists, fits = _Found(), batch.lists, row.fits
    others = lists.of_row(others, row.number)
    for path, output in lists.of_row(batch.plain, row.number).items():
        name, other = output_name(path), others.get(path)
        rows = fits(path, output)
        if path not in depend:
            found.unseen.append(f"{name} does not depend on the input")
        elif not rows or other is None or (other.shape != output.shape and path not in lists):
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
    label = _first_other_shape(plain, others) or _first_other_place(
        batch, plain, batch.lists.path(next(iter(found.differ)), row.number)
    )
    if not label:
        return ""
    exact = batch.lists.of_row(exact_outputs(given, plain).outputs, row.number)
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
        place = row_place(batch.subject, plain, path, batch.changes(), batch.size)
    except OutOfTimeError:
        raise
    except Exception:  # noqa: BLE001 - any call may raise when it is run again
        return ""
    outputs = plain.recording.calls[place.number].outputs if place is not None else ()
    return plain.label(place.number) if place and any(not _is_real(value.dtype) for value in outputs) else ""


def _failure(batch: _Batch, what: str, path: str, values: str) -> tuple[Failure, tuple[str, ...]]:
    """Return the failure at the first operation that lets another row in, and why that is not known."""
    subject = batch.subject
    try:
        history = subject.record(*batch.examples.batch(batch.size))
        changes = batch.changes()
        place = row_place(subject, history, path, changes, batch.size)
    except OutOfTimeError as error:
        return Failure(message=what, advice=_ADVICE, values=values), (f"the operation: {error}",)
    except Exception as error:  # noqa: BLE001 - any call may raise when it is run again
        return Failure(message=what, advice=_ADVICE, values=values), (
            f"the operation: {type(error).__name__}: {error}",
        )
    if place is None:
        return Failure(message=what, advice=_ADVICE, values=values), ("the operation: none mixes rows in a replay",)
    number = place.number
    is_batch_norm = "batch_norm" in history.recording.calls[number].info.layer_type
    advice = _ADVICE_IN_TRAIN if subject.is_training and is_batch_norm else _ADVICE
    if place.mixes:
        mixed = MixedRows(history=history, number=number, changes=[*map(tensors_of, changes)], alive=subject)
        subject.tools.witness(mixed)
    return results.failure_at(history, number, what, advice, values=values, cause=place.cause), ()
