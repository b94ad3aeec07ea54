"""Zoo files: where models and their inputs come from."""

from __future__ import annotations

from pytest_torchlens.records import nearest
from pytest_torchlens.zoo.case import Inputs
from pytest_torchlens.zoo.case import ModelCase
from pytest_torchlens.zoo.errors import ZooError
from pytest_torchlens.zoo.fill import fill_model
from pytest_torchlens.zoo.fill import fill_tensor
from pytest_torchlens.zoo.inputs import TensorSpec
from pytest_torchlens.zoo.providers import Provider
from pytest_torchlens.zoo.zoo_file import Zoo
from pytest_torchlens.zoo.zoo_file import load_zoo
from pytest_torchlens.zoo.zoo_settings import Settings

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
