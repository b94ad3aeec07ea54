"""Finds the call that makes a tensor from another one over the same memory, where the model made it without one."""

from __future__ import annotations

from typing import Any

import torch

from pytest_torchlens.capture.functions import FunctionInfo
from pytest_torchlens.capture.functions import info_of
from pytest_torchlens.capture.functions import leaf_of
from pytest_torchlens.capture.storage import address_of
from pytest_torchlens.capture.values import PLAIN
from pytest_torchlens.capture.values import Aliased
from pytest_torchlens.capture.values import Value
from pytest_torchlens.capture.wrappers import Wrap
from pytest_torchlens.capture.wrappers import settings_of
from pytest_torchlens.capture.wrappers import unwrap
from pytest_torchlens.capture.wrappers import with_settings

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
View = tuple[FunctionInfo, tuple[Any, ...]]
"""A function and arguments that make a tensor from another one over the same memory."""


def part_of(tensor: Tensor, owner: Tensor, read: Value | Aliased) -> View | None:
    """Return the call that makes `tensor` from the tensor of which it covers a part, or with another shape or dtype.

    `read` is what the owner holds.  None if there is no such call.
    """
    if type(owner) is not type(tensor) and not (type(owner) in PLAIN and type(tensor) in PLAIN):
        return None
    if owner.layout is not torch.strided or tensor.layout is not torch.strided or tensor.is_nested or owner.is_nested:
        return None
    distance = address_of(tensor) - address_of(owner)
    if owner.dtype == tensor.dtype:
        offset = distance // tensor.itemsize + owner.storage_offset()
        return info_of(torch.as_strided), (read, tuple(tensor.shape), tensor.stride(), offset)
    if tensor.is_quantized or type(owner) not in PLAIN:
        return None
    return _AS_DTYPE, (read, tensor.dtype, tuple(tensor.shape), tensor.stride(), distance)


def as_dtype(
    tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...], distance: int
) -> Tensor:
    """Return a tensor of another dtype over the memory of a tensor, `distance` bytes after its first element."""
    start = tensor.storage_offset() * tensor.itemsize + distance
    empty = torch.empty(0, dtype=dtype, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), start // dtype.itemsize, shape, stride)


def in_class_of(tensor: Tensor, read: Value | Aliased) -> View:
    """Return the call that makes `tensor` from the tensor of another class over the same memory."""
    if type(tensor) is Parameter:
        return _AS_PARAMETER, (read, tensor.requires_grad)
    return info_of(torch.Tensor.as_subclass), (read, type(tensor))


def as_subclass(tensor: Tensor, requires_grad: bool) -> Parameter:
    """Return a parameter over the memory of a tensor: gradients may be taken with respect to it."""
    return Parameter(tensor, requires_grad)


def values_of_sparse(tensor: Tensor) -> tuple[FunctionInfo, Tensor] | None:
    """Return the function that returns the values of a sparse tensor, and these; None for any other tensor."""
    info = _VALUES.get(tensor.layout)
    return None if info is None else (info, info.func(tensor))


def wrap_of(wrapper: Tensor, parts: Any) -> View:
    """Return the call that makes a wrapper like this one around `parts`."""
    return leaf_of(Wrap(wrapper)), (parts,)


def other_settings_of(wrapper: Tensor, read: Value | Aliased) -> View:
    """Return the call that makes a wrapper of the one that it was, if only numbers and the like have changed since."""
    return _WITH_SETTINGS, (read, settings_of(wrapper))


_AS_DTYPE, _AS_PARAMETER, UNWRAP = leaf_of(as_dtype), leaf_of(as_subclass), leaf_of(unwrap)
_WITH_SETTINGS = leaf_of(with_settings)
_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
_VALUES = {torch.sparse_coo: info_of(Tensor._values), **dict.fromkeys(_COMPRESSED, info_of(Tensor.values))}
