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


class Transformer:
    """Applies to each layer its function.

    Parameters
    ----------
    transform
        One function for all layers, functions by key, or None.

    Raises
    ------
    TypeError
        If it is anything else.
    """

    def __init__(self, transform: Transforms) -> None:
        self._transform = transform
        self._functions: dict[str, tuple[str, SaveOptions]] = {}
        self.unresolved = transform is not None
        """Whether it does not know the layers yet."""
        if isinstance(transform, Mapping):
            for key, function in transform.items():
                if not callable(function):
                    raise TypeError(f"transform: expected functions by layer, got {key!r}: {function!r:.60}")
        elif transform is not None and not callable(transform):
            raise TypeError(
                f"transform: expected a function of a tensor, or a dict of them by layer, got {transform!r:.60}"
            )

    def resolve(self, operations: Mapping[str, Operation]) -> None:
        """Find the function of each of the chosen operations, which are given by label.

        Raises
        ------
        LookupKeyError
            If a key names none of them.
        ExtractError
            If two keys name the same one.
        """
        transform, self.unresolved = self._transform, False
        if isinstance(transform, Mapping):
            for key, function in transform.items():
                self._add(key, function, operations)
        elif transform is not None:
            self._functions = dict.fromkeys(operations, (name_of(transform), SaveOptions(transform=transform)))

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
