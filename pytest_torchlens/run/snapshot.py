"""What a baseline keeps of a pass, and how long its operations take."""

from __future__ import annotations

import time

from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.take_snapshot import take
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.measure.flops import NotPlayedError
from pytest_torchlens.measure.flops import flops_of
from pytest_torchlens.measure.flops import played
from pytest_torchlens.records import Environment
from pytest_torchlens.records import Status
from pytest_torchlens.records import Verdict

_REPLAYS = 5


def snapshot_of(history: ModelHistory, environment: Environment, verdict: Verdict | None = None) -> Snapshot:
    """Return the snapshot of a pass with its floating-point operations and what could be proved of it.

    Parameters
    ----------
    history
        Just made; the model and its inputs must hold the values that they had before the pass.
    environment
        Where this process runs.
    verdict
        Of the validation; None where there was none.

    Raises
    ------
    ReferenceError
        If the model is gone.
    Exception
        Whatever a call raises that cannot be run again.
    """
    parts = verdict.parts if verdict is not None else ()
    proof = {part.name: part.status.value for part in parts if part.status is not Status.NOT_RUN}
    return take(history, environment, flops=_flops(history), proof=proof)


def _flops(history: ModelHistory) -> int | None:
    try:
        return sum(flops_of(history.recording))
    except NotPlayedError:  # not even PyTorch's formulas fit every call
        return None


def replay_seconds(history: ModelHistory) -> float:
    """Return the time of the fastest of a few replays, for a pass that nobody may run again."""
    return min(_replayed(history) for _ in range(_REPLAYS))


def _replayed(history: ModelHistory) -> float:
    start = time.perf_counter()
    for _ in played(history.recording):
        pass
    return time.perf_counter() - start
