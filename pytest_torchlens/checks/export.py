"""The check ``export``: the program of `torch.export` gives the same on other inputs, but for rounding."""

from __future__ import annotations

import copy
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.export import Dim
from torch.export import ExportedProgram
from torch.export import ShapesCollection

from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.checks import results
from pytest_torchlens.checks.compare import compare_outputs
from pytest_torchlens.checks.compare import words_of
from pytest_torchlens.checks.dynamo import chain_of
from pytest_torchlens.checks.dynamo import first_sentence
from pytest_torchlens.checks.dynamo import place_of_error
from pytest_torchlens.checks.evidence import Exported
from pytest_torchlens.checks.inputs import Arguments
from pytest_torchlens.checks.inputs import Examples
from pytest_torchlens.checks.inputs import other_inputs
from pytest_torchlens.checks.nodes import Values
from pytest_torchlens.checks.nodes import Watched
from pytest_torchlens.checks.nodes import first_differing
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.vacuity import dependent
from pytest_torchlens.history.source import is_model_file
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import SourcePlace
from pytest_torchlens.records import output_name

NAME = "export"
_WAY = "when exported"
_ADVICE = (
    "a program holds what the model did while it was exported: look for code that asks whether it is traced or "
    "exported, and for values that Python computes, which become constants"
)
_ADVICE_RAISES = (
    "let Python read no value of a tensor (if, item, tolist, numpy) and no size that is to vary: torch.where, "
    "torch.cond, torch._check and shapes with -1 say the same"
)


def run(subject: Subject, dynamic: bool = False, dim: int = 0) -> CheckResult:
    """Export the model, and run its program on other inputs: with `dynamic`, on a batch of another size along `dim`.

    A copy of the model is exported, as exporting may leave fake tensors in a model that keeps values.
    """
    subject = dependent(subject)
    if subject.draws:
        raise NotApplicableError(f"the model draws random numbers ({subject.draws}), and others when it is exported")
    examples = Examples(subject, dim) if dynamic else None
    given, other = inputs_to_export(subject, examples)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _compare(other, *_exported(subject, given, examples))
    except NotExportedError as error:
        return export_failed(subject, error.error)


class NotExportedError(Exception):
    """The model cannot be exported."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def inputs_to_export(subject: Subject, examples: Examples | None) -> tuple[Arguments, Subject]:
    """Return the inputs to export with, and a subject of those to run on, which the model itself takes.

    A batch of one would be taken for a constant.
    """
    if examples is None:
        return Arguments(subject.args, subject.kwargs), _with(subject, other_inputs(subject))
    size = max(2, examples.count)
    examples.outputs(size + 1)
    return examples.batch(size), _with(subject, examples.batch(size + 1))


def _with(subject: Subject, arguments: Arguments) -> Subject:
    other = subject.with_inputs(*arguments)
    try:
        _ = other.outputs
    except ModelRaisedError as error:
        raise NotApplicableError(f"{error}, on other values of its inputs") from error
    return other


def _exported(subject: Subject, given: Arguments, examples: Examples | None) -> tuple[ExportedProgram, tuple[str, ...]]:
    """Return the program, and what it does not hold."""
    try:
        return export_program(subject.model, given, examples), ()
    except NotExportedError:
        if not (odd := _odd_output(subject)):
            raise
    subject.check_time()
    program = export_program(subject.model, given, examples, TensorsOf)
    return program, (f"its output as it is: torch.export does not take {odd}, so its tensors were exported",)


def export_program(
    model: nn.Module,
    given: Arguments,
    examples: Examples | None,
    wrapped: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> ExportedProgram:
    """Return the program of a copy of a model, `wrapped`; with `examples` for batches of each size.

    Raises
    ------
    NotApplicableError
        If the model cannot be copied.
    NotExportedError
        If it cannot be exported.
    """
    try:
        copied = wrapped(copy.deepcopy(model))
    except Exception as error:
        raise NotApplicableError(f"the model cannot be copied: {type(error).__name__}: {error}") from error
    shapes = None
    if examples is not None:
        shapes = ShapesCollection()  # type: ignore[no-untyped-call]
        for tensor in examples.batched(given):
            shapes[tensor] = {examples.dim: Dim.DYNAMIC}
    try:
        return torch.export.export(copied, given.args, given.kwargs, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        raise NotExportedError(error) from error


class TensorsOf(nn.Module):
    """Returns the tensors of a model's output by path, without the objects that hold them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        """Return the tensors."""
        return dict(walk(self.model(*args, **kwargs)))


