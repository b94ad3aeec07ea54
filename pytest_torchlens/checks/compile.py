"""The check ``compile``: `torch.compile` gives the same outputs and gradients, but for rounding.

Outputs are compared in the gradient mode of the caller; gradients, where a parameter needs them, in another pass.
Where something differs, pieces of the recorded graph are compiled alone, down to the smallest that differs.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.checks import results
from pytest_torchlens.checks.compare import compare_outputs
from pytest_torchlens.checks.compare import words_of
from pytest_torchlens.checks.dynamo import Compiler
from pytest_torchlens.checks.dynamo import chain_of
from pytest_torchlens.checks.dynamo import compiler_as_it_was
from pytest_torchlens.checks.dynamo import first_sentence
from pytest_torchlens.checks.dynamo import lacks_cxx_compiler
from pytest_torchlens.checks.dynamo import place_of_error
from pytest_torchlens.checks.evidence import CompiledPiece
from pytest_torchlens.checks.exact import relative_error
from pytest_torchlens.checks.nodes import Values
from pytest_torchlens.checks.nodes import Watched
from pytest_torchlens.checks.nodes import first_differing
from pytest_torchlens.checks.output_gradients import gradients_by
from pytest_torchlens.checks.output_gradients import moved_gradients
from pytest_torchlens.checks.pieces import MOVES
from pytest_torchlens.checks.pieces import Difference
from pytest_torchlens.checks.pieces import Piece
from pytest_torchlens.checks.pieces import Pieces
from pytest_torchlens.checks.pieces import Smallest
from pytest_torchlens.checks.pieces import smallest
from pytest_torchlens.checks.pieces import unexplained
from pytest_torchlens.checks.results import values_text
from pytest_torchlens.checks.side_by_side import ancestors
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import OutOfTimeError
from pytest_torchlens.checks.subject import Outputs
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.tolerance import is_plainly_explained
from pytest_torchlens.checks.vacuity import dependent
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import Failure
from pytest_torchlens.records import output_name

NAME = "compile"
_ADVICE = (
    "compile with the backends 'eager' and 'aot_eager' to see which stage is at fault, keep the operations out of the "
    "graph with torch.compiler.disable, and report the piece to PyTorch"
)
_CAUSE_CAPTURED = "no piece differs when it is compiled alone: the graph that the compiler captures does something else"
_ADVICE_CAPTURED = (
    "look for code that asks whether it is compiled, and for Python values that change between calls; the backend "
    "'eager' runs what was captured"
)
_SIDES = {
    0.0: ": the plain one is what differences give in float64",
    1.0: ": the compiled one is what differences give in float64, so the plain one is off",
}
"""What is said of the share of the way from the plain gradient to the other one that differences show."""
_NEAR = 0.2
_ADVICE_RAISES = "keep the line out of the graph with torch.compiler.disable, or write it in another way"


def run(
    subject: Subject,
    backend: str = "aot_eager",
    mode: str = "",
    dynamic: bool | None = None,
    fullgraph: bool = False,
    gradients: bool = True,
) -> CheckResult:
    """Compile the model, and compare its outputs and the gradients of its parameters."""
    make = partial(Compiler, backend, mode, dynamic, fullgraph)
    make(subject.check_time)
    check = _Check(dependent(subject), make, subject)
    if check.subject.draws:
        raise NotApplicableError(f"the model draws random numbers ({check.subject.draws}), and others when compiled")
    with compiler_as_it_was(check.subject.model, check.compiler):
        result = check.result(gradients=gradients)
    return replace(result, notes=check.compiler.notes)


class _Check:
    def __init__(self, subject: Subject, make: partial[Compiler], timed: Subject) -> None:
        self.subject = subject
        self.compiler = make(timed.check_time)
        self._piece_compiler = make(timed.check_time)
        self._way = f"when compiled by {self.compiler.backend}"
        self._compared = 0
        self._unseen: list[str] = []
        self._numbers: dict[str, Any] = {"redrawn": subject.redrawn}

    def result(self, *, gradients: bool) -> CheckResult:
        """Return the result of both comparisons."""
        failed = self._outputs_differ()
        if failed is None and gradients:
            try:
                failed = self._gradients_differ()
            except OutOfTimeError as error:
                self._unseen.append(f"gradients: {error}")
        if failed is not None:
            return failed
        if not self.compiler.graphs:
            raise NotApplicableError("nothing was compiled: the compiler found no graph, or it is switched off")
        if not self._compared:
            raise NotApplicableError("; ".join(self._unseen) or "its output holds no tensor to compare")
        return results.passed(NAME, self._compared, unseen=tuple(self._unseen), **self._numbers)

    # -- comparisons -----------------------------------------------------------------------------------------------

    def _outputs_differ(self) -> CheckResult | None:
        try:
            with self.subject.runs(way=self._way, function=self.compiler.compiled(self.subject.model)) as call:
                found = compare_outputs(self.subject, call())
        except ModelRaisedError as error:
            return self._raised(error, self.subject.history)
        self._compared += found.count
        self._unseen += found.unseen
        if found.worst is None:
            return None
        path, worst = found.worst
        self._numbers |= {"error": worst.error, "reference_error": worst.reference_error, "limit": worst.limit}
        if worst.within:
            return None
        what = f"{output_name(path)} differs {self._way}: {words_of(worst)}"
        return self._located(Failure(message=what, values=found.values, advice=_ADVICE), self.subject.history, path)

    def _gradients_differ(self) -> CheckResult | None:
        model = self.subject.model
        targets = {name: tensor for name, tensor in named_parameters(model) if tensor.requires_grad}
        if not targets or torch.is_inference_mode_enabled():
            return None
        try:
            plain = self._run(gradients_by(model, targets))
        except ModelRaisedError as error:
            self._unseen.append(f"gradients: {error.error}")
            return None
        with torch.enable_grad():
            history = self.subject.record()
        try:
            other = self._run(gradients_by(self.compiler.compiled(model), targets))
        except ModelRaisedError as error:
            return self._raised(error, history, gradients=True)
        return self._compare_gradients(plain, other, history)

    def _compare_gradients(self, plain: Outputs, other: Outputs, history: ModelHistory) -> CheckResult | None:
        def exact() -> Outputs:
            with torch.enable_grad():
                return self.subject.once(("exact gradients",), lambda: Piece(history, gradients=True).exact())

        def moved(seed: int) -> Outputs:
            make = partial(moved_gradients, self.subject.model, seed)
            return self.subject.once(("moved gradients", seed), lambda: self._run(make()))

        try:
            found = next(unexplained(other, plain, exact, moved), None) or _plain_off(other, plain, exact, moved)
        except OutOfTimeError:
            raise
        except Exception as error:  # noqa: BLE001 - an operation may have no form in fx, or in float64
            reason = f"{type(error).__name__}: {error}"
            self._unseen.append(f"gradients, which differ in bits and have no float64 reference: {reason}")
            if (found := _beyond_moves(other, plain, moved)) is None:
                return None
        self._compared += sum(bool(gradient.any()) for gradient in plain.values())
        self._numbers["unit"] = "outputs and gradients"
        if found is None:
            return None
        what = f"the gradient of {found.name!r} differs {self._way}"
        side = self._right_side(history, found.name, plain, other)
        failure = Failure(message=what + side, values=found.values, advice=_ADVICE)
        return self._located(failure, history, gradients=True)

    def _right_side(self, history: ModelHistory, name: str, plain: Outputs, other: Outputs) -> str:
        """Return which of two gradients is the one that differences give, as a part of a sentence; empty if neither."""
        if name not in other or other[name].shape != plain[name].shape:
            return ""
        one, two = plain[name].double(), other[name].double()
        apart = two - one
        try:
            slope = Piece(history, gradients=True).slope(name, apart)
        except Exception:  # noqa: BLE001 - an operation may have no form in fx, or in float64
            return ""
        share = (slope - float((one * apart).sum())) / float((apart * apart).sum())
        return next((words for right, words in _SIDES.items() if abs(share - right) < _NEAR), "")

    def _run(self, function: Any) -> Outputs:
        with self.subject.runs(way=self._way, function=function) as call:
            return call()

    # -- the place -------------------------------------------------------------------------------------------------

    def _raised(self, error: ModelRaisedError, history: ModelHistory, *, gradients: bool = False) -> CheckResult:
        """Return the failure of a compilation that raised, at the line that the compiler names or by pieces."""
        chain = chain_of(error.error)
        if late := [link for link in chain if isinstance(link, OutOfTimeError)]:
            raise late[0]
        if lacks_cxx_compiler(error.error):
            raise NotApplicableError("this machine has no C++ compiler, which the backend needs")
        raised = f"{type(chain[-1]).__name__}: {first_sentence(str(chain[-1]))}"
        what = f"torch.compile with backend {self.compiler.backend} raised {raised}"
        if place := place_of_error(error.error):
            failure = results.failure_at_line(history, place, what, _ADVICE_RAISES)
            return results.failed(NAME, failure, unseen=tuple(self._unseen), **self._numbers)
        return self._located(Failure(message=what, advice=_ADVICE_RAISES), history, gradients=gradients)

    def _located(
        self, failure: Failure, history: ModelHistory, path: str | None = None, *, gradients: bool = False
    ) -> CheckResult:
        """Return a failure at the smallest piece that differs when it is compiled alone."""
        found, unseen = self._search(history, path, gradients=gradients)
        fields = {**self._numbers, "compared": self._compared, "unseen": (*self._unseen, *unseen)}
        if found is None or found.difference is None:
            if found is not None and path is not None and (captured := self._captured(failure, path)):
                return results.failed(NAME, captured, **(fields | {"unseen": tuple(self._unseen)}))
            return results.failed(NAME, failure, **fields)
        first, last = (history.label(found.numbers[at]) for at in (0, -1))
        if found.is_tie:
            tie = results.failure_at(history, found.numbers[-1], failure.message, values=found.difference.values)
            return results.tie(NAME, tie, **fields)
        piece = f"{len(found.numbers)} operations, {first} to {last}" if len(found.numbers) > 1 else "this operation"
        cause = f"the smallest piece that differs when it is compiled alone: {piece}"
        self._testify(history, found.numbers, gradients=gradients)
        values = found.difference.values
        at = results.failure_at(history, found.numbers[0], failure.message, failure.advice, values=values, cause=cause)
        return results.failed(NAME, at, **fields)

    def _testify(self, history: ModelHistory, numbers: Sequence[int], *, gradients: bool) -> None:
        options = self.compiler.arguments
        self.subject.tools.witness(
            CompiledPiece(
                history=history,
                number=numbers[-1],
                numbers=numbers,
                options=options,
                gradients=gradients,
                alive=self.subject,
            )
        )

    def _captured(self, failure: Failure, path: str) -> Failure | None:
        """Return the failure at the first operation whose value the captured graphs do not compute, uncompiled."""
        values = Values()
        captured = self._piece_compiler.compiled(self.subject.model, lambda graph, _: Watched(graph, values).run)
        try:
            number, texts = first_differing(self.subject, values, captured, path)
        except Exception:  # noqa: BLE001 - any call may raise when it is run again
            return None
        if number is None:
            return None
        return results.failure_at(
            self.subject.history, number, failure.message, _ADVICE_CAPTURED, values=texts, cause=_CAUSE_CAPTURED
        )

    def _search(
        self, history: ModelHistory, path: str | None, *, gradients: bool
    ) -> tuple[Smallest | None, tuple[str, ...]]:
        """Return the smallest piece that differs, and what was not looked at."""
        numbers = sorted(ancestors(history.recording, path))
        pieces = Pieces(self.subject, history, self._piece_compiler.compiled, gradients=gradients)
        try:
            with torch.set_grad_enabled(gradients or torch.is_grad_enabled()):
                found = smallest(numbers, pieces.differs)
        except Exception as error:  # noqa: BLE001 - any call may raise when it is run again
            return None, (f"the operation: {type(error).__name__}: {error}",)
        if found.difference is None and not found.unseen:
            return found, ("the operation: no piece differs when it is compiled alone, only the whole",)
        return found, found.unseen


def _beyond_moves(other: Outputs, plain: Outputs, moved: Callable[[int], Outputs]) -> Difference | None:
    """Return a gradient that differs by far more than moved parameters change: no float64 is needed to judge it."""
    for name, gradient in plain.items():
        if name not in other or is_plainly_explained(other[name], gradient):
            continue
        try:
            moves = max(relative_error(moved(seed)[name], gradient) for seed in range(MOVES))
        except ModelRaisedError:  # it does not take other parameters
            return None
        if relative_error(other[name], gradient) > max(_WRONG, _FAR * moves):
            return Difference(name, values_text(gradient, other[name]))
    return None


def _plain_off(
    other: Outputs, plain: Outputs, exact: Callable[[], Outputs], moved: Callable[[int], Outputs]
) -> Difference | None:
    """Return a gradient that is wrong in the plain run alone: by nothing that moved parameters change, too."""
    for name, gradient in plain.items():
        if name not in other or is_plainly_explained(other[name], gradient):
            continue
        error = relative_error(gradient, exact()[name])
        is_other_right = relative_error(other[name], exact()[name]) < _RIGHT < _WRONG < error
        if is_other_right and relative_error(moved(0)[name], gradient) < error / 10:
            return Difference(name, values_text(gradient, other[name]))
    return None


_RIGHT, _WRONG = 1e-3, 1e-2
"""Errors, as parts of the RMS: of a gradient that is right, and of one that is not."""
_FAR = 10.0
"""So many times what a move changes is no rounding."""
