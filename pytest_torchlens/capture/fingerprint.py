"""Digests of tensors: equal digests mean equal bytes, whatever the layout in memory."""

from __future__ import annotations

import ctypes

import torch
import xxhash

PLAIN = (torch.Tensor, torch.nn.Parameter)

_digest = xxhash.xxh3_64_intdigest
_arrays: dict[int, type[ctypes.Array[ctypes.c_char]]] = {}


def fingerprint(tensor: torch.Tensor) -> str:
    """Return the digest of a tensor's values as text, ``""`` where it has none that can be read.

    The digest is XXH3-64 over the bytes in logical order, prefixed with the kind for all but dense tensors: sparse
    tensors by indices and values, quantized ones by integers, scale and zero point, nested and wrapper tensors by
    their parts, meta tensors by shape.  Shape and dtype are no part of a dense digest: records keep them beside it.
    """
    digest = fingerprint_int(tensor)
    if digest is not None:
        return f"{digest:016x}"
    return _special(tensor)


def fingerprint_int(tensor: torch.Tensor) -> int | None:
    """Return the digest of a dense CPU tensor as a 64-bit number, None for any other tensor."""
    if type(tensor) not in PLAIN or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return None
    if tensor.is_contiguous():
        if tensor.is_conj() or tensor.is_neg() or tensor.is_nested or tensor.is_quantized:
            return None
        return digest_memory(tensor.data_ptr(), tensor.nbytes)
    if tensor.is_nested or tensor.is_quantized:
        return None
    return _strided(tensor)


def digest_memory(address: int, size: int) -> int:
    """Return the XXH3-64 digest of `size` bytes at `address`."""
    array = _arrays.get(size)
    if array is None:
        array = _arrays[size] = ctypes.c_char * size
    return _digest(array.from_address(address) if size else b"")


def _strided(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunction(), torch.no_grad():
        dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
        return digest_memory(dense.data_ptr(), dense.nbytes)


def _special(tensor: torch.Tensor) -> str:
    with torch._C.DisableTorchFunction(), torch.no_grad():
        tensor = tensor.detach()
        try:
            return _parts(tensor)
        except (RuntimeError, NotImplementedError, TypeError):
            return ""


def _parts(tensor: torch.Tensor) -> str:
    if type(tensor) not in PLAIN and hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return _join("wrapper", *(fingerprint(getattr(tensor, name)) for name in names))
    if tensor.is_meta:
        return f"meta:{tuple(tensor.shape)}:{tensor.dtype}"
    if tensor.is_nested:
        return _join("nested", *(fingerprint(part) for part in tensor.unbind()))
    if tensor.is_quantized:
        return _quantized(tensor)
    if tensor.layout is torch.sparse_coo:
        return _join("coo", fingerprint(tensor._indices()), fingerprint(tensor._values()))
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return _compressed(tensor.crow_indices(), tensor.col_indices(), tensor.values())
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return _compressed(tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    dense = tensor.resolve_conj().resolve_neg().cpu().contiguous().as_subclass(torch.Tensor)
    if dense.layout is not torch.strided:
        return ""
    return f"{digest_memory(dense.data_ptr(), dense.nbytes):016x}"


def _quantized(tensor: torch.Tensor) -> str:
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return _join("quantized", fingerprint(tensor.int_repr()), tensor.q_scale().hex(), tensor.q_zero_point())
    scales, zeros = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    return _join("quantized", *(fingerprint(part) for part in (tensor.int_repr(), scales, zeros)))


def _compressed(*parts: torch.Tensor) -> str:
    return _join("compressed", *(fingerprint(part) for part in parts))


def _join(kind: str, *parts: object) -> str:
    return "" if "" in parts else f"{kind}:{xxhash.xxh3_64_hexdigest('|'.join(map(str, parts)))}"
