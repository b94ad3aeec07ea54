"""Models of the user's own, from a function in a module or a file."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from typing import TYPE_CHECKING
from typing import Any

from pytest_torchlens.zoo.errors import ZooError
from pytest_torchlens.zoo.imports import named_function

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from pytest_torchlens.zoo.inputs import InputSpec
    from pytest_torchlens.zoo.providers import Provider

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
    try:
        found = function()
    except Exception as error:
        raise ZooError(f"{text} raises {type(error).__name__}: {error}") from error
    provider = found if all(hasattr(found, method) for method in METHODS) else _of_builders(found, text)
    for name in provider.names():
        _check_name(name, text)
    return provider


def _of_builders(found: Any, text: str) -> Provider:
    if isinstance(found, Mapping):
        return _Builders(found, text)
    raise ZooError(
        f"{text} returns {type(found).__name__}, not a mapping of names to builders, "
        f"nor an object with the methods {', '.join(METHODS)}"
    )


class _Builders:
    """A mapping of names to callables, as a provider."""

    def __init__(self, builders: Mapping[str, Callable[..., nn.Module]], text: str) -> None:
        self._builders = builders
        self._text = text

    def names(self) -> list[str]:
        return list(self._builders)

    def build(self, name: str, kwargs: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
        if pretrained:
            raise ZooError(f"{self._text}: load pretrained weights in the function, and say 'weights: init'")
        builder = self._builders[name]
        model = builder(**kwargs)
        if not hasattr(model, "named_parameters"):
            raise ZooError(
                f"{self._text}: the builder of {name!r} returns {type(model).__name__}, not a torch.nn.Module"
            )
        return model

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
