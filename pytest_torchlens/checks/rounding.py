"""Replays a pass in low precision beside float64: the error of each operation by itself, and what rounding explains."""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Mapping
from functools import partial
from typing import Any
from typing import NamedTuple

import torch

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.memory import overwrite
from pytest_torchlens.checks.exact import CASTS
from pytest_torchlens.checks.exact import CASTS_TO
from pytest_torchlens.checks.exact import ExactPlayer
from pytest_torchlens.checks.exact import can_be_judged
from pytest_torchlens.checks.exact import in_float64
from pytest_torchlens.checks.exact import is_discrete
from pytest_torchlens.checks.output_gradients import moved_tensor
from pytest_torchlens.checks.replays import in_step
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.tolerance import HALF
from pytest_torchlens.checks.tolerance import K_VERY_FEW
from pytest_torchlens.checks.tolerance import MOVES
from pytest_torchlens.checks.tolerance import VERY_FEW
from pytest_torchlens.checks.tolerance import Judgement
from pytest_torchlens.checks.tolerance import judge
from pytest_torchlens.checks.tolerance import rms
from pytest_torchlens.replay import Player
from pytest_torchlens.replay.player import Arguments

_DIGITS = {torch.bfloat16: 8, torch.float16: 11, torch.float32: 24}
"""Binary digits of a number, with the leading one."""
_CASTS = CASTS | CASTS_TO


