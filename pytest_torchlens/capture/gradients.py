"""The gradients of recorded values, noted in every backward pass that reaches them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

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
        self._of_slot: dict[int, Key | None] = {}

    def watch(self, value: Value, tensor: torch.Tensor, written: bool = False) -> None:
        """Note the gradients of `tensor`, which holds `value` now; one overwritten later keeps its own.

        Parameters
        ----------
        written
            Whether the call that made the value wrote it into the memory of a tensor that was there.
        """
        before = self._of_slot.get(value.slot)
        if written and _is_written_view(tensor):
            self._watch_memory(key_of(value), before, tensor)
            self._of_slot[value.slot] = None  # what comes later flows through this memory too: nothing is to be added
            return
        self._of_slot[value.slot] = key_of(value)
        handle = tensor.register_hook(self._noting(key_of(value)))  # type: ignore[no-untyped-call]
        if tensor.is_leaf:
            weakref.finalize(self, handle.remove)

    def _watch_memory(self, key: Key, before: Key | None, view: torch.Tensor) -> None:
        """Note what reaches the memory that a view was written to: autograd follows that, and not the view.

        What goes on from there to the view's former value goes past the hook on it, and is added.
        """
        base, cut = view._base, _Cut(view)
        assert base is not None  # noqa: S101 - the caller looked
        note = self._noting(key)
        base.register_hook(lambda gradient: note(cut(gradient)))  # type: ignore[no-untyped-call]
        if before is None or base.grad_fn is None:
            return
        note_before = self._noting(before)

        def note_what_goes_on(to_inputs: tuple[torch.Tensor | None, ...], _: Any) -> None:
            if to_inputs[0] is not None:
                note_before(cut(to_inputs[0]))

        base.grad_fn.register_hook(note_what_goes_on)

    def _noting(self, key: Key) -> Callable[[torch.Tensor], None]:
        store = weakref.ref(self)

        def note(gradient: torch.Tensor) -> None:
            if (gradients := store()) is not None:
                gradients._note(key, gradient)

        return note

    def keep_only(self, wanted: set[Key]) -> None:
        """Keep the gradients of these values alone, now and later."""
        self._wanted = wanted
        self._found = {key: found for key, found in self._found.items() if key in wanted}

    def of(self, value: Value) -> dict[int, torch.Tensor]:
        """Return a value's gradients by the number of the backward pass."""
        return dict(sorted(self._found.get(key_of(value), {}).items()))

    def reached(self) -> dict[int, set[Key]]:
        """Return for each backward pass the values that it reached, saved or not."""
        return {number: set(keys) for number, keys in self._reached.items()}

    def _note(self, key: Key, gradient: torch.Tensor) -> None:
        number = self._passes.setdefault(torch._C._current_graph_task_id(), len(self._passes) + 1)
        self._reached.setdefault(number, {})[key] = None
        if self._wanted is None or key in self._wanted:
            found = self._found.setdefault(key, {})
            with torch._C.DisableTorchFunction(), torch.no_grad():
                # a copy: autograd may hand the very tensor on to a parameter, which then adds to it
                found[number] = found[number] + gradient if number in found else gradient.detach().clone()


def _is_written_view(tensor: torch.Tensor) -> bool:
    """Return whether autograd follows the memory of a tensor, of which it is a part, as it was just written to."""
    base = tensor._base
    return base is not None and base.dtype == tensor.dtype and type(base.grad_fn).__name__ == "CopySlices"


class _Cut:
    """Cuts a view's part out of a gradient of all of its memory; holds neither."""

    def __init__(self, view: torch.Tensor) -> None:
        base = view._base
        assert base is not None  # noqa: S101 - the caller looked
        self._of_base = tuple(base.shape), base.stride()
        self._of_view = tuple(view.shape), view.stride(), view.storage_offset() - base.storage_offset()

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the part."""
        with torch.no_grad():
            whole = gradient.new_empty_strided(*self._of_base)
            whole.copy_(gradient)
            return whole.as_strided(*self._of_view)
