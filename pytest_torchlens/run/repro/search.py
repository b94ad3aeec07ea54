"""Finds the shortest run of calls that computes other values in two environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pytest_torchlens.run.repro.accused import Accused
from pytest_torchlens.run.repro.accused import NothingToReproduceError
from pytest_torchlens.run.repro.program import Program
from pytest_torchlens.run.repro.program import Stored
from pytest_torchlens.run.repro.program import printable_before
from pytest_torchlens.run.repro.program import program_of
from pytest_torchlens.run.repro.program import why_unprintable
from pytest_torchlens.run.repro.trials import Bench
from pytest_torchlens.run.repro.trials import Outcome

_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128)
_MOST_REMOVALS = 32


@dataclass(frozen=True)
class Found:
    """A program on which both environments differ, and how."""

    program: Program
    outcome: Outcome


class Search:
    """Runs an operation alone, then with more and more of those before it.

    Parameters
    ----------
    accused
        The operation.
    bench
        The environments.
    stored
        Where tensors of the trusted pass come from.
    expected
        What the operation should give, where no environment computes it.
    """

    def __init__(
        self, accused: Accused, bench: Bench, stored: Stored, expected: Sequence[torch.Tensor] | None = None
    ) -> None:
        self._accused = accused
        self._recording = accused.history.recording
        self._bench = bench
        self._stored = stored
        self._expected = expected

    def shortest(self) -> Found:
        """Return the shortest run.

        Raises
        ------
        NothingToReproduceError
            If the operation cannot be written as code, or no run differs.
        """
        numbers = self._printable()
        lengths = [*(length for length in _LENGTHS if length < len(numbers)), len(numbers)]
        error = ""
        for length in lengths:
            found = self._try(numbers[-length:])
            if found.outcome.gap is not None:
                return self._without_needless(numbers[-length:], found)
            error = error or found.outcome.error
        if error:
            raise NothingToReproduceError(f"{self._accused.operation} does not run alone: {error}")
        with_others = f", alone and after the {len(numbers) - 1} before it" if len(numbers) > 1 else ""
        raise NothingToReproduceError(
            f"{self._accused.operation} computes what is expected when it runs by itself{with_others}: nothing to "
            "reproduce by torch alone"
        )

    def _printable(self) -> list[int]:
        """Return the numbers of the calls that lead to the operation and can be printed, in order."""
        recording, number = self._recording, self._accused.number
        labels = [node.label for node in self._accused.history.nodes if node.number == number and node.call is not None]
        before = self._accused.history.subgraph(end=labels[0]).calls
        reasons = {one: why_unprintable(recording, one) for one in before}
        if reason := reasons[number]:
            raise NothingToReproduceError(
                f"{self._accused.operation} cannot be written as code of torch alone: {reason}; name another "
                "operation, or report it to the library that has it"
            )
        return printable_before(recording, [*before], reasons)

    def alone(self) -> Program:
        """Return the program of the operation alone; raises `NothingToReproduceError` if it has none."""
        return self._program([self._printable()[-1]])

    def _try(self, numbers: list[int]) -> Found:
        program = self._program(numbers)
        return Found(program, self._bench.run(program, self._expected))

    def _program(self, numbers: list[int]) -> Program:
        try:
            return program_of(self._recording, numbers, self._stored)
        except ValueError as error:
            why = f"{self._accused.operation} cannot be written as code of torch alone: {error}"
            raise NothingToReproduceError(why) from None

    def _without_needless(self, numbers: list[int], found: Found) -> Found:
        """Return the run without calls that it does not need: what these make becomes an input."""
        for number in numbers[:-1][:_MOST_REMOVALS]:
            fewer = [one for one in numbers if one != number]
            other = self._try(fewer)
            if found.outcome.gap is not None and found.outcome.gap.shows_in(other.outcome.gap):
                numbers, found = fewer, other
        return found
