"""Providers made of the user's function (``python:FILE.py:FUNCTION``) or of members of a library module."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from textwrap import shorten
from typing import TYPE_CHECKING
from typing import Any
from typing import cast

from pytest_torchlens.zoo.errors import ZooError
from pytest_torchlens.zoo.errors import as_zoo_error
from pytest_torchlens.zoo.imports import file_of
from pytest_torchlens.zoo.imports import load_function
from pytest_torchlens.zoo.inputs import FromFunction
from pytest_torchlens.zoo.inputs import InputSpec
from pytest_torchlens.zoo.inputs import PythonValue
from pytest_torchlens.zoo.inputs import TensorSpec

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from torch import nn

    from pytest_torchlens.zoo.providers import Provider


METHODS = ("names", "build", "default_input")
NO_INPUT = "this model needs an 'input', in 'defaults' or in a rule"


def python_provider(text: str, folder: Path) -> Provider:
    """Return the provider that ``python:FILE.py:FUNCTION`` or ``python:package.module:FUNCTION`` names.

    The function takes no argument and returns a mapping of names to callables that build a model, or a `Provider`.
    A file is looked for in `folder`, the folder of the zoo file.

    Raises
    ------
    ZooError
        If the function does not exist, raises, or returns something else.
    """
    path = text.partition(":")[2]
    if ":" not in path:
        raise ZooError(f"expected 'python:FILE.py:FUNCTION', got {text!r}")
    function = load_function(path, folder)
    with as_zoo_error(f"{text} raises"):
        return _CheckedProvider(_as_provider(function(), text), text, file_of(function))


def _as_provider(found: Any, text: str) -> Provider:
    if isinstance(found, Mapping):
        return _MappingProvider(found, text)
    if isinstance(found, type):
        raise ZooError(f"{text}: expected an instance, got the class {found.__name__}: return {found.__name__}()")
    if all(hasattr(found, method) for method in METHODS):
        return cast("Provider", found)
    raise ZooError(
        f"{text}: expected a mapping of names to builders, or an object with the methods {', '.join(METHODS)}, "
        f"got {type(found).__name__}"
    )


class _CheckedProvider:
    """Checks what a user's provider returns, and names the provider in errors."""

    def __init__(self, provider: Any, text: str, file: Path | None) -> None:
        self._provider = provider
        self._text = text
        self.file = file
        names = self._read_names()
        self._wrong = {_escaped(name): wrong for name in names if (wrong := _wrong_name(name))}
        """What is wrong with a name, by the name in its place: that model fails when it is built, and no other."""
        self._names = [_escaped(name) if _wrong_name(name) else name for name in names]
        if hasattr(provider, "family"):
            self.family = self._family

    def names(self) -> list[str]:
        return self._names

    def build(self, name: str, kwargs: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
        if name in self._wrong:
            raise ZooError(f"{self._text}: {self._wrong[name]}")
        model = self._provider.build(name, kwargs, pretrained=pretrained)
        if not _is_model(model):
            raise ZooError(f"{self._text}: {name!r}: expected a torch.nn.Module, got {type(model).__name__}")
        return cast("nn.Module", model)

    def default_input(self, model: nn.Module, kwargs: Mapping[str, Any]) -> InputSpec:
        spec = self._provider.default_input(model, kwargs)
        if not _is_input(spec):
            value = shorten(repr(spec), 100)
            raise ZooError(f"{self._text}: default_input(): expected a TensorSpec, a list or a dict, got {value}")
        return spec

    def builder_file(self, name: str) -> Path | None:
        """Return the file of what builds a model, where the user's function returns a mapping."""
        provider = self._provider
        if name in self._wrong:
            return self.file
        return provider.file_of(name) if isinstance(provider, _MappingProvider) else file_of(type(provider))

    def _family(self, name: str) -> str:
        if name in self._wrong:
            return ""
        with as_zoo_error(f"{self._text}: family({name!r}) raises"):
            return str(self._provider.family(name))

    def _read_names(self) -> list[Any]:
        with as_zoo_error(f"{self._text}: names() raises"):
            answer = self._provider.names()
            names = list(answer) if isinstance(answer, Iterable) and not isinstance(answer, str | bytes) else None
        if names is None:
            raise ZooError(f"{self._text}: names(): expected a list of names, got {shorten(repr(answer), 100)}")
        if not names:
            raise ZooError(f"{self._text}: expected one model or more, got none")
        return names


def _is_model(value: Any) -> bool:
    return hasattr(value, "named_parameters") and not isinstance(value, type)


def _is_input(spec: Any) -> bool:
    if isinstance(spec, list | tuple):
        return all(map(_is_input, spec))
    if isinstance(spec, dict):
        return all(map(_is_input, spec.values()))
    return isinstance(spec, TensorSpec | FromFunction | PythonValue)


class _MappingProvider:
    """A mapping of names to callables, as a provider."""

    def __init__(self, builders: Mapping[str, Any], text: str) -> None:
        self._builders = dict(builders.items())
        self._text = text

    def names(self) -> list[str]:
        return list(self._builders)

    def file_of(self, name: str) -> Path | None:
        return file_of(self._builders[name])

    def build(self, name: str, kwargs: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
        if pretrained:
            raise ZooError(f"{self._text}: load pretrained weights in the function, and set 'weights: init'")
        builder = self._builders[name]
        if not callable(builder) or _is_model(builder):
            expected = f"expected a function or class that builds a model, got {type(builder).__name__}"
            raise ZooError(f"{self._text}: {name!r}: {expected}: write 'lambda: ...'")
        return cast("nn.Module", builder(**kwargs))

    def default_input(self, model: nn.Module, kwargs: Mapping[str, Any]) -> InputSpec:
        raise ZooError(f"{self._text}: {NO_INPUT}")


def _wrong_name(name: Any) -> str:
    """Return what is wrong with a name that pytest could not read on the command line; empty if nothing is."""
    if not isinstance(name, str):
        return f"expected text as a model's name, got {name!r} ({type(name).__name__})"
    if not name or "::" in name or not name.isprintable():
        return f"expected a model's name of printable characters without '::', got {name!r}"
    return ""


def _escaped(name: Any) -> str:
    """Return a name that pytest can read: ``"3 (int)"``."""
    kind = "" if isinstance(name, str) else f" ({type(name).__name__})"
    return ascii(name).replace("::", r":\:") + kind


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
    """Members of one module that build models, except those that the installed version lacks.

    Parameters
    ----------
    module
        The module.
    names
        Names of the members.
    """

    def __init__(self, module: ModuleType, names: list[str]) -> None:
        self._module = module
        members = set(dir(module))
        self._names = [name for name in names if name in members]

    def names(self) -> list[str]:
        """Return the names of the members that exist."""
        return self._names

    def build(self, name: str, kwargs: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
        """Call the member with `kwargs`."""
        if pretrained:
            raise ZooError(f"{self._module.__name__}: name pretrained weights in 'kwargs', and set 'weights: init'")
        return cast("nn.Module", getattr(self._module, name)(**kwargs))

    def default_input(self, model: nn.Module, kwargs: Mapping[str, Any]) -> InputSpec:
        """Raise: no input suits all of these models."""
        raise ZooError(f"{self._module.__name__}: {NO_INPUT}")
