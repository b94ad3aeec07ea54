"""Models from the user's own functions (``python:FILE.py:FUNCTION``), and from members of a library module."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from textwrap import shorten
from typing import TYPE_CHECKING
from typing import Any
from typing import cast

from pytest_torchlens.zoo.errors import ZooError
from pytest_torchlens.zoo.errors import as_zoo_error
from pytest_torchlens.zoo.imports import named_function
from pytest_torchlens.zoo.inputs import FromFunction
from pytest_torchlens.zoo.inputs import InputSpec
from pytest_torchlens.zoo.inputs import TensorSpec

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from torch import nn

    from pytest_torchlens.zoo.providers import Provider


AUDIO = (
    "ConvTasNet Conformer DeepSpeech Emformer HDemucs Tacotron2 Wav2Letter WaveRNN conv_tasnet_base "
    "emformer_rnnt_base hdemucs_low hubert_base hubert_pretrain_base squim_objective_base squim_subjective_base "
    "wav2vec2_base wavlm_base"
).split()
GRAPHS = (
    "AttentiveFP EdgeCNN GAT GATConv GCN GCNConv GIN GraphConv GraphSAGE GraphUNet LightGCN MLP PNA RGCNConv SAGEConv "
    "TransformerConv"
).split()
SEGMENTATION = "DPT DeepLabV3 DeepLabV3Plus FPN Linknet MAnet PAN PSPNet Segformer UPerNet Unet UnetPlusPlus".split()


class MembersProvider:
    """Members of one module that build models; those that the installed version lacks are left out.

    Parameters
    ----------
    module
        Where they are looked up.
    names
        Their names.
    """

    def __init__(self, module: ModuleType, names: list[str]) -> None:
        self._module = module
        self._names = [name for name in names if hasattr(module, name)]

    def names(self) -> list[str]:
        """Return the names of those there are."""
        return self._names

    def build(self, name: str, kwargs: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
        """Call the member with `kwargs`."""
        if pretrained:
            raise ZooError(f"{self._module.__name__}: name pretrained weights in 'kwargs', and say 'weights: init'")
        return cast("nn.Module", getattr(self._module, name)(**kwargs))

    def default_input(self, model: nn.Module, kwargs: Mapping[str, Any]) -> InputSpec:
        """Refuse: these models have nothing in common that would tell."""
        raise ZooError(f"{self._module.__name__}: no 'input' is named for this model, in 'defaults' or in a rule")


METHODS = ("names", "build", "default_input")


def own_provider(text: str, folder: Path) -> Provider:
    """Return what ``python:FILE.py:FUNCTION`` or ``python:package.module:FUNCTION`` names.

    The function takes no argument and returns a mapping of names to callables that build a model, or a `Provider`.
    A file is looked for in `folder`, beside the zoo file.

    Raises
    ------
    ZooError
        If there is no such function, it raises, or it returns something else.
    """
    path = text.partition(":")[2]
    if ":" not in path:
        raise ZooError(f"{text!r} is not of the form 'python:FILE.py:FUNCTION'")
    function = named_function(path, folder)
    with as_zoo_error(f"{text} raises"):
        return _Checked(_as_provider(function(), text), text)


def _as_provider(found: Any, text: str) -> Provider:
    if isinstance(found, Mapping):
        return _Builders(found, text)
    if isinstance(found, type):
        raise ZooError(f"{text} returns the class {found.__name__}: let it return an instance, {found.__name__}()")
    if all(hasattr(found, method) for method in METHODS):
        return cast("Provider", found)
    raise ZooError(
        f"{text} returns {type(found).__name__}, not a mapping of names to builders, "
        f"nor an object with the methods {', '.join(METHODS)}"
    )


class _Checked:
    """A provider whose answers are code of the user's: what is wrong with one is told by the provider's name."""

    def __init__(self, provider: Any, text: str) -> None:
        self._provider = provider
        self._text = text
        self._names = self._asked_names()
        if hasattr(provider, "family"):
            self.family = self._family

    def names(self) -> list[str]:
        return self._names

    def build(self, name: str, kwargs: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
        model = self._provider.build(name, kwargs, pretrained=pretrained)
        if not _is_model(model):
            raise ZooError(f"{self._text}: {name!r} is built as {type(model).__name__}, not a torch.nn.Module")
        return cast("nn.Module", model)

    def default_input(self, model: nn.Module, kwargs: Mapping[str, Any]) -> InputSpec:
        spec = self._provider.default_input(model, kwargs)
        if not _is_input(spec):
            said = shorten(repr(spec), 100)
            raise ZooError(f"{self._text}: default_input() returns {said}, not a TensorSpec, or a list or dict of such")
        return spec

    def _family(self, name: str) -> str:
        with as_zoo_error(f"{self._text}: family({name!r}) raises"):
            return str(self._provider.family(name))

    def _asked_names(self) -> list[str]:
        with as_zoo_error(f"{self._text}: names() raises"):
            answer = self._provider.names()
            names = list(answer) if isinstance(answer, Iterable) and not isinstance(answer, str | bytes) else None
        if names is None:
            raise ZooError(f"{self._text}: names() returns {shorten(repr(answer), 100)}, not a list of names")
        if not names:
            raise ZooError(f"{self._text} names no model")
        for name in names:
            _check_name(name, self._text)
        return names


def _is_model(value: Any) -> bool:
    return hasattr(value, "named_parameters") and not isinstance(value, type)


def _is_input(spec: Any) -> bool:
    if isinstance(spec, list | tuple):
        return all(map(_is_input, spec))
    if isinstance(spec, dict):
        return all(map(_is_input, spec.values()))
    return isinstance(spec, TensorSpec | FromFunction)


class _Builders:
    """A mapping of names to callables, as a provider."""

    def __init__(self, builders: Mapping[str, Any], text: str) -> None:
        for name, builder in builders.items():
            if not callable(builder) or _is_model(builder):
                what = f"is {type(builder).__name__}, not a function or class that builds a model"
                raise ZooError(f"{text}: {name!r} {what}: write 'lambda: ...'")
        self._builders = builders
        self._text = text

    def names(self) -> list[str]:
        return list(self._builders)

    def build(self, name: str, kwargs: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
        if pretrained:
            raise ZooError(f"{self._text}: load pretrained weights in the function, and say 'weights: init'")
        builder = self._builders[name]
        return cast("nn.Module", builder(**kwargs))

    def default_input(self, model: nn.Module, kwargs: Mapping[str, Any]) -> InputSpec:
        raise ZooError(f"{self._text}: no 'input' is named for this model, in 'defaults' or in a rule")


def _check_name(name: Any, text: str) -> None:
    """Refuse names that could not be given back to pytest on the command line."""
    if not isinstance(name, str):
        raise ZooError(f"{text}: the name {name!r} is of type {type(name).__name__}, not text")
    if not name or "::" in name or not name.isprintable():
        raise ZooError(
            f"{text}: {name!r} cannot be a model's name: it is empty, or has '::' or characters without print"
        )
