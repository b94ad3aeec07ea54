"""Zoo files: where models and their inputs come from."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING
from typing import Any

from pytest_torchlens.records import nearest
from pytest_torchlens.zoo.errors import ZooError

if TYPE_CHECKING:
    from pytest_torchlens.zoo.case import Inputs
    from pytest_torchlens.zoo.case import ModelCase
    from pytest_torchlens.zoo.fill import fill_model
    from pytest_torchlens.zoo.fill import fill_tensor
    from pytest_torchlens.zoo.inputs import TensorSpec
    from pytest_torchlens.zoo.providers import Provider
    from pytest_torchlens.zoo.zoo_file import Zoo
    from pytest_torchlens.zoo.zoo_file import load_zoo
    from pytest_torchlens.zoo.zoo_settings import Settings

_HOME = {
    "Inputs": "case",
    "ModelCase": "case",
    "Provider": "providers",
    "Settings": "zoo_settings",
    "TensorSpec": "inputs",
    "Zoo": "zoo_file",
    "fill_model": "fill",
    "fill_tensor": "fill",
    "load_zoo": "zoo_file",
}
"""Imported on first use: a run without models of a zoo needs no torch."""

__all__ = [
    "Inputs",
    "ModelCase",
    "Provider",
    "Settings",
    "TensorSpec",
    "Zoo",
    "ZooError",
    "fill_model",
    "fill_tensor",
    "load_zoo",
    "nearest",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