def rounded(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return float64 numbers rounded to the digits of a dtype, whatever its range: nothing overflows or underflows."""
    if dtype not in _DIGITS or not tensor.is_floating_point() or tensor.layout is not torch.strided:
        return tensor
    mantissa, exponent = torch.frexp(tensor)
    scale = 2.0 ** _DIGITS[dtype]
    return torch.where(tensor.isfinite(), torch.ldexp((mantissa * scale).round() / scale, exponent), tensor)


class OwnJudgement(NamedTuple):
    """What one operation of a pass makes of the inputs that it has, beside what float64 makes of them."""

    number: int
    judgement: Judgement
    output: torch.Tensor
    exact: torch.Tensor
    dtype: torch.dtype
    """What it computes in: the dtype of the output, or that of autocast where the digits of that alone explain it."""
    is_sensitive: bool = False
    """Whether its inputs, moved by one unit in the last place, change its result by as much as it errs."""

    @property
    def is_not_finite(self) -> bool:
        """Whether a result is not finite, and in float64 a number."""
        return bool(self._lost.any())

    @property
    def overflows(self) -> bool:
        """Whether such a number is beyond the range of the output's dtype."""
        return bool((self.exact[self._lost].abs() > torch.finfo(self.output.dtype).max).any())

    @property
    def _lost(self) -> torch.Tensor:
        return ~self.output.isfinite() & self.exact.isfinite()

    @property
    def underflow(self) -> float:
        """The part of the elements that are too small for all digits, where these make half of the error at least."""
        lost = (self.exact.abs() < torch.finfo(self.output.dtype).tiny) & (self.exact != 0)
        error = (self.output.double() - self.exact).nan_to_num().square()
        return float(lost.double().mean()) if 2 * float(error[lost].sum()) >= float(error.sum()) > 0 else 0.0


def own_judgements(subject: Subject, recording: Recording) -> Iterator[OwnJudgement]:
    """Yield the judgement of each output of each operation; those without float64 and random ones are left out."""
    # the one that sets what a call was recorded under first has to put it back last
    with torch.no_grad(), ExactPlayer(recording) as exact, Player(recording) as player:
        for number, call in enumerate(recording.calls):
            subject.check_time()
            arguments = player.arguments(call)
            truths = _exactly(exact, call, arguments)
            returned, outputs = player.play(number, call, arguments)
            for at, (output, truth) in enumerate(zip(outputs, truths, strict=False)):
                if can_be_judged(output) and can_be_judged(truth) and output.shape == truth.shape:
                    own = _own_judgement(number, output, truth, _autocast_dtype(recording, call, output))
                    yield own if own.judgement.within else _beside_moved(exact, call, arguments, own, at)
            player.store(number, call, returned)


def _own_judgement(number: int, output: torch.Tensor, truth: torch.Tensor, low: torch.dtype | None) -> OwnJudgement:
    """Return the judgement of a result; under autocast `low` may be what a float32 one was computed in.

    Recurrent layers multiply in half precision there, and return float32.
    """
    judgement, dtype = _judged(output, truth, output.dtype), output.dtype
    if not judgement.within and low is not None and dtype is torch.float32:
        inside = _judged(output, truth, low)
        judgement, dtype = (inside, low) if inside.within else (judgement, dtype)
    return OwnJudgement(number, judgement, output, truth, dtype)


def _beside_moved(exact: ExactPlayer, call: Call, arguments: Arguments, own: OwnJudgement, at: int) -> OwnJudgement:
    """Return a judgement that such moves of the inputs explain; the former one, if they do not.

    A result of few elements may be the small rest of large terms, as the logarithm of a determinant near one is.
    """
    if own.output.numel() >= VERY_FEW or own.is_not_finite:
        return own
    changes = []
    for seed in range(MOVES):
        moved = partial(_moved, seed=seed)
        truths = _exactly(exact, call, (substitute(arguments[0], moved), substitute(arguments[1], moved)))
        changes += [rms(truth - own.exact) for truth in truths[at : at + 1] if truth.shape == own.exact.shape]
    limit = K_VERY_FEW * math.sqrt(sum(change**2 for change in changes) / MOVES)
    if own.judgement.error > limit:
        return own
    return own._replace(judgement=own.judgement._replace(limit=limit, within=True), is_sensitive=True)


def _moved(leaf: Any, seed: int) -> Any:
    return moved_tensor(leaf, seed=seed) if isinstance(leaf, torch.Tensor) else leaf


def _autocast_dtype(recording: Recording, call: Call, output: torch.Tensor) -> torch.dtype | None:
    """Return what autocast casts to where a call was recorded; None if it was off."""
    _, _, autocast, *_ = recording.ambient.rows[call.ambient]
    return next((dtype for kind, dtype, _ in autocast or () if kind == output.device.type), None)


def _judged(output: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype) -> Judgement:
    """Return the judgement of a result beside the exact one: beside its rounded form, if it is not that already."""
    info, largest = torch.finfo(output.dtype), float(truth.abs().max()) if truth.numel() else 0.0
    in_range = info.tiny / info.eps <= largest <= info.max  # what underflows there is nothing beside the largest
    if in_range and torch.equal(output, truth.to(output.dtype)):
        return Judgement(0.0, 0.0, 0.0, within=True)
    return judge(output, rounded(truth, dtype), truth, dtype)


def _exactly(exact: ExactPlayer, call: Call, arguments: Arguments) -> tuple[torch.Tensor, ...]:
    """Return what float64 makes of copies of these arguments; nothing where that is not known."""
    if call.random is not None or call.info.opaque or call.uninitialised or not call.returned:
        return ()
    given = _as_autocast_reads(call, arguments)
    try:
        return exact.run(call, (substitute(given[0], _copied), substitute(given[1], _copied)))
    except Exception:  # noqa: BLE001 - functions without float64
        return ()


def _copied(leaf: object) -> object:
    return in_float64(leaf).clone() if isinstance(leaf, torch.Tensor) else leaf


def _as_autocast_reads(call: Call, arguments: Arguments) -> Arguments:
    """Return float32 arguments rounded to half precision where the call, under autocast, makes that of them."""
    low = next((value.dtype for value in call.outputs if value.dtype in HALF), None)
    if low is None or call.info.name in _CASTS or call.writes:
        return arguments

    def read(leaf: Any) -> Any:
        is_cast = isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.float32, torch.float64)
        return rounded(leaf.double(), low).to(leaf.dtype) if is_cast else leaf

    return substitute(arguments[0], read), substitute(arguments[1], read)


class RoundingPlayer(ExactPlayer):
    """Replays a recording in float64 with the result of each call rounded once: what the dtypes alone explain.

    Parameters
    ----------
    recording
        The recording.
    inside
        What calls compute in, by their numbers, where that is not the dtype of their results.
    """

    def __init__(self, recording: Recording, inside: Mapping[int, torch.dtype]) -> None:
        super().__init__(recording)
        self._inside = inside

    def play(
        self, number: int, call: Call, arguments: Arguments
    ) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """Run call `number`; return the tensors it returned, to be stored, and the tensors for its recorded outputs."""
        returned, outputs = super().play(number, call, _as_autocast_reads(call, arguments))
        for output, value in zip(outputs, call.outputs, strict=True):
            made = rounded(output, self._inside.get(number, value.dtype))
            if made is not output and not torch.equal(made, output):
                overwrite(output, made)
        return returned, outputs


def in_step_with_first(
    recording: Recording, players: list[Player]
) -> Iterator[tuple[int, list[tuple[torch.Tensor, ...]]]]:
    """Run all calls with each player, and yield the outputs of each; decisions are those of the first."""
    for number, played in in_step(recording, players):
        first, *others = played
        for output, *rest in zip(first, *others, strict=True):
            for other in rest:
                if is_discrete(output) and output.shape == other.shape:
                    overwrite(other, output)
        yield number, played
