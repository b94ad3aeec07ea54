"""Record, validate and audit PyTorch models from pytest.  Names are imported when first used: pytest pays nothing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from pytest_torchlens.capture import TraceError
    from pytest_torchlens.functions import get_model_activations
    from pytest_torchlens.functions import get_model_metadata
    from pytest_torchlens.functions import get_model_structure
    from pytest_torchlens.functions import log_forward_pass
    from pytest_torchlens.functions import validate_model_activations
    from pytest_torchlens.functions import validate_saved_activations
    from pytest_torchlens.history import LookupKeyError
    from pytest_torchlens.history import ModelHistory

__version__ = "0.1.0"

_HOME = {
    "LookupKeyError": "history",
    "ModelHistory": "history",
    "TraceError": "capture",
    "get_model_activations": "functions",
    "get_model_metadata": "functions",
    "get_model_structure": "functions",
    "log_forward_pass": "functions",
    "validate_model_activations": "functions",
    "validate_saved_activations": "functions",
}

__all__ = [
    "LookupKeyError",
    "ModelHistory",
    "TraceError",
    "get_model_activations",
    "get_model_metadata",
    "get_model_structure",
    "log_forward_pass",
    "validate_model_activations",
    "validate_saved_activations",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
