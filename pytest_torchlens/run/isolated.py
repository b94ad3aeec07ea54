"""Models run in a process beside this one: what a model does there costs that model only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Protocol

from pytest_torchlens.records import ErrorRecord
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import Outcome
from pytest_torchlens.records import from_json
from pytest_torchlens.run.child import pack
from pytest_torchlens.run.worker import Limits
from pytest_torchlens.run.worker import NoAnswerError
from pytest_torchlens.run.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_torchlens.records import Stage
    from pytest_torchlens.run.run import RunOptions
    from pytest_torchlens.zoo import ModelCase

AT_REST = 2 * 2**30
"""Bytes that a worker may hold between two models; one that holds more gives way to a new one."""


@dataclass(frozen=True)
class IsolatedResult:
    """What came of one model in a worker process."""

    report: ModelReport
    output: str = ""
    """What the model printed."""
    skipped: str | None = None
    """The reason, where the model called `pytest.skip`."""


class Runner(Protocol):
    """Runs models somewhere: `Isolation`, and what the hook ``pytest_lens_make_runner`` gives."""

    def run(self, case: ModelCase, progress: Callable[[Stage], None]) -> IsolatedResult:
        """Run one model through all stages, up to the first that fails; call `progress` as each begins."""

    def close(self) -> None:
        """Be done: called once, at the end of the run."""


class Isolation:
    """Runs models in a worker process, the same one from model to model as long as it is well.

    Parameters
    ----------
    options
        What is done with each model.
    limits
        What a model may use whose zoo file says nothing else.
    command
        What starts the worker; None for this interpreter.
    """

    def __init__(self, options: RunOptions, limits: Limits, command: list[str] | None = None) -> None:
        self._command = command
        self._options = options
        self._limits = limits
        self._worker: Worker | None = None

    def run(self, case: ModelCase, progress: Callable[[Stage], None]) -> IsolatedResult:
        """Run one model through all stages, up to the first that fails.

        One that dies in a worker that ran others before, or was not even begun there, is run again in a new one: they
        may be why.
        """
        worn = self._worker is not None
        try:
            return self._attempt(case, progress)
        except NoAnswerError as error:
            if not worn or (error.kind == "TimeLimit" and error.begun):
                return _obituary(case, error)
        try:
            return self._attempt(case, progress)
        except NoAnswerError as error:
            return _obituary(case, error)

    def close(self) -> None:
        """End the worker."""
        if self._worker:
            self._worker.close()
            self._worker = None

    def _attempt(self, case: ModelCase, progress: Callable[[Stage], None]) -> IsolatedResult:
        self._worker = worker = self._worker or Worker(self._command)
        try:
            answer = worker.run(pack(case, self._options), self._limits_of(case), progress)
            output = worker.output()
        except BaseException:  # Ctrl-C too: the worker is in the midst of something
            self.close()
            raise
        if worker.memory() > AT_REST:
            self.close()
        if "raised" in answer:
            return _interrupted(case, from_json(answer["raised"], ErrorRecord), output)
        return IsolatedResult(from_json(answer["report"], ModelReport), output)

    def _limits_of(self, case: ModelCase) -> Limits:
        settings = case.settings
        return Limits(settings.timeout or self._limits.seconds, settings.memory or self._limits.memory)


def _interrupted(case: ModelCase, error: ErrorRecord, output: str) -> IsolatedResult:
    if error.type == "Skipped":
        return IsolatedResult(_failed(case, error.stage), output, skipped=error.message)
    return IsolatedResult(_failed(case, error.stage, error), output)


def _obituary(case: ModelCase, error: NoAnswerError) -> IsolatedResult:
    record = ErrorRecord(stage=error.stage, type=error.kind, message=str(error))
    return IsolatedResult(_failed(case, error.stage, record), error.output)


def _failed(case: ModelCase, stage: Stage, error: ErrorRecord | None = None) -> ModelReport:
    return ModelReport(
        zoo=case.zoo,
        name=case.name,
        weights=case.settings.weights,
        outcome=Outcome.FAILED,
        stage=stage,
        error=error,
    )
