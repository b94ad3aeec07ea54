"""Runs one model: in this process, in a worker process, or in another environment's interpreter."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING
from typing import Any

from pytest_torchlens.run.environment import check_device
from pytest_torchlens.run.environment import find_environment
from pytest_torchlens.run.environment import machine_of
from pytest_torchlens.run.job import NO_GRAPH
from pytest_torchlens.run.job import UNFIT_GRAPH
from pytest_torchlens.run.job import CaseResult
from pytest_torchlens.run.job import RunOptions
from pytest_torchlens.run.job import replay_seconds
from pytest_torchlens.run.job import run_case
from pytest_torchlens.run.job import snapshot_of

if TYPE_CHECKING:
    from pytest_torchlens.run.other_python import Against
    from pytest_torchlens.run.other_python import OtherPython
    from pytest_torchlens.run.other_python import OtherPythonError
    from pytest_torchlens.run.worker import IsolatedResult
    from pytest_torchlens.run.worker import Isolation
    from pytest_torchlens.run.worker import JobLimits
    from pytest_torchlens.run.worker import Runner
    from pytest_torchlens.run.worker import memory_share

_HOME = {
    "Against": "other_python",
    "IsolatedResult": "worker",
    "Isolation": "worker",
    "JobLimits": "worker",
    "OtherPython": "other_python",
    "OtherPythonError": "other_python",
    "Runner": "worker",
    "memory_share": "worker",
}
"""Imported on first use: a run in this process needs no worker, and no psutil."""

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
