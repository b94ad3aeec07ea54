"""The replay of a recording, looked at call by call."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Collection
from collections.abc import Iterator

import torch

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.records import PartVerdict
from pytest_torchlens.replay import Player
from pytest_torchlens.validate.perturbation import Perturbation
from pytest_torchlens.validate.replay_check import ReplayCheck
from pytest_torchlens.validate.score import Where
from pytest_torchlens.validate.state import Generators
from pytest_torchlens.validate.trial import Trial
from pytest_torchlens.validate.trial import arguments_of
from pytest_torchlens.validate.trial import originals_of
from pytest_torchlens.validate.trial import outcome_of


@contextlib.contextmanager
def _generators_left_alone() -> Iterator[None]:
    before = Generators()
    try:
        yield
    finally:
        before.restore()


_ELSEWHERE = 0x5EED


class Replay:
    """Runs a recording again from its sources, compares and perturbs.

    Parameters
    ----------
    recording
        What to replay.  The model and the inputs must hold the values that they had before the recorded call.
    where
        Names its calls.
    parts
        ``"replay"``, ``"perturbation"`` or both.
    doubts
        Names of functions that gave other values before: they are repeated where they do so again, and their recorded
        values, which must be kept, stand in for those within tolerance.
    until
        Moment of `time.perf_counter`, in seconds, after which no further call is looked at.
    """

    out_of_time = False
    """Whether that moment came before the end."""

    def __init__(
        self,
        recording: Recording,
        where: Where,
        parts: Collection[str],
        doubts: frozenset[str] = frozenset(),
        *,
        until: float = math.inf,
    ) -> None:
        self._until = until
        self._recording = recording
        self._parts = parts
        self._doubts = doubts
        self._check = ReplayCheck(recording, where)
        self._perturbation = Perturbation(recording, where) if "perturbation" in parts else None

    @property
    def doubted(self) -> frozenset[str]:
        """Names of functions that gave other values than recorded."""
        return frozenset(self._check.doubted)

    @property
    def unsteady(self) -> str:
        """Name of the function whose values were the first to differ, if it does not repeat itself; else ``""``."""
        return self._check.unsteady or ""

    def verdicts(self, returned: list[str]) -> list[PartVerdict]:
        """Replay, and return the parts' verdicts; `returned` has the fingerprints of what the model returned."""
        self._check.sources()
        with _generators_left_alone(), Player(self._recording) as player:
            complete = all(self._step(player, number, call) for number, call in enumerate(self._recording.calls))
            if complete:
                self._check.outputs(player, returned)
                self._check.final_states(player)
        found = [self._check.verdict()] if "replay" in self._parts else []
        return found if self._perturbation is None else [*found, self._perturbation.verdict(complete)]

    def _step(self, player: Player, number: int, call: Call) -> bool:
        """Replay one call; False if nothing after it can be replayed."""
        if time.perf_counter() > self._until:
            self.out_of_time = True
            return False
        if not self._check.edges(number, call, player):
            return False
        doubtful = call.info.name in self._doubts
        try:
            if self._perturbation is not None:
                self._perturbation.before(player, call, corner=not doubtful)
            in_doubt = self._perturbation is not None and bool(self._perturbation.open)
            originals = originals_of(player, call) if doubtful or in_doubt else {}
            if call.info.draws and call.random is None:  # what draws without a recorded state is to draw other numbers
                torch.manual_seed(_ELSEWHERE)
            returned, outputs = player.play(number, call, player.arguments(call))
            self._check.writes(number, call, player, returned)
        except Exception as error:  # noqa: BLE001 - reported as that call's failure
            self._check.raised(number, error)
            return False
        self._check.base(number, call, player, outputs)
        if not self._look(player, number, outputs, originals if doubtful or in_doubt else None):
            return False
        player.store(number, call, returned)
        return True

    def _look(
        self,
        player: Player,
        number: int,
        outputs: tuple[torch.Tensor, ...],
        originals: dict[int, torch.Tensor] | None,
    ) -> bool:
        call = self._recording.calls[number]
        if originals is None or len(outputs) != len(call.outputs):
            return self._check.check(number, call, outputs)
        trial = Trial(player, call, arguments_of(player, call, originals), outcome_of(player, call, outputs))
        complete = self._check.check(number, call, outputs, trial if call.info.name in self._doubts else None)
        if self._perturbation is not None and self._perturbation.open:
            self._perturbation.after(number, trial)
        return complete
