"""The identity of the memory under a tensor."""

from __future__ import annotations

import torch


def storage_key(tensor: torch.Tensor) -> int:
    """Return a number shared by all tensors over the same memory, also through numpy; 0 where there is none.

    A sparse or jagged tensor stands on the memory of its values.
    """
    if tensor.layout is not torch.strided:
        values = _values_of(tensor)
        return 0 if values is None else storage_key(values)
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr() or -storage._cdata
    except (RuntimeError, NotImplementedError, ValueError):  # wrapper tensors own no storage
        return 0


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
