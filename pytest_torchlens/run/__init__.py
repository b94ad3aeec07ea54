"""Runs one model: in this process, in a worker process, or in another environment's interpreter."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from pytest_torchlens.run.environment import check_device
    from pytest_torchlens.run.environment import find_environment
    from pytest_torchlens.run.environment import machine_of
    from pytest_torchlens.run.job import NO_GRAPH
    from pytest_torchlens.run.job import UNFIT_GRAPH
    from pytest_torchlens.run.job import CaseResult
    from pytest_torchlens.run.job import replay_seconds
    from pytest_torchlens.run.job import run_case
    from pytest_torchlens.run.job import snapshot_of
    from pytest_torchlens.run.other_python import Against
    from pytest_torchlens.run.other_python import OtherPython
    from pytest_torchlens.run.other_python import OtherPythonError
    from pytest_torchlens.run.run_options import RunOptions
    from pytest_torchlens.run.worker import IsolatedResult
    from pytest_torchlens.run.worker import Isolation
    from pytest_torchlens.run.worker import JobLimits
    from pytest_torchlens.run.worker import Runner
    from pytest_torchlens.run.worker import memory_share

_HOME = {
    "Against": "other_python",
    "CaseResult": "job",
    "IsolatedResult": "worker",
    "Isolation": "worker",
    "JobLimits": "worker",
    "NO_GRAPH": "job",
    "OtherPython": "other_python",
    "OtherPythonError": "other_python",
    "RunOptions": "run_options",
    "Runner": "worker",
    "UNFIT_GRAPH": "job",
    "check_device": "environment",
    "find_environment": "environment",
    "machine_of": "environment",
    "memory_share": "worker",
    "replay_seconds": "job",
    "run_case": "job",
    "snapshot_of": "job",
}
"""Imported on first use: calls of tests need no zoo, and a run in this process no worker."""

__all__ = [
    "NO_GRAPH",
    "UNFIT_GRAPH",
    "Against",
    "CaseResult",
    "IsolatedResult",
    "Isolation",
    "JobLimits",
    "OtherPython",
    "OtherPythonError",
    "RunOptions",
    "Runner",
    "check_device",
    "find_environment",
    "machine_of",
    "memory_share",
    "replay_seconds",
    "run_case",
    "snapshot_of",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
