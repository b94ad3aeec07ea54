"""The identity of the memory under a tensor."""

from __future__ import annotations

import torch


def storage_key(tensor: torch.Tensor) -> int:
    """Return a number shared by all tensors over the same memory, also through numpy; 0 where there is none."""
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr() or -storage._cdata
    except (RuntimeError, NotImplementedError, ValueError):  # sparse, nested and wrapper tensors own no storage
        return 0
