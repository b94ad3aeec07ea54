"""One model of a zoo: how it is built and what it is called with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any
from typing import NamedTuple

import torch
from torch import nn

from pytest_torchlens.zoo.errors import ZooError
from pytest_torchlens.zoo.fill import fill_model
from pytest_torchlens.zoo.fill import fill_tensor
from pytest_torchlens.zoo.inputs import FromFunction
from pytest_torchlens.zoo.inputs import InputSpec
from pytest_torchlens.zoo.inputs import TensorSpec
from pytest_torchlens.zoo.inputs import refused_argument
from pytest_torchlens.zoo.providers import Provider
from pytest_torchlens.zoo.zoo_settings import Settings


class Inputs(NamedTuple):
    """Arguments of a forward pass."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def inputs_of(made: Any) -> Inputs:
    """Return what a dictionary holds as keyword arguments, a list or tuple as positional ones, all else as the one."""
    if isinstance(made, dict):
        return Inputs((), made)
    return Inputs(tuple(made) if isinstance(made, list | tuple) else (made,), {})


@dataclass(frozen=True, kw_only=True)
class ModelCase:
    """One model of a zoo; nothing is built before it is asked for."""

    zoo: str
    name: str
    file: Path | None = None
    """The zoo file that a worker process reads again; None for a case made by hand, which has no worker."""
    settings: Settings
    provider: Provider
    places: Mapping[str, str] = field(default_factory=dict)
    """File and line of the zoo file that give each of the constructor's arguments, as far as it does."""

    @property
    def family(self) -> str:
        """The name of its kind: what the provider says, else the letters that its name begins with."""
        if tell := getattr(self.provider, "family", None):
            with self._naming_file():
                return str(tell(self.name))
        return re.match(r"[^\W\d_]*", self.name)[0]  # type: ignore[index] # matches at least nothing

    def build(self) -> nn.Module:
        """Return the model in the mode, with the weights, dtype and device that the settings name.

        The caller's random generator is left as it was found.
        """
        settings = self.settings
        with self.fixed_seed():
            model = self._constructed()
        if settings.weights == "random":
            fill_model(model, settings.seed)
        if settings.dtype:
            model = model.to(getattr(torch, settings.dtype))
        return model.to(settings.device).train(settings.mode == "train")

    def make_inputs(self, model: nn.Module) -> Inputs:
        """Return the inputs, made anew and the same at each call."""
        spec = self.settings.input
        if spec is None:
            spec = self._default_input(model)
        if isinstance(spec, TensorSpec):
            spec = [spec]
        with self.fixed_seed():
            return inputs_of(self._made(spec, "", model))

    def _default_input(self, model: nn.Module) -> InputSpec:
        with self._naming_file():
            return self.provider.default_input(model, self.settings.kwargs)

    def _constructed(self) -> nn.Module:
        kwargs = self.settings.kwargs
        try:
            with self._naming_file():
                return self.provider.build(self.name, kwargs, pretrained=self.settings.weights == "pretrained")
        except TypeError as error:
            if refused := refused_argument(error, self.name, kwargs, self.places):
                raise refused from error
            raise

    @contextmanager
    def _naming_file(self) -> Iterator[None]:
        """Put the zoo file before what a provider says."""
        try:
            yield
        except ZooError as error:
            raise (ZooError(f"{self.file}: {error}") if self.file else error) from error.__cause__

    @contextmanager
    def fixed_seed(self) -> Iterator[None]:
        """Seed torch's generators as the settings say; the caller's are left as they were found."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            yield

    def _made(self, spec: InputSpec, name: str, model: nn.Module) -> Any:
        """Return `spec` with a value in place of each specification, named by its place: ``"0.1"``."""
        if isinstance(spec, TensorSpec):
            return self._filled(spec, name)
        if isinstance(spec, FromFunction):
            return spec.make(model)
        prefix = f"{name}." if name else ""
        if isinstance(spec, dict):
            return {key: self._made(item, f"{prefix}{key}", model) for key, item in spec.items()}
        return [self._made(item, f"{prefix}{index}", model) for index, item in enumerate(spec)]

    def _filled(self, spec: TensorSpec, name: str) -> torch.Tensor:
        """Return the tensor; one of default dtype has that of the model, if the settings name one."""
        seed, dtype = self.settings.seed, getattr(torch, spec.dtype)
        tensor = fill_tensor(spec.shape, dtype, spec.low, spec.high, seed=seed, name=f"input {name}")
        if self.settings.dtype and dtype is torch.float32:
            tensor = tensor.to(getattr(torch, self.settings.dtype))
        return tensor.to(self.settings.device)
