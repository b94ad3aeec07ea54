"""Records tensors over training steps: statistics, videos and expectations.

The recorder process draws and writes files.  Names are imported on first use, because the recorder process runs
without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from pytest_torchlens.recorder.recorder import Recorder
    from pytest_torchlens.recorder.recorder_options import ExpectationError
    from pytest_torchlens.recorder.recorder_options import RecorderError
    from pytest_torchlens.recorder.series import Series

_HOME = {
    "ExpectationError": "recorder_options",
    "Recorder": "recorder",
    "RecorderError": "recorder_options",
    "Series": "series",
}

__all__ = ["ExpectationError", "Recorder", "RecorderError", "Series"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
