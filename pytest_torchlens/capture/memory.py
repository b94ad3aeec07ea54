"""Values kept by reference until a write is about to hit their memory."""

from __future__ import annotations

import torch

from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.capture.values import PLAIN
from pytest_torchlens.capture.values import Value


class Retention:
    """Values whose tensors are kept by reference, and copied only when their memory is about to be overwritten.

    Parameters
    ----------
    in_graph
        Whether copies stay in the autograd graph, each then with memory of its own.
    """

    def __init__(self, in_graph: bool = False) -> None:
        self._kept: dict[int, list[Value]] = {}
        self._in_graph = in_graph

    def keep(self, value: Value, tensor: torch.Tensor, key: int) -> None:
        """Keep `tensor` as ``value.tensor``, with the contents that it has now."""
        value.tensor = tensor
        self._kept.setdefault(key, []).append(value)

    keep_made = keep
    """Keep what a call made; may be otherwise than a source is kept."""

    def watch(self, value: Value, tensor: torch.Tensor, written: bool = False) -> None:
        """Be told of a source."""

    def before_write(self, key: int) -> None:
        """Copy what is kept of that memory: one copy, over which the kept tensors stay aliases of each other."""
        values = self._kept.pop(key, None)
        if values is not None:
            for value, copy in zip(values, copies_of(values, self._in_graph), strict=True):
                value.tensor = copy


def copies_of(values: list[Value], in_graph: bool = False) -> list[torch.Tensor]:
    """Return copies of the kept tensors; those over the same memory are again aliases of each other."""
    storages: dict[int, torch.UntypedStorage] = {}
    with torch.set_grad_enabled(in_graph):
        return [_copy(value, storages, in_graph) for value in values]


def _copy(value: Value, storages: dict[int, torch.UntypedStorage], in_graph: bool) -> torch.Tensor:
    if value.tensor is None:
        raise ValueError("a value that is not kept cannot be copied")
    if in_graph and value.tensor.grad_fn is not None:
        return value.tensor.clone()
    copy = _over_copied_storage(value.tensor.detach(), storages)
    return copy.requires_grad_() if value.requires_grad and value.tensor.requires_grad else copy


def _over_copied_storage(tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    key = storage_key(tensor)
    strided = tensor.layout is torch.strided and not tensor.is_nested
    if (
        not strided
        or type(tensor) not in PLAIN
        or tensor.is_conj()
        or tensor.is_neg()
        or tensor.is_quantized
        or not key
    ):
        return tensor.clone()
    if key not in storages:
        storages[key] = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(storages[key], tensor.storage_offset(), tensor.shape, tensor.stride())


def overwrite(tensor: torch.Tensor, contents: torch.Tensor) -> None:
    """Copy `contents` into `tensor` without autograd's notice; not into or from memory that was freed.

    Elements that are one in memory are written once.
    """
    if storage_key(tensor) < 0 or storage_key(contents) < 0:
        return
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        for dim in range(tensor.dim()) if _is_expanded(tensor) else ():
            if tensor.stride(dim) == 0 and tensor.size(dim) > 1:
                tensor, contents = tensor.narrow(dim, 0, 1), contents.narrow(dim, 0, 1)
        tensor.copy_(contents)


def _is_expanded(tensor: torch.Tensor) -> bool:
    """Return whether a strided tensor has the same memory for several elements, by a step of 0."""
    strided = tensor.layout is torch.strided and not tensor.is_nested
    return strided and any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True))
