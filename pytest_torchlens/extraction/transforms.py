"""The functions that are applied to activations before they are stored."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import torch

from pytest_torchlens.capture import SaveOptions
from pytest_torchlens.extraction.batches import name_of
from pytest_torchlens.extraction.graphs import matching
from pytest_torchlens.extraction.index import ExtractError
from pytest_torchlens.history import LookupKeyError
from pytest_torchlens.records import Operation

Transform = Callable[[torch.Tensor], torch.Tensor]
Transforms = Transform | Mapping[str, Transform] | None


def check_transform(transform: object) -> None:
    """Raise `TypeError` unless it is a function, a dict of functions, or None."""
    if isinstance(transform, Mapping):
        for key, function in transform.items():
            if not isinstance(key, str) or not callable(function):
                raise TypeError(f"transform: expected functions by layer, got {key!r}: {function!r:.60}")
    elif transform is not None and not callable(transform):
        raise TypeError(
            f"transform: expected a function of a tensor, or a dict of them by layer, got {transform!r:.60}"
        )


class Transformer:
    """Applies to each layer its function.

    Parameters
    ----------
    transform
        One function for all layers, functions by key, or None.
    operations
        The chosen operations by label.

    Raises
    ------
    LookupKeyError
        If a key names none of the chosen layers.
    ExtractError
        If two keys name the same layer.
    """

    def __init__(self, transform: Transforms, operations: Mapping[str, Operation]) -> None:
        self._functions: dict[str, tuple[str, SaveOptions]] = {}
        if callable(transform):
            self._functions = dict.fromkeys(operations, (name_of(transform), SaveOptions(transform=transform)))
        elif transform is not None:
            for key, function in transform.items():
                self._add(key, function, operations)

    def _add(self, key: str, function: Transform, operations: Mapping[str, Operation]) -> None:
        try:
            labels = matching(key, operations.values())
        except LookupKeyError as error:
            raise LookupKeyError(f"transform: {error}") from None
        if twice := [label for label in labels if label in self._functions]:
            raise ExtractError(f"transform: {key!r} and another key both name {twice[0]}; name each layer once")
        self._functions.update(dict.fromkeys(labels, (name_of(function), SaveOptions(transform=function))))

    def name(self, label: str) -> str:
        """Return the name of the function of a layer; ``""`` if it has none."""
        return self._functions[label][0] if label in self._functions else ""

    def apply(self, label: str, tensor: torch.Tensor, where: str) -> torch.Tensor:
        """Return what is to be stored of an activation.

        Raises
        ------
        ExtractError
            If the function raises, returns no tensor, or writes to its argument; `where` names the batch.
        """
        if label not in self._functions:
            return tensor
        name, options = self._functions[label]
        try:
            return options.apply(tensor)
        except Exception as error:
            problem: Any = error if isinstance(error, TypeError) else f"{type(error).__name__}: {error}"
            raise ExtractError(
                f"the transform {name} of {label} in {where} (shape {tuple(tensor.shape)}) failed: {problem}"
            ) from error
