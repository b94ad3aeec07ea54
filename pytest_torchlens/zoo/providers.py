"""Providers: the libraries that models come from, and their names."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING
from typing import Any
from typing import Protocol
from typing import cast

from pytest_torchlens.records import nearest
from pytest_torchlens.zoo.diffusers import DiffusersProvider
from pytest_torchlens.zoo.errors import ZooError
from pytest_torchlens.zoo.generation import GenerationProvider
from pytest_torchlens.zoo.inputs import InputSpec
from pytest_torchlens.zoo.inputs import TensorSpec
from pytest_torchlens.zoo.own import AUDIO
from pytest_torchlens.zoo.own import GRAPHS
from pytest_torchlens.zoo.own import SEGMENTATION
from pytest_torchlens.zoo.own import MembersProvider
from pytest_torchlens.zoo.own import python_provider
from pytest_torchlens.zoo.peft import PeftProvider
from pytest_torchlens.zoo.transformers import TransformersProvider

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping
    from pathlib import Path
    from types import ModuleType

    from torch import nn

EXTRAS = {**dict.fromkeys(("torchvision", "timm", "transformers"), "zoo"), "diffusers": "diffusers", "peft": "peft"}
"""The extra of this package that installs a library."""
IMAGE = TensorSpec((1, 3, 224, 224))


class Provider(Protocol):
    """A source of models.

    An optional method ``family(name)`` returns the kind of a model, for ``--lens-sample``.
    """

    def names(self) -> list[str]:
        """Return the names of all models."""

    def build(self, name: str, kwargs: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
        """Return the model called `name`, built with `kwargs`; download only if `pretrained`."""

    def default_input(self, model: nn.Module, kwargs: Mapping[str, Any]) -> InputSpec:
        """Return an input for `model`, used where the zoo file names none."""


def find_provider(text: str, folder: Path) -> Provider:
    """Return the provider that a zoo file in `folder` names: ``"timm"``, ``"python:models.py:zoo"``.

    Raises
    ------
    ZooError
        If the provider is unknown, or its library is not installed.
    """
    if text.startswith("python:"):
        return python_provider(text, folder)
    if text not in LIBRARIES:
        raise ZooError(f"unknown provider {text!r}: {nearest(text, [*LIBRARIES, 'python:FILE.py:FUNCTION'])}")
    return LIBRARIES[text]()


class TorchvisionProvider:
    """All models of ``torchvision.models.list_models()``."""

    def __init__(self) -> None:
        self._models = _library("torchvision.models")

    def names(self) -> list[str]:
        """Return the library's list."""
        return cast("list[str]", self._models.list_models())

    def family(self, name: str) -> str:
        """Return the library's module that builds the model."""
        return str(self._models.get_model_builder(name).__module__)

    def build(self, name: str, kwargs: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
        """Return the model; without `pretrained` its backbone downloads no weights either."""
        # The default of `weights_backbone` would be downloaded.
        backbone = {} if pretrained or not _takes_backbone(self._models, name) else {"weights_backbone": None}
        weights = "DEFAULT" if pretrained else None
        return cast("nn.Module", self._models.get_model(name, weights=weights, **backbone, **kwargs))

    def default_input(self, model: nn.Module, kwargs: Mapping[str, Any]) -> InputSpec:
        """Return one image."""
        return IMAGE


def _takes_backbone(models: ModuleType, name: str) -> bool:
    return "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters


class TimmProvider:
    """All models of ``timm.list_models()``; the input size comes from the model's configuration."""

    def __init__(self) -> None:
        self._timm = _library("timm")

    def names(self) -> list[str]:
        """Return the library's list."""
        return cast("list[str]", self._timm.list_models())

    def family(self, name: str) -> str:
        """Return the library's module that builds the model."""
        return str(self._timm.model_entrypoint(name).__module__)

    def build(self, name: str, kwargs: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
        """Return the model."""
        return cast("nn.Module", self._timm.create_model(name, pretrained=pretrained, **kwargs))

    def default_input(self, model: nn.Module, kwargs: Mapping[str, Any]) -> InputSpec:
        """Return one image of the size in the model's configuration, or of ``img_size``."""
        config: Any = getattr(model, "default_cfg", {})
        channels, height, width = config.get("input_size", IMAGE.shape[1:])
        if size := kwargs.get("img_size"):
            height, width = (size, size) if isinstance(size, int) else size
        return TensorSpec((1, kwargs.get("in_chans", channels), height, width))


def _library(module: str) -> ModuleType:
    """Import a library; if it is not installed, the error says how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name != package:
            raise
        raise ZooError(f"the package {package} is not installed: {_remedy(package)}") from None


def _remedy(package: str) -> str:
    if extra := EXTRAS.get(package):
        where = f"pip install 'pytest-torchlens[{extra}]', or from a clone '.[{extra}]'"
        return f"install the extra {extra!r} of pytest-torchlens: {where}"
    return f"pip install {package.replace('_', '-')}"


def _members(module: str, names: list[str]) -> Callable[[], Provider]:
    return lambda: MembersProvider(_library(module), names)


LIBRARIES: dict[str, Callable[[], Provider]] = {
    "torchvision": TorchvisionProvider,
    "timm": TimmProvider,
    "transformers": lambda: TransformersProvider(_library("transformers")),
    "diffusers": lambda: DiffusersProvider(_library("diffusers")),
    "peft": lambda: PeftProvider(_library("peft")),
    "transformers_generate": lambda: GenerationProvider(_library("transformers")),
    "torchaudio": _members("torchaudio.models", AUDIO),
    "torch_geometric": _members("torch_geometric.nn", GRAPHS),
    "segmentation_models_pytorch": _members("segmentation_models_pytorch", SEGMENTATION),
}
