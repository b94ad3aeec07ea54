"""Makes other values for the arguments of a call: for tensors (`Noise`) and for plain numbers (`other_numbers`).

The values are cheap to make and stay in the range that the called functions accept.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import torch

from pytest_torchlens.capture import Call
from pytest_torchlens.capture.functions import is_of_torch
from pytest_torchlens.capture.memory import detached
from pytest_torchlens.capture.storage import is_fake
from pytest_torchlens.capture.storage import reach
from pytest_torchlens.capture.values import PLAIN
from pytest_torchlens.capture.wrappers import inner_tensors
from pytest_torchlens.capture.wrappers import is_wrapper
from pytest_torchlens.capture.wrappers import map_parts

_SMALLEST = 127  # the largest number of the smallest integers
_NAMES_OF_STORED = """bits8 bits16 bits1x8 bits2x4 bits4x2 bcomplex32 float4_e2m1fn_x2
int1 int2 int3 int4 int5 int6 int7 uint1 uint2 uint3 uint4 uint5 uint6 uint7""".split()
_STORAGE_DTYPES = frozenset(getattr(torch, name) for name in _NAMES_OF_STORED if hasattr(torch, name))
"""Dtypes that PyTorch stores and casts, but does not compute with."""
_WITHOUT_ORDER = _STORAGE_DTYPES | {torch.bool}
_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}
_PLANE = 2  # dimensions of a compressed tensor without batch dimensions
_FIRST = 1 << 14  # number of random numbers in the first table of a dtype
_BLOCK = 1 << 20  # the most; larger tables repeat them


_STAND_INS = dict.fromkeys([torch.uint16, torch.uint32, torch.uint64], torch.int64) | {torch.complex32: torch.complex64}
_STAND_INS |= {
    dtype: torch.float32
    for name, dtype in vars(torch).items()
    if isinstance(dtype, torch.dtype) and name.startswith("float8_")
}
"""Dtypes that lack `min`, `where` and others, and the dtypes to compute their values in."""


def _of_values(method: Callable[..., Iterator[torch.Tensor]]) -> Callable[..., Iterator[torch.Tensor]]:
    """Wrap a method so that it takes the values alone, and makes those of dtypes that lack functions in another one."""

    @functools.wraps(method)
    def values(self: Noise, tensor: torch.Tensor, *options: bool) -> Iterator[torch.Tensor]:
        tensor = detached(tensor)
        stand_in = _STAND_INS.get(tensor.dtype)
        if stand_in is None or not is_dense(tensor):
            return method(self, tensor, *options)
        others = (other.to(tensor.dtype) for other in method(self, tensor.to(stand_in), *options))
        return (_laid_out_like(tensor, other) for other in others)

    return values


class Noise:
    """Makes perturbed copies of tensors from tables of numbers between 0.5 and 1, drawn once from its own generator."""

    def __init__(self) -> None:
        self._tables: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}
        self._views: dict[tuple[Any, ...], torch.Tensor] = {}
        """Parts of the tables in a shape and with strides; many tensors of a model are alike."""

    @_of_values
    def variants(self, tensor: torch.Tensor, gentle: bool = False) -> Iterator[torch.Tensor]:
        """Yield tensors of the same shape, dtype and strides with other values, the mildest first.

        Floats are first replaced by the table itself, which costs nothing; the caller must not write to it.  Then
        they are scaled by it, which keeps signs, zeros and indices in range; then reflected; then replaced.  Integers
        are reordered, then moved to the other end of their range.  With `gentle`, values are only scaled, reordered or
        repeated.  Sparse and nested tensors are halved; sparse ones then lose an entry.  The integers of quantized
        tensors are reordered, then replaced by the smallest and the largest.  Meta and fake tensors yield nothing.
        """
        if not is_dense(tensor):
            yield from _of_another_kind(tensor, self)
        elif not tensor.numel():
            return
        elif tensor.dtype in _STORAGE_DTYPES:
            yield tensor.view(torch.uint8).bitwise_not().view(tensor.dtype)
        elif tensor.dtype is torch.bool:
            yield from (tensor.logical_not(), torch.zeros_like(tensor), torch.ones_like(tensor))
            yield from _boards(tensor, False, True)
        elif tensor.is_floating_point() or tensor.is_complex():
            yield from self._floats(tensor, gentle)
        else:
            yield from _integers(tensor, gentle)

    @_of_values
    def extremes(self, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield extreme values: the largest numbers of the dtype, zero, and plus and minus one, which label classes."""
        if not (is_dense(tensor) and tensor.numel()) or tensor.dtype in _WITHOUT_ORDER:
            return
        if not (tensor.is_floating_point() or tensor.is_complex()):
            whole = torch.iinfo(tensor.dtype)
            yield from (torch.full_like(tensor, number) for number in (0, 1, whole.max, whole.min))
            return
        largest = torch.finfo(tensor.dtype).max
        for number in (largest, -largest, 0.0):
            yield _laid_out_like(tensor, self._table(tensor) * number)
        yield from (torch.full_like(tensor, number) for number in (1, -1))

    @_of_values
    def not_finite(self, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield NaN and infinities, for floats."""
        if not (is_dense(tensor) and tensor.numel()) or tensor.dtype in _STORAGE_DTYPES:
            return
        if tensor.is_floating_point() or tensor.is_complex():
            for number in (float("nan"), float("inf"), float("-inf")):
                yield torch.full_like(tensor, number)

    @_of_values
    def instead(self, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield values that do not hide another argument: different and not zero; positive; zero; three."""
        if is_dense(tensor) and tensor.is_floating_point() and tensor.numel() and tensor.dtype not in _STORAGE_DTYPES:
            finite = torch.nan_to_num(tensor, nan=1.0, posinf=1.0, neginf=-1.0)
            yield _laid_out_like(tensor, self._table(tensor) * torch.where(finite == 0, 1, finite))
            yield _laid_out_like(tensor, self._table(tensor))
            yield torch.zeros_like(tensor)
            yield torch.full_like(tensor, 3)
            return
        if is_dense(tensor) and tensor.numel() and tensor.dtype not in _WITHOUT_ORDER and not tensor.is_complex():
            yield _laid_out_like(
                tensor, torch.arange(tensor.numel(), device=tensor.device).view(tensor.shape) % _SMALLEST
            )
            yield torch.ones_like(tensor)
            yield torch.full_like(tensor, 3)  # for a divisor: zero is none, and by one there is no remainder
        yield from self.variants(tensor)

    def _floats(self, tensor: torch.Tensor, gentle: bool) -> Iterator[torch.Tensor]:
        table = self._table(tensor)
        if not gentle:
            yield _laid_out_like(tensor, table if table.dtype == tensor.dtype else table * (1 + 0.5j))
        yield _laid_out_like(tensor, table * tensor)
        if gentle:
            if tensor.dim():
                yield _laid_out_like(tensor, tensor.flip(0))
                yield _laid_out_like(tensor, tensor[:1].expand_as(tensor))
                yield _laid_out_like(tensor, _unit_box(tensor).expand_as(tensor))
            return
        yield _laid_out_like(tensor, torch.where(tensor == 0, table, -tensor))
        finite = torch.nan_to_num(tensor.abs(), nan=0.0, posinf=0.0) if not tensor.is_complex() else tensor.abs()
        largest = float(finite.max())
        for scale in (8.0 * (largest or 1.0), 1e4):
            yield _laid_out_like(tensor, (table - 0.75) * scale)

    def _table(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return numbers in a tensor's shape, strides (if it has no gaps) and dtype (of the real part, if complex)."""
        kind = tensor.real.dtype if tensor.is_complex() else tensor.dtype
        look = kind, tensor.device, tensor.shape, tensor.stride()
        view = self._views.get(look)
        if view is None:
            view = self._views[look] = self._new_view(tensor, kind)
        return view

    def _new_view(self, tensor: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        key, count = (kind, tensor.device), tensor.numel()
        table = self._tables.get(key)
        if table is None or table.numel() < count:
            # a model's crops grow little by little
            size = max(count, _FIRST if table is None else min(2 * table.numel(), _BLOCK))
            generator = torch.Generator().manual_seed(0)
            block = torch.empty(min(size, _BLOCK), device="cpu", dtype=torch.float32)
            block = block.uniform_(0.5, 1.0, generator=generator).to(device=tensor.device, dtype=kind)
            self._views.clear()  # they hold the smaller table
            table = self._tables[key] = block.repeat(-(-size // block.numel()))
        gapless = reach(tensor) == count
        return table.as_strided(tensor.shape, tensor.stride()) if gapless else table[:count].view(tensor.shape)


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is an ordinary block of numbers; a subclass may compute differently."""
    plain = type(tensor) in PLAIN and tensor.layout is torch.strided
    return plain and not (tensor.is_nested or tensor.is_quantized or tensor.is_meta)


def _of_another_kind(tensor: torch.Tensor, noise: Noise) -> Iterator[torch.Tensor]:
    """Yield other values for sparse, nested and quantized tensors and subclasses, if PyTorch can compute them."""
    if tensor.is_meta or is_fake(tensor):
        return
    if is_wrapper(tensor):
        yield from _variants_of_parts(tensor, noise)
        return
    try:
        yield from _quantized_variants(tensor) if tensor.is_quantized else _halved_or_shorter(tensor)
    except Exception:  # noqa: BLE001 - a subclass runs user code, and some layouts lack functions
        return


def _variants_of_parts(tensor: torch.Tensor, noise: Noise) -> Iterator[torch.Tensor]:
    """Yield a wrapper around other values of one of its tensors, the others unchanged."""
    parts = inner_tensors(tensor)
    for place in range(len(parts)):
        for other in noise.variants(parts[place]):
            changed = iter((*parts[:place], other, *parts[place + 1 :]))
            yield map_parts(tensor, lambda _, changed=changed: next(changed))  # type: ignore[misc]


def _halved_or_shorter(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield halved values; for sparse tensors also one with an entry less; with entries if there is none; then ones."""
    yield tensor * 0.5
    if tensor.layout is torch.sparse_coo and tensor._nnz():
        indices, values = tensor._indices()[:, :-1], tensor._values()[:-1]
        coalesced = tensor.is_coalesced()
        yield torch.sparse_coo_tensor(indices, values, tensor.shape, is_coalesced=coalesced, check_invariants=False)
    elif tensor.layout is torch.sparse_coo and tensor.numel():
        one = torch.zeros(tensor.sparse_dim(), 1, dtype=torch.long, device=tensor.device)
        values = tensor._values().new_ones(1, *tensor.shape[tensor.sparse_dim() :])
        yield torch.sparse_coo_tensor(one, values, tensor.shape, is_coalesced=True, check_invariants=False)
    if tensor.layout in _COMPRESSED and tensor.dim() == _PLANE and len(tensor.values()):
        ends, places = (getattr(tensor, name)() for name in _COMPRESSED[tensor.layout])
        values = tensor.values()[:-1]
        shape, layout = tensor.shape, tensor.layout
        yield torch.sparse_compressed_tensor(
            ends.clamp(max=len(values)), places[:-1], values, shape, layout=layout, check_invariants=False
        )
    elif tensor.layout in (torch.sparse_csr, torch.sparse_csc) and tensor.dim() == _PLANE and tensor.numel():
        yield torch.ones(tensor.shape, dtype=tensor.dtype, device=tensor.device).to_sparse(layout=tensor.layout)
    yield _with_ones(tensor)


def _with_ones(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with ones where it has entries: those that it has may all be zeros."""
    if tensor.is_nested or tensor.layout is torch.strided:  # strided subclasses
        return torch.ones_like(tensor)
    other = tensor.clone()
    (other._values() if other.layout is torch.sparse_coo else other.values()).fill_(1)
    return other


def _quantized_variants(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the stored integers reordered, then the smallest and the largest of their dtype, at the same scale."""
    yield tensor.flatten().flip(0).view(tensor.shape)
    for bound in (float("-inf"), float("inf")):
        yield torch.quantize_per_tensor(
            torch.full(tensor.shape, bound, dtype=torch.float32), tensor.q_scale(), tensor.q_zero_point(), tensor.dtype
        )


def _unit_box(tensor: torch.Tensor) -> torch.Tensor:
    """Return the box from 0 to 1 by its corners, after the index of the first image: safe for all box functions."""
    count = tensor.shape[-1]
    return (torch.arange(count, device=tensor.device) >= count / 2).to(tensor.dtype)


def _integers(tensor: torch.Tensor, gentle: bool) -> Iterator[torch.Tensor]:
    yield _laid_out_like(tensor, tensor.flatten().flip(0).view(tensor.shape))
    if gentle:
        return
    low, high = tensor.min(), tensor.max()
    if low != high:
        yield _laid_out_like(tensor, torch.where(tensor == high, low, high))
        yield from (torch.full_like(tensor, bound.item()) for bound in (high, low))
        return
    other = 0 if low != 0 else 1
    yield _laid_out_like(tensor, torch.full_like(tensor, other))
    yield from _boards(tensor, low.item(), other)


def _boards(tensor: torch.Tensor, one: float, other: float) -> Iterator[torch.Tensor]:
    """Yield two numbers like the fields of a chess board, both ways round: another order along every dimension."""
    if tensor.numel() > 1:
        field = torch.zeros(tensor.shape, dtype=torch.long, device=tensor.device)
        for dim, size in enumerate(tensor.shape):
            field += torch.arange(size, device=tensor.device).view(-1, *[1] * (tensor.dim() - dim - 1))
        for white, black in ((one, other), (other, one)):
            yield _laid_out_like(tensor, torch.full_like(tensor, white).masked_fill_(field % 2 == 1, black))


def _laid_out_like(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return `values` in the memory layout of `tensor`."""
    if values.stride() == tensor.stride() and values.dtype == tensor.dtype:
        return values
    laid_out = torch.empty_like(tensor, memory_format=torch.preserve_format)
    return laid_out.copy_(values)


def other_numbers(call: Call, truth_values: bool = False) -> Iterator[tuple[str, Any, Call]]:
    """Yield argument and value of each number in a call of a PyTorch function, and the call with another number.

    A list of ones, as the number of bins in each dimension, counts as a number.

    With `truth_values`, True and False are numbers too, and not flags that say what to do.
    """
    if not is_of_torch(call.info.func):
        return
    for at, number in enumerate(call.args):
        for instead in _instead_of(number, truth_values):
            yield str(at), number, with_arguments(call, (*call.args[:at], instead, *call.args[at + 1 :]), call.kwargs)
    for name, number in call.kwargs.items():
        for instead in _instead_of(number, truth_values):
            yield name, number, with_arguments(call, call.args, {**call.kwargs, name: instead})


def _instead_of(number: Any, truth_values: bool) -> list[Any]:
    if type(number) is bool:
        return [not number] if truth_values else []
    if type(number) in (tuple, list):
        ones = number and all(type(one) is int and one == 1 for one in number)
        return [type(number)([2] * len(number))] if ones else []
    if type(number) is int:
        return [other for other in _INSTEAD if type(other) is int and other != number]
    return [float(other) for other in _INSTEAD if other != number] if type(number) is float else []


def with_arguments(call: Call, args: tuple[object, ...], kwargs: dict[str, object]) -> Call:
    """Return the same call with other arguments."""
    other = copy.copy(call)
    other.args, other.kwargs = args, kwargs
    return other


_INSTEAD = (1, 0, 0.5, 2)
