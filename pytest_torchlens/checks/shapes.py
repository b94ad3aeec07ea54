"""The check ``shapes``: a model computes the same on other sizes, whatever it was called with before.

Batches of three examples, images that are larger or not square, sequences that are shorter or longer.  What a model
refuses is a failure only if it claims to take it; what it computes must be right: each row as alone, all of the input
read, and nothing left of a size that came before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from functools import partial

from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.checks import results
from pytest_torchlens.checks.batch_rank import Lists
from pytest_torchlens.checks.batch_rank import failure_of_lost_dim
from pytest_torchlens.checks.batch_rank import without_rows
from pytest_torchlens.checks.catalog import split_names
from pytest_torchlens.checks.compare import compare
from pytest_torchlens.checks.compare import differing_outputs
from pytest_torchlens.checks.compare import passed_all
from pytest_torchlens.checks.compare import raised_when_recorded
from pytest_torchlens.checks.first_call import as_before_calls
from pytest_torchlens.checks.first_call import maybe_kept
from pytest_torchlens.checks.inputs import Arguments
from pytest_torchlens.checks.inputs import Examples
from pytest_torchlens.checks.inputs import RefusedError
from pytest_torchlens.checks.inputs import first_example
from pytest_torchlens.checks.places import differing
from pytest_torchlens.checks.side_by_side import ancestors
from pytest_torchlens.checks.side_by_side import first_of
from pytest_torchlens.checks.sizes import Size
from pytest_torchlens.checks.sizes import image_sizes
from pytest_torchlens.checks.sizes import sequence_sizes
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Outputs
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.subject import WrongOptionError
from pytest_torchlens.checks.vacuity import Find
from pytest_torchlens.checks.vacuity import dependent
from pytest_torchlens.checks.vacuity import dependent_in_batch
from pytest_torchlens.checks.vacuity import dependent_outputs
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import CheckStatus
from pytest_torchlens.records import Failure
from pytest_torchlens.records import output_name

NAME = "shapes"
KINDS = ("batch", "image", "sequence")
_NEEDED = {
    "image": "no input is a batch of images (four dimensions, real numbers)",
    "sequence": "no input is a table of whole numbers with four positions or more",
}
_BATCH = 3
_ADVICE_RAISES = "compute sizes from the input (x.shape, reshape with -1), and tables for the size that is there"
_ADVICE_KEPT = "what is kept for a size must be found again by that size: compute it anew when the input's differs"
_ADVICE_ROWS = "look for a size that is written down, or read from another dimension: reshape, view, expand, an index"
_ADVICE_BEYOND = "let the operation take all of its input: a slice or a table has the size of the first input"


def run(subject: Subject, sizes: str = "", dim: int = 0) -> CheckResult:
    """Run the model on other sizes.

    Parameters
    ----------
    subject
        The model and its inputs.
    sizes
        What it claims to take: some of ``batch``, ``image`` and ``sequence``.  By default all are tried, and what the
        model refuses is noted.
    dim
        The dimension of the batch.
    """
    claimed = split_names([sizes])
    find = _dependent_in_batch(dim)
    kept = maybe_kept(subject)
    subject = dependent(as_before_calls(subject), find)
    tried = {
        "batch": lambda: _batches(subject, dim, find),
        "image": lambda: _other_sizes(subject, image_sizes(subject), find(subject)),
        "sequence": lambda: _other_sizes(subject, sequence_sizes(subject), find(subject)),
    }
    _require_inputs(subject, claimed)
    found: list[CheckResult] = []
    ways: list[str] = []
    unseen: list[str] = []
    for kind in claimed or KINDS:
        try:
            for way, result in tried[kind]():
                if result.status is not CheckStatus.PASSED:
                    return result
                found.append(result)
                ways.append(way)
        except _SizeRefusedError as refused:
            if claimed:
                failure = results.failure_of_raise(subject.history, refused.error, _ADVICE_RAISES)
                return results.failed(NAME, failure, redrawn=subject.redrawn)
            unseen.append(str(refused.error))
        except NotApplicableError as reason:
            unseen.append(f"{kind}: {reason}")
    if not found:
        raise NotApplicableError("; ".join(unseen) or "no input is a batch, an image or a sequence of whole numbers")
    passed = passed_all(NAME, found, tuple(dict.fromkeys(ways)))
    return results.passed(
        NAME, passed.compared, unseen=(*passed.unseen, *unseen, *kept), notes=passed.notes, redrawn=subject.redrawn
    )


def _require_inputs(subject: Subject, claimed: tuple[str, ...]) -> None:
    """Raise `WrongOptionError` if an option names sizes that no input has."""
    for kind, sizes in (("image", image_sizes), ("sequence", sequence_sizes)):
        if kind in claimed and next(sizes(subject), None) is None:
            raise WrongOptionError(f"sizes: {kind}, but {_NEEDED[kind]}")


def _dependent_in_batch(dim: int) -> Find:
    """Return what finds the outputs that depend on the input, alone or in a batch, if the model takes one."""

    def find(subject: Subject) -> set[str]:
        with contextlib.suppress(NotApplicableError):
            return dependent_in_batch(dim, 2)(subject)
        return dependent_outputs(subject)

    return find


class _SizeRefusedError(Exception):
    """The model raised on inputs of another size."""

    def __init__(self, error: ModelRaisedError) -> None:
        super().__init__(str(error))
        self.error = error


Found = Iterator[tuple[str, CheckResult]]
"""The ways in which the model was run, and their results."""


# -- batches ---------------------------------------------------------------------------------------------------------


def _batches(subject: Subject, dim: int, find: Find) -> Found:
    """Compare each row of a batch with the example alone, and look at what the batch leaves."""
    try:
        alone = first_example(subject, dim)
    except RefusedError as error:
        _taken(subject, Examples(subject, dim).alone(), "for one example alone")
        raise NotApplicableError(str(error)) from error
    examples, way = Examples(alone, dim), f"in a batch of {_BATCH}"
    try:
        given = examples.batch(_BATCH)
        outputs = _taken(alone, given, way)
    except _SizeRefusedError:
        if not alone.wholes:
            raise
        alone.wholes.clear()  # it may take no other examples in this order, as of lengths
        given = examples.batch(_BATCH)
        outputs = _taken(alone, given, way)
    lost = failure_of_lost_dim(alone, given, outputs, _BATCH)
    if failure := lost or _sizes_differ(alone, examples, outputs):
        yield way, results.failed(NAME, failure, redrawn=subject.redrawn)
    lists = Lists(alone.outputs, outputs, _BATCH)
    if not alone.draws and len(without_rows(alone.outputs, outputs, lists)) < len(alone.outputs):
        for row in range(_BATCH):
            single = alone if row == 0 else alone.with_inputs(*_row(alone, examples, given, row))
            yield way, _row_result(single, alone, given, outputs, row, find(alone))
    yield from _kept(alone, Size(way, given), find(alone))


def _row(alone: Subject, examples: Examples, given: Arguments, row: int) -> Arguments:
    batch = alone.with_inputs(*given)
    return Examples(batch, examples.dim).alone(row)


def _row_result(
    single: Subject, alone: Subject, given: Arguments, outputs: Outputs, row: int, depend: set[str]
) -> CheckResult:
    way = f"in a batch of {_BATCH}"
    words = f"as row {row} {way}"
    fit = first_of(_BATCH, row)
    lists = Lists(alone.outputs, outputs, _BATCH)
    left_out = without_rows(alone.outputs, outputs, lists)
    record = partial(alone.record, *given, way=way)
    return compare(NAME, single, lists.of_row(outputs, row), record, words, _ADVICE_ROWS, fit, depend, left_out)


def _sizes_differ(alone: Subject, examples: Examples, outputs: Outputs) -> Failure | None:
    """Return the failure of an output that has a row for each of two examples, and not for each of three.

    A shape that depends on the values of the examples, as the number of boxes does, is not judged.
    """
    two, again = (_taken(alone, examples.batch(2, seed=seed), "in a batch of 2") for seed in (1, 2))
    for path, one in alone.outputs.items():
        shapes = one.shape, two[path].shape if path in two else (), outputs[path].shape if path in outputs else ()
        depends = path not in again or again[path].shape != shapes[1]
        if depends or not len(shapes[0]) == len(shapes[1]) == len(shapes[2]):
            continue
        for first, second, third in zip(*shapes, strict=True):
            if second == 2 * first and third != _BATCH * first and first:
                what = f"{output_name(path)} has {first}, {second} and {third} rows for 1, 2 and {_BATCH} examples"
                return _failure_of_size(alone, examples, what, path)
    return None


def _failure_of_size(alone: Subject, examples: Examples, what: str, path: str) -> Failure:
    """Return the failure at the first operation whose result no longer grows with the batch, though its input does."""
    passes = [alone.history, alone.record(*examples.batch(2)), alone.record(*examples.batch(_BATCH))]
    counts = [len(history.recording.calls) for history in passes]
    number = None
    for at in sorted(ancestors(passes[2].recording, path)) if len({*counts}) == 1 else ():
        sizes = [[value.shape.numel() for value in history.recording.calls[at].outputs] for history in passes]
        if any(two == 2 * one and three != _BATCH * one for one, two, three in zip(*sizes, strict=False)):
            number = at
            break
    return results.failure_at(passes[2], number, what, _ADVICE_ROWS)


# -- images and sequences --------------------------------------------------------------------------------------------


def _other_sizes(subject: Subject, sizes: Iterator[list[Size]], depend: set[str]) -> Found:
    for alternatives in sizes:
        size, outputs = _first_taken(subject, alternatives)
        yield from _kept(subject, size, depend)
        if failure := _unread(subject, size, outputs):
            yield size.way, results.failed(NAME, failure, redrawn=subject.redrawn)


def _first_taken(subject: Subject, sizes: list[Size]) -> tuple[Size, Outputs]:
    """Return the first of these sizes that the model takes, with its outputs; raise the error of the first if none."""
    refused: list[_SizeRefusedError] = []
    for size in sizes:
        try:
            return size, _taken(subject, size.given, size.way)
        except _SizeRefusedError as error:
            refused.append(error)
    raise refused[0]


def _taken(subject: Subject, given: Arguments, way: str) -> Outputs:
    """Return the outputs on inputs of another size, with nothing left of others."""
    try:
        return subject.call(*given, way=way)
    except ModelRaisedError as error:
        raise _SizeRefusedError(raised_when_recorded(subject, error, given)) from error


def _kept(subject: Subject, size: Size, depend: set[str]) -> Found:
    """Compare each of two sizes after the other with the same size alone."""
    other, first = subject.with_inputs(*size.given), Arguments(subject.args, subject.kwargs)
    for reference, before, way in (
        (other, first, f"{size.way}, after the first size"),
        (subject, size.given, f"on the first size again, after a pass {size.way}"),
    ):
        with subject.runs() as call:
            try:
                call(*before)
                outputs = call(reference.args, reference.kwargs)
            except ModelRaisedError as error:
                failure = results.failure_of_raise(None, ModelRaisedError(way, error.error), _ADVICE_KEPT)
                yield way, results.failed(NAME, failure, redrawn=subject.redrawn)
                return
        record = _recorder(subject, before, reference)
        yield size.way, compare(NAME, reference, outputs, record, way, _ADVICE_KEPT, depend=depend)


def _recorder(subject: Subject, before: Arguments, reference: Subject) -> Callable[[], ModelHistory]:
    def record() -> ModelHistory:
        with subject.recordings() as run:
            run(*before)
            return run(reference.args, reference.kwargs)

    return record


def _unread(subject: Subject, size: Size, outputs: Outputs) -> Failure | None:
    """Return the failure of a model that does not read what goes beyond the first size, and reads its first input."""
    if size.beyond is None or size.control is None:
        return None
    if differing_outputs(outputs, _taken(subject, size.beyond, size.way)):
        return None
    if not differing_outputs(subject.outputs, _taken(subject, size.control, "on other values")):
        return None
    what = f"{size.way} no output depends on what goes beyond the first size"
    one, other = subject.record(*size.given), subject.record(*size.beyond)
    return results.failure_at(one, _first_ignoring(one, other), what, _ADVICE_BEYOND)


def _first_ignoring(one: ModelHistory, other: ModelHistory) -> int | None:
    """Return the first call that reads what differs and gives the same, of those that an output depends on."""
    changed = {pair.one for pair in differing(one, other) if pair.one is not None}
    leading = ancestors(one.recording)
    inputs = {id(source.value) for source in one.recording.sources if source.kind == "input"}
    for number, call in enumerate(one.recording.calls):
        reads = [value_of(read) for _, read in edges_in(call)]
        if number in leading and number not in changed and any(id(v) in inputs or v.call in changed for v in reads):
            return number
    return None
