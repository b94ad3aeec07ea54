"""Measures how much an edit changed the values behind it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from pytest_torchlens.edit.sites import sites_of
from pytest_torchlens.edit.unwritten import on_unwritten_memory
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.layers_and_operations import LoggedOperation


def changed_by(edited: ModelHistory, original: ModelHistory) -> dict[str, float]:
    """Return how much each tensor behind an edit changed, by label; see `ModelHistory.changed_by`.

    A tensor that was not saved in both passes, and has no fingerprint in both, is left out, as is one that the original
    pass does not have, and memory that nothing has been written to, as of `torch.empty`.
    """
    before = {op.label: op for op in original.operations}
    partners = counterparts(original, edited)
    behind = _behind(edited)
    unwritten = on_unwritten_memory(edited.recording)
    found = {}
    for op in edited.operations:
        untold = edited.recording.uninitialised if op.label in behind else unwritten
        first = None if op.call_id in untold else before.get(partners.get(op.label, ""))
        change = None if first is None else _change(first, op)
        if change is not None and (change or op.label in behind):
            found[op.label] = change
    return found


def _behind(edited: ModelHistory) -> set[str]:
    """Return the labels of what is edited, and of all that is computed from it."""
    starts = {edit.operation or edit.label for edit in edited.edits}
    own = {op.label for op in edited.operations if op.label in starts or starts & {*op.parent_param_addresses}}
    return own | {*edited.walks.descendants(tuple(own))}


def counterparts(original: ModelHistory, edited: ModelHistory) -> dict[str, str]:
    """Return, by the label of each tensor of an edited pass, that in the original: the same call at the same site."""
    places = dict(_places(original))
    return {label: places[place] for place, label in _places(edited) if place in places}


def _places(history: ModelHistory) -> Iterator[tuple[Any, str]]:
    """Yield where each tensor comes from, and its label."""
    sites = sites_of(history.recording)
    outputs = iter(path for path, _ in history.recording.outputs)
    for node in history.nodes:
        if node.call is not None:
            yield (sites[node.number], node.value.position), node.label
        elif node.source is not None:
            yield (node.kind, node.source.name or node.source.value.position), node.label
        else:
            yield (node.kind, next(outputs)), node.label


def _change(before: LoggedOperation, after: LoggedOperation) -> float | None:
    """Return how much a tensor changed; None if that is not known."""
    same_kind = (before.tensor_shape, before.tensor_dtype) == (after.tensor_shape, after.tensor_dtype)
    prints = before.fingerprint, after.fingerprint
    if all(prints) and same_kind and prints[0] == prints[1]:
        return 0.0
    one, other = before.tensor_contents, after.tensor_contents
    if one is None or other is None:
        return float("inf") if all(prints) or not same_kind else None
    return relative_change(one, other)


@torch.no_grad()
def relative_change(before: torch.Tensor, after: torch.Tensor) -> float:
    """Return the norm of the difference of two tensors, relative to the norm of the first.

    Elements that are equal, or NaN in both, do not differ.  It is infinite for other shapes, for what differs and is
    not finite, from zeros, and for tensors without elements to compute with.
    """
    with torch._C.DisableTorchFunction():
        if before.shape != after.shape:
            return float("inf")
        try:
            difference, size = _norms(_as_numbers(before), _as_numbers(after))
        except (RuntimeError, NotImplementedError, TypeError):  # sparse, nested, quantized, meta, wrappers
            return float("inf")
    if not difference:
        return 0.0
    return difference / size if size and math.isfinite(difference) else float("inf")


def _norms(one: torch.Tensor, other: torch.Tensor) -> tuple[float, float]:
    """Return the norm of the difference of two tensors and that of the first, of those elements that are finite."""
    other, wide = other.to(one.device), _WIDE[one.is_complex()]
    norms = [float(torch.linalg.vector_norm(tensor, dtype=wide)) for tensor in (other - one, one)]
    if all(map(math.isfinite, norms)):
        return norms[0], norms[1]
    one, other = one.to(wide), other.to(wide)
    same = (one == other) | (one.isnan() & other.isnan())
    changed, finite = (other - one).masked_fill(same, 0), one.masked_fill(~one.isfinite(), 0)
    return float(torch.linalg.vector_norm(changed)), float(torch.linalg.vector_norm(finite))


def _as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in a type in which its difference can be computed."""
    tensor = tensor.detach().cpu() if tensor.device.type == "mps" else tensor.detach()  # which has no float64
    return tensor if tensor.dtype in _PRECISE else tensor.to(_WIDE[tensor.is_complex()])


_PRECISE = (torch.float32, torch.float64, torch.complex64, torch.complex128)
_WIDE = (torch.float64, torch.complex128)
