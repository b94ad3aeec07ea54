"""Record, validate and audit PyTorch models from pytest.  Names are imported when first used: pytest pays nothing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from pytest_torchlens.capture import SaveOptions
    from pytest_torchlens.capture import SavingError
    from pytest_torchlens.capture import TraceError
    from pytest_torchlens.draw import THEMES
    from pytest_torchlens.draw import Drawing
    from pytest_torchlens.draw import DrawingUnavailable
    from pytest_torchlens.draw import DrawOptions
    from pytest_torchlens.draw import OptionError
    from pytest_torchlens.draw import Theme
    from pytest_torchlens.edit import Part
    from pytest_torchlens.edit import assert_effect
    from pytest_torchlens.extraction import ActivationArray
    from pytest_torchlens.extraction import Activations
    from pytest_torchlens.extraction import ExtractError
    from pytest_torchlens.extraction import extract
    from pytest_torchlens.extraction import load_activations
    from pytest_torchlens.functions import get_model_activations
    from pytest_torchlens.functions import get_model_metadata
    from pytest_torchlens.functions import get_model_structure
    from pytest_torchlens.functions import log_forward_pass
    from pytest_torchlens.functions import show_model_graph
    from pytest_torchlens.functions import validate_model_activations
    from pytest_torchlens.functions import validate_saved_activations
    from pytest_torchlens.history import HistoryFileError
    from pytest_torchlens.history import LookupKeyError
    from pytest_torchlens.history import ModelHistory
    from pytest_torchlens.history import NoPathError
    from pytest_torchlens.history import Query
    from pytest_torchlens.history import load
    from pytest_torchlens.measure import measure_forward_pass
    from pytest_torchlens.replay import DecisionChangedError
    from pytest_torchlens.replay import NotExportableError
    from pytest_torchlens.replay import NotReplayableError

__version__ = "0.1.0"

_HOME = {
    "ActivationArray": "extraction",
    "Activations": "extraction",
    "DecisionChangedError": "replay",
    "Drawing": "draw",
    "DrawOptions": "draw",
    "DrawingUnavailable": "draw",
    "ExtractError": "extraction",
    "HistoryFileError": "history",
    "LookupKeyError": "history",
    "ModelHistory": "history",
    "NoPathError": "history",
    "NotExportableError": "replay",
    "NotReplayableError": "replay",
    "OptionError": "draw",
    "Part": "edit",
    "Query": "history",
    "SaveOptions": "capture",
    "SavingError": "capture",
    "THEMES": "draw",
    "Theme": "draw",
    "TraceError": "capture",
    "assert_effect": "edit",
    "extract": "extraction",
    "get_model_activations": "functions",
    "get_model_metadata": "functions",
    "get_model_structure": "functions",
    "load": "history",
    "load_activations": "extraction",
    "log_forward_pass": "functions",
    "measure_forward_pass": "measure",
    "show_model_graph": "functions",
    "validate_model_activations": "functions",
    "validate_saved_activations": "functions",
}

__all__ = [
    "ActivationArray",
    "Activations",
    "DecisionChangedError",
    "DrawOptions",
    "Drawing",
    "DrawingUnavailable",
    "ExtractError",
    "HistoryFileError",
    "LookupKeyError",
    "ModelHistory",
    "NoPathError",
    "NotExportableError",
    "NotReplayableError",
    "OptionError",
    "Part",
    "Query",
    "SaveOptions",
    "SavingError",
    "THEMES",
    "Theme",
    "TraceError",
    "assert_effect",
    "extract",
    "get_model_activations",
    "get_model_metadata",
    "get_model_structure",
    "load",
    "load_activations",
    "log_forward_pass",
    "measure_forward_pass",
    "show_model_graph",
    "validate_model_activations",
    "validate_saved_activations",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        importlib.import_module("torch")  # before ours: autotrace imports some of them as soon as it has been imported
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
