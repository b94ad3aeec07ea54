"""The check ``dtype``: in low precision each operation errs by what its type explains.

A copy of the model runs in bfloat16 or float16, and the model itself under autocast.  Each operation of that pass is
run in float64 on the very inputs that it has: its own error must be that of a result rounded once.  One that errs more
fails the check if an output errs more, too, than that of a pass in float64 whose results are rounded once each.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.looks import home_of
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.capture.memory import overwrite
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.checks import results
from pytest_torchlens.checks.catalog import split_names
from pytest_torchlens.checks.compare import differing_outputs
from pytest_torchlens.checks.compare import passed_all
from pytest_torchlens.checks.compare import words_of
from pytest_torchlens.checks.dynamo import first_sentence
from pytest_torchlens.checks.evidence import LowPrecision
from pytest_torchlens.checks.exact import ExactPlayer
from pytest_torchlens.checks.exact import is_discrete
from pytest_torchlens.checks.exact import relative_error
from pytest_torchlens.checks.held import listed
from pytest_torchlens.checks.inputs import inputs_of
from pytest_torchlens.checks.inputs import with_inputs
from pytest_torchlens.checks.results import values_text
from pytest_torchlens.checks.rounding import OwnJudgement
from pytest_torchlens.checks.rounding import RoundingPlayer
from pytest_torchlens.checks.rounding import in_step_with_first
from pytest_torchlens.checks.rounding import own_judgements
from pytest_torchlens.checks.side_by_side import ancestors
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.tolerance import HALF
from pytest_torchlens.checks.tolerance import Judgement
from pytest_torchlens.checks.tolerance import judge
from pytest_torchlens.checks.vacuity import dependent
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import output_name
from pytest_torchlens.replay import Player
from pytest_torchlens.replay.run import needed_values

NAME = "dtype"
_AUTOCAST = "autocast"
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_LOST = 0.5
"""What errs by so much of its RMS has nothing left of its value."""
_MOST = 0.5
"""Lost values are a failure if they make so much of the error of an output."""
_MIXED = re.compile(
    r"(same|different|mixed|mismatched) (d?types?|scalar types?)"
    r"|expected (scalar type|dtype|\S+\.dtype)"
    r"|(type|dtype) \(.+\) (and|should)"
    r"|d?types (must )?(match|be the same)"
    r"|dtype.* to (match|be equal)|dtype \S+,? but got|does not match weight dtype|type promoting not supported"
    r"|can't be cast"
    r"|cannot be converted to type .* without overflow",
    re.IGNORECASE,
)
"""What PyTorch says where types meet that it does not combine."""
_ADVICE = {
    "mixed": "make constants in the dtype of what they meet: x.new_zeros(...), torch.arange(..., dtype=x.dtype), and "
    "masks with torch.finfo(x.dtype).min",
    "overflow": "scale down before the operation, clamp after it, or run it in float32; bfloat16 has the range of "
    "float32",
    "not finite": "run the operation in float32: its kernel for this type is wrong (report it to its library), or what "
    "it computes inside overflows",
    "underflow": "scale up before the operation, or run it in float32; an epsilon must be a number of its type",
    "rounds": "let the operation sum and subtract in float32: x.float(), and back with .to(x.dtype)",
    "lost": "run the operation in float32, with what leads to it: positions, angles, sums of squares and exponents "
    "need more digits than this type has",
}


def run(subject: Subject, types: str = "bfloat16,autocast") -> CheckResult:
    """Run the model in each of these types, and judge each operation.

    Parameters
    ----------
    subject
        The model and its inputs.
    types
        Some of ``bfloat16``, ``float16`` and ``autocast`` (to bfloat16 on CPU, to the device's type elsewhere).
    """
    subject = dependent(subject)
    _require_float32(subject)
    found: list[CheckResult] = []
    unseen: list[str] = []
    for name in split_names([types]):
        try:
            runner = subject if name == _AUTOCAST else _cast(subject, _DTYPES[name])
            history = _recorded(subject, runner, name)
            _require_half(history)
            result = _Judged(subject, runner, history, name).result()
        except _MixedError as error:
            return results.failed(NAME, results.failure_of_raise(subject.history, error.error, _ADVICE["mixed"]))
        except NotApplicableError as reason:
            unseen.append(f"{name}: {reason}")
            continue
        if result.failure is not None:
            return result
        found.append(result)
    if not found:
        raise NotApplicableError("; ".join(unseen))
    notes = tuple(note for result in found for note in result.notes)
    passed = passed_all(NAME, found, notes)
    return results.passed(
        NAME, passed.compared, unit="operations", unseen=(*passed.unseen, *unseen), notes=notes, redrawn=subject.redrawn
    )


class _MixedError(Exception):
    """The model raised in low precision, as it mixes dtypes."""

    def __init__(self, error: ModelRaisedError) -> None:
        super().__init__(str(error))
        self.error = error


def _require_float32(subject: Subject) -> None:
    every = [*inputs_of(subject).values(), *(tensor for _, tensor in named_parameters(subject.model))]
    if not any(tensor.dtype is torch.float32 for tensor in every):
        raise NotApplicableError("no parameter and no input is in float32, so there is nothing to cast")
    if any(tensor.is_complex() for tensor in every):
        raise NotApplicableError("it has complex parameters or inputs, which half precision does not have")


def _require_half(history: ModelHistory) -> None:
    if not any(value.dtype in HALF for call in history.recording.calls for value in call.outputs):
        raise NotApplicableError("no operation runs in low precision")


# -- passes ----------------------------------------------------------------------------------------------------------


def _recorded(subject: Subject, runner: Subject, name: str) -> ModelHistory:
    """Return a recorded pass in low precision."""
    way = f"under {name}" if name == _AUTOCAST else f"in {name}"
    try:
        with _autocast(subject) if name == _AUTOCAST else contextlib.nullcontext():
            return runner.record(way=way)
    except ModelRaisedError as error:
        text = f"{type(error.error).__name__}: {error.error}"
        if _is_quantized(runner):
            raise NotApplicableError(f"{_at(subject, error)}quantized modules take float32 alone") from error
        if not isinstance(error.error, RuntimeError | ValueError) or not _MIXED.search(text):
            raise NotApplicableError(f"{_at(subject, error)}{first_sentence(text)}") from error
        raise _MixedError(error) from error


def _is_quantized(subject: Subject) -> bool:
    """Return whether a module computes with integers, as those of `torch.ao.quantization` do."""
    return any(".quantized." in f"{home_of(type(module))}." for _, module in named_modules(subject.model))


def _at(subject: Subject, error: ModelRaisedError) -> str:
    """Return the label of the operation that raised."""
    known = 0 <= error.calls < len(subject.history.recording.calls)
    return f"at {subject.history.label(error.calls)}, " if known else ""


def _autocast(subject: Subject) -> contextlib.AbstractContextManager[object]:
    kind = next((tensor.device.type for tensor in inputs_of(subject).values()), "cpu")
    return torch.autocast(kind, dtype=torch.bfloat16 if kind == "cpu" else None)


def _cast(subject: Subject, dtype: torch.dtype) -> Subject:
    """Return a subject of a copy of the model and its inputs in another dtype."""

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().to(dtype if tensor.is_floating_point() else tensor.dtype).clone()

    try:
        model = copy.deepcopy(subject.model).to(dtype)
    except Exception as error:
        raise NotApplicableError(f"the model cannot be copied and cast: {type(error).__name__}: {error}") from error
    return subject.of(model).with_inputs(*with_inputs(subject, cast))


# -- judgement -------------------------------------------------------------------------------------------------------


class _Output(NamedTuple):
    """An output of a pass in low precision, or real numbers that decide on one of whole numbers."""

    path: str
    decides: bool
    judgement: Judgement
    relative: float
    """Its error, as a part of the RMS."""
    value: torch.Tensor
    exact: torch.Tensor

    @classmethod
    def of(cls, path: str, values: Sequence[torch.Tensor], *, decides: bool = False) -> _Output:
        """Return it of the values in low precision, in float64, and in float64 with each result rounded."""
        low, exact, rounded = *values[:2], values[-1]
        return cls(path, decides, judge(low, rounded, exact, low.dtype), relative_error(low, exact), low, exact)


class _Judged:
    """Judges a recorded pass in low precision."""

    def __init__(self, subject: Subject, runner: Subject, history: ModelHistory, name: str) -> None:
        self._subject = subject
        self._runner = runner
        self._history = history
        self._name = name
        self._errors: dict[int, float] = {}
        """The error of each call's result, as a part of the RMS: its own and what it inherits."""
        self._inside: dict[int, torch.dtype] = {}
        """What calls compute in, where that is not the dtype of their results."""
        self._sensitive: set[int] = set()
        """Calls whose results are small rests of large terms: the float64 pass takes the ones in low precision."""
        self._unlike: list[str] = []
        """Paths of the outputs of whole numbers that are other ones than in the plain pass."""

    def result(self) -> CheckResult:
        """Return the failure at the first operation at fault; passed, if no output shows one."""
        count, wrong = 0, []
        for own in own_judgements(self._subject, self._history.recording):
            count += 1
            if not own.judgement.within:
                wrong.append(own)
            elif own.dtype is not own.output.dtype:
                self._inside[own.number] = own.dtype
            self._sensitive |= {own.number} if own.is_sensitive else set()
        if not count:
            raise NotApplicableError("no operation gives real numbers that float64 can give, too")
        outputs = self._outputs(with_rounding=bool(wrong))
        for output in outputs:
            if (culprit := self._culprit(output, wrong)) is not None:
                return self._failed(output, culprit, count)
        for output in outputs:
            lost = [] if output.decides else self._lost_values(output.path)
            if output.relative >= _LOST or (lost and self._share(output, lost) >= _MOST * output.relative):
                return self._lost(output, lost, count)
        return results.passed(NAME, count, unit="operations", notes=tuple(self._notes(outputs, wrong)))

    def _outputs(self, *, with_rounding: bool) -> list[_Output]:
        """Return what is judged: outputs, and the real numbers behind whole ones that differ from the plain pass's."""
        recording, deciding = self._history.recording, self._deciding()
        kinds: list[Callable[[Recording], Player]] = [Player, ExactPlayer]
        kinds += [partial(RoundingPlayer, inside=self._inside)] if with_rounding else []
        found: list[_Output] = []
        decisive: dict[str, list[_Output]] = defaultdict(list)
        with torch.no_grad(), contextlib.ExitStack() as stack:
            players = [stack.enter_context(kind(recording)) for kind in kinds]
            for number, outputs in in_step_with_first(recording, players):
                self._subject.check_time()
                if number in self._sensitive:
                    _take_first(outputs)
                pairs = zip(*outputs[:2], strict=True)
                self._errors[number] = max((_error_in_range(*pair) for pair in pairs), default=0)
                for path in (path for path, calls in deciding.items() if number in calls):
                    made = [alike for alike in zip(*outputs, strict=True) if _is_real(alike[0])]
                    decisive[path] += [_Output.of(path, [one.clone() for one in alike], decides=True) for alike in made]
            for path, read in recording.outputs:
                values = [player.at(value_of(read).slot).detach().clone() for player in players]
                if _is_real(values[0]):
                    found.append(_Output.of(path, values))
                elif path in deciding and differing_outputs({path: values[0]}, {path: self._subject.outputs[path]}):
                    self._unlike.append(path)
                    found += decisive[path]
        if not found and not deciding:
            raise NotApplicableError("no output holds real numbers, or whole ones that no random numbers decide")
        return found

    def _deciding(self) -> dict[str, set[int]]:
        """Return the calls with the last real numbers on the way to each output of whole numbers."""
        outputs = {} if self._subject.draws else self._subject.outputs
        whole = [
            (path, read) for path, read in self._history.recording.outputs if is_discrete(outputs.get(path, _REAL))
        ]
        return {path: _last_real(self._history.recording, read) for path, read in whole}

    def _culprit(self, output: _Output, wrong: Sequence[OwnJudgement]) -> OwnJudgement | None:
        """Return the first operation with an error of its own that shows in an output."""
        if output.judgement.within:
            return None
        leading = ancestors(self._history.recording, output.path)
        return next((own for own in wrong if own.number in leading), None)

    def _failed(self, output: _Output, own: OwnJudgement, count: int) -> CheckResult:
        kind, cause = _cause(own)
        errs = "has other values, and what decides on them errs" if output.decides else "errs"
        what = f"{output_name(output.path)} {errs} in {self._name} by more than rounding explains: "
        self._accuse(own.number, own.dtype)
        return self._failure(own.number, what + words_of(output.judgement), kind, cause, own.exact, own.output, count)

    def _lost_values(self, path: str) -> list[int]:
        """Return the operations on the way to an output that lose their value, though what they read errs little."""
        leading = sorted(ancestors(self._history.recording, path))
        return [at for at in leading if self._errors[at] >= _LOST and self._inherited(at) < _LOST / 10]

    def _share(self, output: _Output, numbers: Sequence[int]) -> float:
        """Return the error of an output, as a part of its RMS, in a float64 pass with the values of some operations."""
        recording = self._history.recording
        with torch.no_grad(), Player(recording) as player, ExactPlayer(recording) as exact:
            for number, (low, others) in in_step_with_first(recording, [player, exact]):
                self._subject.check_time()
                for one, other in zip(low, others, strict=True) if number in numbers else ():
                    overwrite(other, one.to(other.dtype))
            read = next(read for at, read in recording.outputs if at == output.path)
            return relative_error(exact.at(value_of(read).slot), output.exact)

    def _lost(self, output: _Output, lost: Sequence[int], count: int) -> CheckResult:
        what = (
            f"{output_name(output.path)} errs by {output.relative:.1%} of its RMS in {self._name}, as a value is lost"
        )
        leading = sorted(ancestors(self._history.recording, output.path))
        number = next((at for at in (*lost, *leading) if self._errors[at] >= _LOST / 2), None)
        if number is not None:
            kinds = (value.dtype for value in self._history.recording.calls[number].outputs)
            self._accuse(number, next((kind for kind in kinds if kind in HALF), torch.bfloat16), least=_LOST / 2)
        inherited = 0.0 if number is None else self._inherited(number)
        error = output.relative if number is None else self._errors[number]
        cause = f"its result errs by {error:.0%} of the RMS, its inputs by {inherited:.1%}: the type has too few digits"
        return self._failure(number, what, "lost", cause, output.exact, output.value, count)

    def _accuse(self, number: int, dtype: torch.dtype, least: float = 0.0) -> None:
        history, alive = self._history, self._runner
        found = LowPrecision(history=history, number=number, dtype=dtype, least=least, alive=alive)
        self._subject.tools.witness(found)

    def _inherited(self, number: int) -> float:
        reads = (value_of(read).call for _, read in edges_in(self._history.recording.calls[number]))
        return max((self._errors.get(call, 0.0) for call in reads), default=0.0)

    def _failure(  # noqa: PLR0913 - the parts of a failure
        self,
        number: int | None,
        what: str,
        kind: str,
        cause: str,
        exact: torch.Tensor,
        value: torch.Tensor,
        count: int,
    ) -> CheckResult:
        values = values_text(exact, value)
        failure = results.failure_at(self._history, number, what, _ADVICE[kind], cause=cause, values=values)
        redrawn = self._subject.redrawn
        return results.failed(NAME, failure, compared=count, unit="operations", redrawn=redrawn)

    def _notes(self, outputs: Sequence[_Output], wrong: Sequence[OwnJudgement]) -> Iterator[str]:
        if errors := [output.relative for output in outputs if not output.decides]:
            yield f"{self._name}: its output errs by {max(errors):.1g} of the RMS"
        for path in self._unlike:
            yield f"{self._name}: {output_name(path)} has other values, as rounding decides otherwise"
        yield from self._unshown(wrong)

    def _unshown(self, wrong: Sequence[OwnJudgement]) -> list[str]:
        """Return a note on the operations that err by themselves, which no output shows."""
        labels = dict.fromkeys(f"{self._history.label(own.number)} ({_cause(own)[0]})" for own in wrong)
        return [f"{self._name}: no output shows the error of {listed([*labels])}"] if labels else []


def _take_first(outputs: Sequence[tuple[torch.Tensor, ...]]) -> None:
    """Give the outputs of a call in the first pass to the others."""
    for first, *others in zip(*outputs, strict=True):
        for other in others:
            overwrite(other, first.to(other.dtype))


_REAL = torch.zeros(())


def _error_in_range(low: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the error of the numbers that float32 holds, too: a mask added to a mask is infinite in both types."""
    return relative_error(low, exact.to(torch.promote_types(low.dtype, torch.float32)))


def _is_real(tensor: torch.Tensor) -> bool:
    return not is_discrete(tensor) and not tensor.is_complex()


def _last_real(recording: Recording, output: Value | Aliased) -> set[int]:
    """Return the calls whose real numbers an output of whole numbers is made of, by none but whole ones."""
    waiting, seen, found = [*needed_values(output)], set[int](), set[int]()
    while waiting:
        value = waiting.pop()
        if value.dtype.is_floating_point:
            found.add(value.call)
        elif value.call >= 0 and value.call not in seen:
            seen.add(value.call)
            waiting += [one for _, read in edges_in(recording.calls[value.call]) for one in needed_values(read)]
    return found


def _cause(own: OwnJudgement) -> tuple[str, str]:
    """Return a word for why an operation errs, and the cause in words."""
    if own.is_not_finite:
        most, end = float(own.exact.abs().nan_to_num(posinf=0.0).max()), torch.finfo(own.output.dtype).max
        if own.overflows:
            return "overflow", f"overflow: it gives up to {most:.3g}, and its type ends at {end:.3g}"
        return "not finite", f"inf or NaN where float64 gives numbers up to {most:.3g}, which its type holds"
    if own.underflow:
        least = torch.finfo(own.output.dtype).tiny
        return (
            "underflow",
            f"underflow: {own.underflow:.0%} of its results are below {least:.1g}, where digits are lost",
        )
    return "rounds", f"the operation itself errs: {words_of(own.judgement)} on the inputs that it has"
