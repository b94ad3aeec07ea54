"""The identity of the memory under a tensor."""

from __future__ import annotations

import torch


def storage_key(tensor: torch.Tensor) -> int:
    """Return a number shared by all tensors over the same memory, also through numpy; 0 where there is none."""
    storage = storage_of(tensor)
    try:
        return 0 if storage is None else storage.data_ptr() or -storage._cdata
    except RuntimeError:  # of a fake tensor, which has none
        return 0


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """Return what a tensor stands on, a sparse or jagged one by its values.

    It is the same object as long as the memory lives, whatever tensors there are over it.
    """
    if tensor.layout is not torch.strided:
        values = _values_of(tensor)
        return None if values is None else storage_of(values)
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError, ValueError):  # wrapper tensors own no storage
        return None


def is_freed(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has elements and no memory for them: its storage was resized, or it is a lazy zero."""
    return bool(tensor.numel()) and not tensor.is_meta and storage_key(tensor) <= 0


def _values_of(tensor: torch.Tensor) -> torch.Tensor | None:
    if tensor.layout is torch.sparse_coo:
        return tensor._values()
    if tensor.layout in _COMPRESSED:
        return tensor.values()
    values: torch.Tensor | None = tensor._values if tensor.layout is torch.jagged else None  # type: ignore[assignment]
    return values


_COMPRESSED = frozenset([torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc])
