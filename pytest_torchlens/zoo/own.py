"""Models of the user's own, from a function in a module or a file."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import cast

from pytest_torchlens.zoo.errors import ZooError

if TYPE_CHECKING:
    from types import ModuleType

    from torch import nn

    from pytest_torchlens.zoo.schema import InputSpec


class PythonProvider:
    """Models of the user's own: ``python:FILE.py:FUNCTION`` or ``python:package.module:FUNCTION``.

    The function takes no argument and returns a mapping of names to callables that build a model.  A file is
    looked for in `folder`, beside the zoo file.

    Raises
    ------
    ZooError
        If there is no such function, it raises, or it returns something else.
    """

    def __init__(self, text: str, folder: Path) -> None:
        self._text = text
        _, _, path = text.partition(":")
        where, _, function = path.rpartition(":")
        if not where:
            raise ZooError(f"{text!r} is not of the form 'python:FILE.py:FUNCTION'")
        try:
            builders = _function(where, function, folder)()
        except ZooError:
            raise
        except Exception as error:
            raise ZooError(f"cannot load {where}: {type(error).__name__}: {error}") from error
        if not isinstance(builders, Mapping):
            kind = type(builders).__name__
            raise ZooError(f"{text} returns {kind}, not a mapping of names to builders")
        for name in builders:
            _check_name(name, text)
        self._builders: Mapping[str, Callable[..., nn.Module]] = builders

    def names(self) -> list[str]:
        """Return the keys of the mapping."""
        return list(self._builders)

    def build(self, name: str, kwargs: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
        """Call the model's builder with `kwargs`."""
        if pretrained:
            raise ZooError(f"{self._text}: load pretrained weights in the function, and say 'weights: init'")
        model = self._builders[name](**kwargs)
        if not hasattr(model, "named_parameters"):
            raise ZooError(
                f"{self._text}: the builder of {name!r} returns {type(model).__name__}, not a torch.nn.Module"
            )
        return model

    def default_input(self, model: nn.Module, kwargs: Mapping[str, Any]) -> InputSpec:
        """Refuse: what a user's own model takes, only the user knows."""
        raise ZooError(f"{self._text}: no 'input' is named for this model, in 'defaults' or in a rule")


def _check_name(name: Any, text: str) -> None:
    """Refuse names that could not be given back to pytest on the command line."""
    if not isinstance(name, str):
        raise ZooError(f"{text}: the name {name!r} is of type {type(name).__name__}, not text")
    if not name or "::" in name or not name.isprintable():
        raise ZooError(
            f"{text}: {name!r} cannot be a model's name: it is empty, or has '::' or characters without print"
        )


def _function(where: str, name: str, folder: Path) -> Callable[[], Any]:
    function = getattr(_load(where, folder), name, None)
    if not callable(function):
        raise ZooError(f"{where} has no function {name!r}")
    return cast("Callable[[], Any]", function)


def _load(where: str, folder: Path) -> ModuleType:
    if not where.endswith(".py"):
        return importlib.import_module(where)
    path = folder / where
    if not path.is_file():
        raise ZooError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ZooError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
