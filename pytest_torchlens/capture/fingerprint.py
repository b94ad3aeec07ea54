"""Digests of tensors: equal digests mean equal bytes, whatever the layout in memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
import xxhash
from torch._C._functorch import is_functorch_wrapped_tensor

from pytest_torchlens.capture.storage import is_fake
from pytest_torchlens.capture.storage import is_freed
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.capture.values import CPU
from pytest_torchlens.capture.values import PLAIN
from pytest_torchlens.capture.values import Value
from pytest_torchlens.capture.values import sparse_parts
from pytest_torchlens.capture.wrappers import inner_tensors

# complex tensors may be lazily conjugated, quantized ones also have a scale
_UNUSUAL = frozenset([torch.complex32, torch.complex64, torch.complex128])
_UNUSUAL |= frozenset([torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4])

_digest = xxhash.xxh3_64_intdigest
_MOST_READERS = 4096
_readers: dict[int, Callable[[int], ctypes.Array[ctypes.c_char]]] = {}


def fingerprint(tensor: torch.Tensor) -> str:
    """Return the digest of a tensor's values as text; ``""`` if its values cannot be read.

    The digest is XXH3-64 over the bytes in logical order, prefixed with the kind for all but dense tensors: sparse
    tensors by indices and values, quantized ones by integers, scale and zero point, nested and wrapper tensors by
    their parts, meta and fake tensors by shape.  A dense digest does not cover shape and dtype: records store them
    separately.
    """
    quick = _quick(tensor) if type(tensor) in PLAIN else None
    if quick is not None:
        return f"{quick:016x}"
    dense = type(tensor) in PLAIN and tensor.layout is torch.strided and tensor.device.type == "cpu"
    if not dense or tensor.is_nested or tensor.dtype in _UNUSUAL or is_functorch_wrapped_tensor(tensor):
        return _special(tensor)
    return _strided(tensor)


def holds(tensor: torch.Tensor, value: Value) -> bool:
    """Return whether a tensor has the fingerprint of a value; shape and dtype are not compared."""
    quick = _quick(tensor) if type(value.digest) is int and type(tensor) in PLAIN else None
    return fingerprint(tensor) == value.fingerprint if quick is None else quick == value.digest


def begin_differently(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether the first bytes of two contiguous dense CPU tensors of one size differ; False for any others."""
    if type(one) not in PLAIN or type(other) not in PLAIN:
        return False
    addresses = _address(one), _address(other)
    if not (addresses[0] and addresses[1]) or (size := one.nbytes) != other.nbytes:
        return False
    count = min(size, _PREFIX)
    return digest_memory(addresses[0], count) != digest_memory(addresses[1], count)


_PREFIX = 256  # bytes


def _quick(tensor: torch.Tensor) -> int | None:
    """Return the digest of a contiguous dense CPU tensor with memory; None for any other."""
    address = _address(tensor)
    return digest_memory(address, tensor.nbytes) if address else None


def _address(tensor: torch.Tensor) -> int:
    """Return the address of a contiguous dense CPU tensor; 0 for any other, or without memory."""
    if not tensor.is_cpu or tensor.layout is not torch.strided or tensor.is_nested or tensor.dtype in _UNUSUAL:
        return 0
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # wrapped by functorch
        return 0
    return address if tensor.is_contiguous() and not tensor.is_neg() else 0


def digest_and_key(tensor: torch.Tensor, value: Value) -> tuple[int | str, int]:
    """Return the fingerprint, as a number for a contiguous dense CPU tensor, and the storage key of a tensor.

    `value` has the tensor's shape, dtype and device, which are slow to read twice.
    """
    if not value.contiguous or value.device is not CPU or value.dtype in _UNUSUAL or tensor.is_neg():
        return fingerprint(tensor), storage_key(tensor)
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # wrapped by functorch, or in oneDNN's layout
        return fingerprint(tensor), storage_key(tensor)
    size = value.nbytes
    if not address:
        return fingerprint(tensor) if size else _digest(b""), storage_key(tensor)
    reader = _readers.get(size) or _reader(size)
    return _digest(reader(address)), storage_key(tensor) if tensor.storage_offset() else address


