"""Fills weights and inputs with values that are the same under every PyTorch version.

PyTorch's initial values and random streams change between releases; NumPy promises the raw output of its
bit generators.  So each tensor gets its own Philox stream, keyed by seed, name and shape: its values do not depend
on the order of filling, on other tensors or on a global generator.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from pytest_torchlens.capture.looks import named_buffers
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.capture.values import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Mapping

CHUNK = 1 << 16
"""Numbers drawn at a time: few enough to stay in the processor's cache."""


def fill_model(model: nn.Module, seed: int = 0, names: Mapping[str, str] | None = None) -> None:
    """Fill parameters and running statistics of `model` in place.

    Matrices and kernels are uniform with bound ``sqrt(3 / fan_in)``, which keeps the variance from layer to
    layer; scales (norm weights) lie in 0.8 to 1.2, biases within 0.1 of zero, running means too, running
    variances in 0.5 to 1.5.  Tied parameters are filled once, under their first name.  Other buffers and integer
    parameters hold constants and stay unchanged.

    Parameters
    ----------
    model
        The model.
    seed
        Of all streams.
    names
        Other names to draw some values under, by the tensor's name: one that was renamed keeps its values.

    Raises
    ------
    ValueError
        If a parameter has no shape yet (lazy modules); the message names it.
    """
    with torch.no_grad():
        for name, tensor, (low, high) in _fillable(model, names or {}):
            _fill(tensor, low, high, seed, name)


def fill_tensor(
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    low: float = 0.0,
    high: float = 1.0,
    *,
    seed: int = 0,
    name: str = "input",
) -> torch.Tensor:
    """Return a tensor with values in ``[low, high)`` that depend only on seed, name and shape.

    Integers are whole numbers in that range, so that ``low=0, high=10`` gives 0 to 9.
    """
    tensor = torch.empty(shape, dtype=dtype)
    _fill(tensor, low, high, seed, name)
    return tensor


def _fillable(model: nn.Module, names: Mapping[str, str]) -> Iterator[tuple[str, torch.Tensor, tuple[float, float]]]:
    for now, parameter in named_parameters(model):
        name = names.get(now, now)
        if is_lazy(parameter):
            raise ValueError(
                f"parameter {now!r} of {type(model).__name__} has no shape yet (lazy module): "
                "give the module its sizes, or call it once before"
            )
        if parameter.is_floating_point() or parameter.is_complex():
            yield name, parameter, _parameter_range(name, tuple(parameter.shape))
    for now, buffer in named_buffers(model):
        name = names.get(now, now)
        if bounds := _STATISTICS.get(name.rpartition(".")[2]):
            yield name, buffer, bounds


_STATISTICS = {"running_mean": (-0.1, 0.1), "running_var": (0.5, 1.5)}


def _parameter_range(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    leaf = name.rpartition(".")[2]
    if leaf.endswith("bias"):
        return -0.1, 0.1
    if len(shape) <= 1 or "scale" in leaf or "gamma" in leaf:
        return 0.8, 1.2
    bound = math.sqrt(3 / max(1, math.prod(shape[1:])))
    return -bound, bound


def _fill(tensor: torch.Tensor, low: float, high: float, seed: int, name: str) -> None:
    """Write the numbers in logical order, whatever the strides."""
    in_memory = tensor.is_cpu and tensor.is_contiguous() and not tensor.is_neg()
    in_place = type(tensor) in PLAIN and tensor.dtype is torch.float32 and in_memory
    size = tensor.numel() * (2 if tensor.is_complex() else 1)
    values = tensor.detach().view(-1).numpy() if in_place else np.empty(size, dtype=np.float32)
    start, scale = 0, np.float32(high - low) * np.float32(2**-24)
    for words in _words(size, seed, name, tuple(tensor.shape)):
        part = values[start : start + len(words)]
        np.multiply(words, scale, out=part, dtype=np.float32, casting="unsafe")
        part += np.float32(low)
        start += len(words)
    if not in_place:
        tensor.copy_(_as_dtype(torch.from_numpy(values), tensor))
    if not tensor.is_complex() and tensor.dtype is not torch.bool:
        tensor.clamp_(max=_below(high, tensor.dtype))


def _below(high: float, dtype: torch.dtype) -> float:
    """Return the greatest value below `high`: scaling and rounding may reach `high` itself."""
    if not dtype.is_floating_point:
        return math.ceil(high) - 1
    info = torch.finfo(dtype)
    return high - max(abs(high) * info.eps, info.tiny)


def _as_dtype(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if like.is_complex():
        return torch.view_as_complex(values.reshape(*like.shape, 2))
    shaped = values.reshape(like.shape)
    return shaped if like.is_floating_point() else shaped.floor()


def _words(size: int, seed: int, name: str, shape: tuple[int, ...]) -> Iterator[npt.NDArray[np.uint32]]:
    """Yield `size` numbers of 24 bits in chunks, two from each 64-bit word."""
    key = hashlib.blake2b(json.dumps([seed, name, shape]).encode(), digest_size=16).digest()
    generator = np.random.Philox(key=np.frombuffer(key, dtype="<u8").astype(np.uint64))
    for start in range(0, size, CHUNK):
        count = min(CHUNK, size - start)
        words = generator.random_raw((count + 1) // 2).astype("<u8", copy=False).view("<u4")[:count]
        words >>= np.uint32(8)
        yield words
