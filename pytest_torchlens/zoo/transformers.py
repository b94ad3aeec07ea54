"""Tiny models of the library ``transformers``, built from configurations with small sizes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING
from typing import Any
from typing import cast

from pytest_torchlens.zoo.errors import ZooError
from pytest_torchlens.zoo.inputs import InputSpec
from pytest_torchlens.zoo.shrink import small_config
from pytest_torchlens.zoo.transformers_inputs import default_arguments

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from torch import nn


class TransformersProvider:
    """One tiny model of each architecture; nothing is downloaded."""

    def __init__(self, library: ModuleType) -> None:
        self._auto = importlib.import_module(f"{library.__name__}.models.auto")

    def names(self) -> list[str]:
        """Return all architectures, by the library's names."""
        return list(self._auto.modeling_auto.MODEL_MAPPING_NAMES)

    def build(self, name: str, kwargs: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
        """Return the bare model of an architecture; `kwargs` are fields of its configuration."""
        return self._tiny(name, kwargs, self._auto.MODEL_MAPPING, pretrained)

    def _tiny(self, name: str, kwargs: Mapping[str, Any], models: Any, pretrained: bool) -> nn.Module:
        """Return the model that `models`, a mapping of the library, has for an architecture."""
        if pretrained:
            raise ZooError("a tiny model has no pretrained weights: set 'weights: random' or 'weights: init'")
        kind = self._auto.CONFIG_MAPPING[name]
        found = models[kind]
        model = found[0] if isinstance(found, tuple) else found
        return cast("nn.Module", model._from_config(small_config(kind, kwargs)))

    def default_input(self, model: nn.Module, kwargs: Mapping[str, Any]) -> InputSpec:
        """Return tokens, an image, sound, or several of them, as the arguments of ``forward`` are named."""
        return default_arguments(model)