def digest_memory(address: int, size: int) -> int:
    """Return the XXH3-64 digest of `size` bytes at `address`."""
    if not address:
        return _empty(size)
    return _digest((_readers.get(size) or _reader(size))(address))


def _reader(size: int) -> Callable[[int], ctypes.Array[ctypes.c_char]]:
    if len(_readers) > _MOST_READERS:
        _readers.clear()
    reader = _readers[size] = (ctypes.c_char * size).from_address
    return reader


def _empty(size: int) -> int:
    if size:
        raise RuntimeError("a tensor without memory has no digest")
    return _digest(b"")


def _strided(tensor: torch.Tensor) -> str:
    with torch._C.DisableTorchFunction(), torch.no_grad():
        if is_freed(tensor):
            return _without_memory(tensor)
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
        return f"{digest_memory(tensor.data_ptr(), tensor.nbytes):016x}"


def _without_memory(tensor: torch.Tensor) -> str:
    """Return the digest of a lazy zero of autograd, which has no memory; ``""`` for a tensor with a freed storage."""
    return fingerprint(torch.zeros_like(tensor, device="cpu")) if tensor._is_zerotensor() else ""


def _special(tensor: torch.Tensor) -> str:
    if is_fake(tensor):
        return f"fake:{tuple(tensor.shape)}:{tensor.dtype}"
    with torch._C.DisableTorchFunction(), torch.no_grad():
        try:
            return _parts(tensor.detach()) if type(tensor) in PLAIN else _of_subclass(tensor)
        except Exception:  # noqa: BLE001 - a subclass runs user code
            return ""


def _of_subclass(tensor: torch.Tensor) -> str:
    """Digest a tensor of another class, whose ``__torch_dispatch__`` must see no operation of ours."""
    if parts := inner_tensors(tensor) or _flattened(tensor):
        return digest_of_wrapper(parts)
    if not storage_key(tensor):  # a wrapper, which only its class can read
        return ""
    with torch._C._DisableTorchDispatch():
        return _parts(tensor.detach())


def digest_of_wrapper(parts: tuple[torch.Tensor, ...]) -> str:
    """Return the digest of a tensor that wraps others."""
    return _join("wrapper", *map(fingerprint, parts))


def _flattened(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if not hasattr(tensor, "__tensor_flatten__"):
        return ()
    names, _ = tensor.__tensor_flatten__()
    inner = (getattr(tensor, name) for name in names)
    return tuple([part for part in inner if isinstance(part, torch.Tensor)])


def _parts(tensor: torch.Tensor) -> str:
    if is_functorch_wrapped_tensor(tensor):
        return _join("functorch", fingerprint(torch._C._functorch.get_unwrapped(tensor)))
    if tensor.is_meta:
        return f"meta:{tuple(tensor.shape)}:{tensor.dtype}"
    if tensor.is_nested:
        return _join("nested", *(fingerprint(part) for part in tensor.unbind()))
    if tensor.is_quantized:
        return _quantized(tensor)
    if parts := sparse_parts(tensor):
        return _join("sparse", *(fingerprint(part) for part in parts))
    return _elsewhere(tensor)


def _elsewhere(tensor: torch.Tensor) -> str:
    """Digest a plain copy of a tensor on another device, in oneDNN's layout, or lazily conjugated."""
    if tensor.layout is torch._mkldnn:  # type: ignore[attr-defined]
        tensor = tensor.to_dense()
    dense = tensor.resolve_conj().resolve_neg().cpu().contiguous().as_subclass(torch.Tensor)
    return f"{digest_memory(dense.data_ptr(), dense.nbytes):016x}"


def _quantized(tensor: torch.Tensor) -> str:
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return _join("quantized", fingerprint(tensor.int_repr()), tensor.q_scale().hex(), tensor.q_zero_point())
    scales, zeros = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    return _join("quantized", *(fingerprint(part) for part in (tensor.int_repr(), scales, zeros)))


def _join(kind: str, *parts: object) -> str:
    return "" if "" in parts else f"{kind}:{xxhash.xxh3_64_hexdigest('|'.join(map(str, parts)).encode())}"
