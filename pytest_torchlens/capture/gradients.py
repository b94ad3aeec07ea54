"""Records the gradients of recorded values in every backward pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from pytest_torchlens.capture.values import Value

Key = tuple[int, int]
"""Number of the call and place among its outputs; -1 and the place among the sources for a source."""


def key_of(value: Value) -> Key:
    """Return the key of a value, unique in its recording."""
    return value.call, value.position


class Gradients:
    """Gradients by value and backward pass; passes are numbered from 1 in the order in which they begin.

    Hooks on tensors hold only a weak reference to this object, so that recorded data is freed with the recording.
    Hooks on leaves, which outlive it, are removed when it is freed.
    """

    def __init__(self) -> None:
        self._by_value: dict[Key, dict[int, torch.Tensor]] = {}
        self._values_by_pass: dict[int, dict[Key, None]] = {}
        self._passes: dict[int, int] = {}
        self._selection: set[Key] | None = None
        self._key_of_slot: dict[int, Key | None] = {}

    def watch(self, value: Value, tensor: torch.Tensor, written: bool = False) -> None:
        """Record the gradients of `tensor`, which holds `value` now; later writes to it do not change them.

        Parameters
        ----------
        written
            Whether the call that made the value wrote it to the memory of an existing tensor.
        """
        before = self._key_of_slot.get(value.slot)
        if written and _is_written_view(tensor):
            self._watch_memory(key_of(value), before, tensor)
            self._key_of_slot[value.slot] = None  # later gradients flow through this memory too: nothing to add
            return
        self._key_of_slot[value.slot] = key_of(value)
        handle = tensor.register_hook(self._hook_for(key_of(value)))  # type: ignore[no-untyped-call]
        if tensor.is_leaf:
            weakref.finalize(self, handle.remove)

    def _watch_memory(self, key: Key, before: Key | None, view: torch.Tensor) -> None:
        """Record the gradients of a view that was written to, by a hook on its base: autograd follows the base.

        The gradient of the view's former value bypasses the hook on the view, and is added here.
        """
        base, cut = view._base, _ViewPart(view)
        assert base is not None  # noqa: S101 - the caller looked
        note = self._hook_for(key)
        base.register_hook(lambda gradient: note(cut(gradient)))  # type: ignore[no-untyped-call]
        if before is None or base.grad_fn is None:
            return
        note_before = self._hook_for(before)

        def note_what_goes_on(to_inputs: tuple[torch.Tensor | None, ...], _: Any) -> None:
            if to_inputs[0] is not None:
                note_before(cut(to_inputs[0]))

        base.grad_fn.register_hook(note_what_goes_on)

    def _hook_for(self, key: Key) -> Callable[[torch.Tensor], None]:
        store = weakref.ref(self)

        def note(gradient: torch.Tensor) -> None:
            if (gradients := store()) is not None:
                gradients._note(key, gradient)

        return note

    def keep_only(self, selection: set[Key]) -> None:
        """Keep only the gradients of these values, now and later."""
        self._selection = selection
        self._by_value = {key: by_pass for key, by_pass in self._by_value.items() if key in selection}

    def of(self, value: Value) -> dict[int, torch.Tensor]:
        """Return a value's gradients by the number of the backward pass."""
        return dict(sorted(self._by_value.get(key_of(value), {}).items()))

    def values_by_pass(self) -> dict[int, set[Key]]:
        """Return for each backward pass the values that got a gradient, saved or not."""
        return {number: set(keys) for number, keys in self._values_by_pass.items()}

    def _note(self, key: Key, gradient: torch.Tensor) -> None:
        number = self._passes.setdefault(torch._C._current_graph_task_id(), len(self._passes) + 1)
        self._values_by_pass.setdefault(number, {})[key] = None
        if self._selection is None or key in self._selection:
            by_pass = self._by_value.setdefault(key, {})
            with torch._C.DisableTorchFunction(), torch.no_grad():
                # a copy: autograd may use the same tensor as a parameter's gradient, and later add to it
                by_pass[number] = by_pass[number] + gradient if number in by_pass else gradient.detach().clone()


def _is_written_view(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a view whose base autograd follows because the view was just written to."""
    base = tensor._base
    return base is not None and base.dtype == tensor.dtype and type(base.grad_fn).__name__ == "CopySlices"


class _ViewPart:
    """Extracts the part of a view from the gradient of its base; references neither."""

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
