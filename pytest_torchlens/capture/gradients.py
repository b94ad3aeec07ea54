"""The gradients of recorded values, noted in every backward pass that reaches them."""

from __future__ import annotations

import weakref

import torch

from pytest_torchlens.capture.values import Value

Key = tuple[int, int]
"""Number of the call and place among its outputs; -1 and the place among the sources for a source."""


def key_of(value: Value) -> Key:
    """Return what tells a value from all others of its recording."""
    return value.call, value.position


class Gradients:
    """Gradients by value and backward pass; passes are numbered from 1 in the order in which they begin.

    Hooks on the tensors hold this object weakly, so that what is recorded dies with the recording; those on leaves,
    which outlive it, are taken off when it goes.
    """

    def __init__(self) -> None:
        self._found: dict[Key, dict[int, torch.Tensor]] = {}
        self._reached: dict[int, dict[Key, None]] = {}
        self._passes: dict[int, int] = {}
        self._wanted: set[Key] | None = None

    def watch(self, value: Value, tensor: torch.Tensor) -> None:
        """Note the gradients of `tensor`, which holds `value` now; one overwritten later keeps its own."""
        store, key = weakref.ref(self), key_of(value)

        def note(gradient: torch.Tensor) -> None:
            if (gradients := store()) is not None:
                gradients._note(key, gradient)

        handle = tensor.register_hook(note)  # type: ignore[no-untyped-call]
        if tensor.is_leaf:
            weakref.finalize(self, handle.remove)

    def keep_only(self, wanted: set[Key]) -> None:
        """Keep the gradients of these values alone, now and later."""
        self._wanted = wanted
        self._found = {key: found for key, found in self._found.items() if key in wanted}

    def of(self, value: Value) -> dict[int, torch.Tensor]:
        """Return a value's gradients by the number of the backward pass."""
        return dict(self._found.get(key_of(value), {}))

    def reached(self) -> dict[int, set[Key]]:
        """Return for each backward pass the values that it reached, saved or not."""
        return {number: set(keys) for number, keys in self._reached.items()}

    def _note(self, key: Key, gradient: torch.Tensor) -> None:
        number = self._passes.setdefault(torch._C._current_graph_task_id(), len(self._passes) + 1)
        self._reached.setdefault(number, {})[key] = None
        if self._wanted is None or key in self._wanted:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                # a copy: autograd may hand the very tensor on to a parameter, which then adds to it
                self._found.setdefault(key, {})[number] = gradient.detach().clone()
