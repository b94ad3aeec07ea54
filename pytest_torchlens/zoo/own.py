"""Models of the user's own, from a function in a module or a file."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

from pytest_torchlens.zoo.errors import ZooError

if TYPE_CHECKING:
    from types import ModuleType

    from torch import nn

    from pytest_torchlens.zoo.schema import InputSpec


@dataclass(frozen=True)
class PythonProvider:
    """Models of the user's own: ``python:FILE.py:FUNCTION`` or ``python:package.module:FUNCTION``.

    The function takes no argument and returns a mapping of names to callables that build a model.  A file is
    looked for beside the zoo file.
    """

    text: str
    folder: Path

    def names(self) -> list[str]:
        """Return the keys of the mapping."""
        return list(self._builders)

    def build(self, name: str, kwargs: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
        """Call the model's builder with `kwargs`."""
        if pretrained:
            raise ZooError(f"{self.text}: load pretrained weights in the function, and say 'weights: init'")
        return self._builders[name](**kwargs)

    def default_input(self, model: nn.Module, kwargs: Mapping[str, Any]) -> InputSpec:
        """Refuse: what a user's own model takes, only the user knows."""
        raise ZooError(f"{self.text}: no 'input' is named for this model, in 'defaults' or in a rule")

    @cached_property
    def _builders(self) -> Mapping[str, Callable[..., nn.Module]]:
        _, _, path = self.text.partition(":")
        where, _, function = path.rpartition(":")
        if not where or not function:
            raise ZooError(f"{self.text!r} is not of the form 'python:FILE.py:FUNCTION'")
        module = _load(where, self.folder)
        if not callable(make := getattr(module, function, None)):
            raise ZooError(f"{where} has no function {function!r}")
        builders = make()
        if not isinstance(builders, Mapping):
            kind = type(builders).__name__
            raise ZooError(f"{self.text} returns {kind}, not a mapping of names to builders")
        return builders


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
