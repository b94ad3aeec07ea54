"""One model of a zoo: how it is built and what it is called with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any
from typing import NamedTuple

import torch
from torch import nn

from pytest_torchlens.zoo.fill import fill_model
from pytest_torchlens.zoo.fill import fill_tensor
from pytest_torchlens.zoo.providers import Provider
from pytest_torchlens.zoo.schema import InputSpec
from pytest_torchlens.zoo.schema import Settings
from pytest_torchlens.zoo.schema import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Callable


class Inputs(NamedTuple):
    """Arguments of a forward pass."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ModelCase:
    """One model of a zoo; nothing is built before it is asked for."""

    zoo: str
    name: str
    settings: Settings
    provider: Provider

    def build(self) -> nn.Module:
        """Return the model in eval mode, with the weights that the settings name.

        The caller's random generator is left as it was found.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            model = self.provider.build(
                self.name, self.settings.kwargs, pretrained=self.settings.weights == "pretrained"
            )
        if self.settings.weights == "random":
            fill_model(model, self.settings.seed)
        return model.eval()

    def make_inputs(self, model: nn.Module) -> Inputs:
        """Return the inputs, made anew and the same at each call."""
        spec = self.settings.input
        if spec is None:
            spec = self.provider.default_input(model, self.settings.kwargs)

        def fill(tensor: TensorSpec, name: str) -> torch.Tensor:
            dtype = getattr(torch, tensor.dtype)
            return fill_tensor(
                tensor.shape, dtype, tensor.low, tensor.high, seed=self.settings.seed, name=f"input {name}"
            )

        if isinstance(spec, TensorSpec):
            return Inputs((fill(spec, "0"),), {})
        if isinstance(spec, dict):
            return Inputs((), _values(spec, "", fill))
        return Inputs(tuple(_values(spec, "", fill)), {})


def _values(spec: InputSpec, name: str, fill: Callable[[TensorSpec, str], torch.Tensor]) -> Any:
    """Return `spec` with a tensor in place of each specification, named by its place: ``"0.1"``."""
    if isinstance(spec, TensorSpec):
        return fill(spec, name)
    prefix = f"{name}." if name else ""
    if isinstance(spec, dict):
        return {key: _values(item, f"{prefix}{key}", fill) for key, item in spec.items()}
    return [_values(item, f"{prefix}{index}", fill) for index, item in enumerate(spec)]