def _odd_output(subject: Subject) -> str:
    """Return the class of an object in the output that `torch.export` does not take; empty if there is none."""
    found: list[str] = []

    def run(*args: Any, **kwargs: Any) -> None:
        leaves = pytree.tree_leaves(subject.model(*args, **kwargs))
        found.extend(type(leaf).__name__ for leaf in leaves if leaf is not None and type(leaf) not in _EXPORTED)

    with subject.runs(function=run) as call:
        call()
    return next(iter(found), "")


_EXPORTED = (torch.Tensor, nn.Parameter, int, float, bool, str, complex, bytes, torch.dtype, torch.device)


# -- results -------------------------------------------------------------------------------------------------------


def _compare(other: Subject, program: ExportedProgram, unseen: tuple[str, ...]) -> CheckResult:
    """Compare the program with the model, on inputs other than those that it was exported with."""
    other.check_time()
    module: Any = program.module()
    try:
        with other.runs(way=_WAY, function=module) as call:
            found = compare_outputs(other, call())
    except ModelRaisedError as error:
        raise NotExportedError(error.error) from error
    if not found.count:
        raise NotApplicableError("; ".join(found.unseen) or "its output holds no tensor to compare")
    unseen = (*unseen, *found.unseen)
    fields: dict[str, Any] = {"compared": found.count, "redrawn": other.redrawn}
    fields["notes"] = (f"{len(program.graph.nodes):,} nodes",)
    if found.worst is None:
        return results.passed(NAME, unseen=unseen, **fields)
    path, worst = found.worst
    fields |= {"error": worst.error, "reference_error": worst.reference_error, "limit": worst.limit}
    if worst.within:
        return results.passed(NAME, unseen=unseen, **fields)
    what = f"{output_name(path)} differs {_WAY}: {words_of(worst)}"
    number, values, more = _place(other, module, path)
    failure = results.failure_at(other.history, number, what, _ADVICE, values=values or found.values)
    return results.failed(NAME, failure, unseen=(*unseen, *more), **fields)


def _place(other: Subject, module: Any, path: str) -> tuple[int | None, str, tuple[str, ...]]:
    """Return the first operation that differs, both values, and why it is not known."""
    try:
        store = Values()
        number, values = first_differing(other, store, Watched(module, store).run_on, path)
        if number is not None:
            other.tools.witness(Exported(history=other.history, number=number, alive=other))
    except Exception as error:  # noqa: BLE001 - any call may raise when it is run again
        return None, "", (f"the operation: {type(error).__name__}: {error}",)
    return number, values, () if number is not None else ("the operation: the program computes the value of each",)


def export_failed(subject: Subject, error: Exception, name: str = NAME) -> CheckResult:
    """Return the failure of an export that raised, at the line where the model was; `name` is the check's."""
    root = chain_of(error)[-1]
    what = f"torch.export raised {type(error).__name__}: {first_sentence(str(error))}"
    place = place_of_error(error) or _last_line(error) or _last_line(root)
    unseen = () if place else ("the line: torch.export does not say it; torch.export.draft_export may",)
    failure = results.failure_at_line(subject.history, place, what, _ADVICE_RAISES)
    return results.failed(name, failure, unseen=unseen, redrawn=subject.redrawn)


def _last_line(error: BaseException) -> SourcePlace | None:
    """Return the innermost line of the model in a traceback."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_model_file(frame.filename)]
    return SourcePlace(frames[-1].filename, frames[-1].lineno or 0, frames[-1].name) if frames else None
