"""One model of a zoo: how it is built and what it is called with."""

from __future__ import annotations

import copy
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

from pytest_torchlens.capture.looks import own_method
from pytest_torchlens.zoo.errors import ZooError
from pytest_torchlens.zoo.fill import fill_model
from pytest_torchlens.zoo.fill import fill_tensor
from pytest_torchlens.zoo.imports import file_of
from pytest_torchlens.zoo.inputs import FromFunction
from pytest_torchlens.zoo.inputs import InputSpec
from pytest_torchlens.zoo.inputs import PythonValue
from pytest_torchlens.zoo.inputs import TensorSpec
from pytest_torchlens.zoo.inputs import argument_error
from pytest_torchlens.zoo.providers import Provider
from pytest_torchlens.zoo.zoo_settings import Settings


class Inputs(NamedTuple):
    """Arguments of a forward pass."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def inputs_of(value: Any) -> Inputs:
    """Return a dictionary as keyword arguments, a list or tuple as positional ones, anything else as the only one."""
    if isinstance(value, dict):
        return Inputs((), value)
    return Inputs(tuple(value) if isinstance(value, list | tuple) else (value,), {})


@dataclass(frozen=True, kw_only=True)
class ModelCase:
    """One model of a zoo; `build` builds it."""

    zoo: str
    name: str
    file: Path | None = None
    """The zoo file, which a worker process reads again; None for a case made by hand, which runs in no worker."""
    settings: Settings
    provider: Provider
    kwarg_places: Mapping[str, str] = field(default_factory=dict)
    """File and line that set each constructor argument, where the zoo file sets it."""

    @property
    def family(self) -> str:
        """The name of its kind: the provider's, else the letters that its name begins with."""
        if family_of := getattr(self.provider, "family", None):
            with self._name_file_in_errors():
                return str(family_of(self.name))
        return re.match(r"[^\W\d_]*", self.name)[0]  # type: ignore[index] # matches at least nothing

    @property
    def entry_file(self) -> Path | None:
        """The user's file with the function that the zoo file names, which has all models; None for a library."""
        file: Path | None = getattr(self.provider, "file", None)
        return file

    def function_files(self) -> set[Path]:
        """Return the user's files with the functions that build this model and make its inputs."""
        builder_file = getattr(self.provider, "builder_file", None)
        made = {file_of(spec.function) for spec in _functions_in(self.settings.input)}
        return {file for file in (*made, builder_file and builder_file(self.name)) if file is not None}

    def build(self, names: Mapping[str, str] | None = None) -> nn.Module:
        """Return the model in the mode, with the weights, dtype and device that the settings name.

        `names` are those of `fill_model`.  The caller's random generator is not advanced.
        """
        settings = self.settings
        with self.fixed_seed():
            model = self._construct()
        if settings.weights == "random":
            fill_model(model, settings.seed, names)
        if settings.dtype:
            model = own_method(model, "to")(model, getattr(torch, settings.dtype))
        moved: nn.Module = own_method(model, "to")(model, settings.device)
        own_method(moved, "train")(moved, settings.mode == "train")
        return moved

    def make_inputs(self, model: nn.Module) -> Inputs:
        """Return new inputs, with the same values at each call."""
        spec = self.settings.input
        if spec is None:
            spec = self._default_input(model)
        if isinstance(spec, TensorSpec | PythonValue):
            spec = [spec]
        with self.fixed_seed():
            return inputs_of(self._make(spec, "", model))

    def _default_input(self, model: nn.Module) -> InputSpec:
        with self._name_file_in_errors():
            return self.provider.default_input(model, self.settings.kwargs)

    def _construct(self) -> nn.Module:
        kwargs = self.settings.kwargs
        try:
            with self._name_file_in_errors():
                return self.provider.build(self.name, kwargs, pretrained=self.settings.weights == "pretrained")
        except TypeError as error:
            if wrong_argument := argument_error(error, self.name, kwargs, self.kwarg_places):
                raise wrong_argument from error
            raise

    @contextmanager
    def _name_file_in_errors(self) -> Iterator[None]:
        """Name the zoo file in a provider's errors."""
        try:
            yield
        except ZooError as error:
            raise (ZooError(str(error), str(self.file)) if self.file else error) from error.__cause__

    @contextmanager
    def fixed_seed(self) -> Iterator[None]:
        """Seed torch's generators as the settings say; afterwards restore the caller's CPU generator."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            yield

    def _make(self, spec: InputSpec, name: str, model: nn.Module) -> Any:
        """Return `spec` with each specification replaced by a value; `name` is its position, such as ``"0.1"``."""
        if isinstance(spec, TensorSpec):
            return self._make_tensor(spec, name)
        if isinstance(spec, FromFunction):
            return spec.make(model)
        if isinstance(spec, PythonValue):
            return copy.deepcopy(spec.value)
        prefix = f"{name}." if name else ""
        if isinstance(spec, dict):
            return {key: self._make(item, f"{prefix}{key}", model) for key, item in spec.items()}
        return [self._make(item, f"{prefix}{index}", model) for index, item in enumerate(spec)]

    def _make_tensor(self, spec: TensorSpec, name: str) -> torch.Tensor:
        """Return the tensor; a tensor of the default dtype takes the model's dtype, if the settings name one."""
        seed, dtype = self.settings.seed, getattr(torch, spec.dtype)
        if spec.values is None:
            tensor = fill_tensor(spec.shape, dtype, spec.low, spec.high, seed=seed, name=f"input {name}")
        else:
            tensor = torch.tensor(spec.values, dtype=dtype)
        if self.settings.dtype and dtype is torch.float32:
            tensor = tensor.to(getattr(torch, self.settings.dtype))
        return tensor.to(self.settings.device)


def _functions_in(spec: InputSpec) -> Iterator[FromFunction]:
    if isinstance(spec, FromFunction):
        yield spec
    elif isinstance(spec, dict | list | tuple):
        for item in spec.values() if isinstance(spec, dict) else spec:
            yield from _functions_in(item)
