"""Crops a call: runs the same function on a small part of its arguments, which is enough to show what it reads.

These functions compute each row, pixel or output feature from the same arguments, whatever the number of rows, pixels
and features.  So an effect that shows in a crop shows in the whole call, at almost no cost.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.functions import is_of_torch
from pytest_torchlens.validate.noise import is_dense

Tensors = dict[str, torch.Tensor]
ELEMENTWISE = frozenset(
    """abs add addcdiv addcmul atan2 bitwise_and bitwise_or bitwise_xor celu clamp clamp_max clamp_min clip clone
    contiguous cos cosh detach div dropout elu eq erf exp exp2 expm1 float floor floordiv fmax fmin fmod ge gelu gt half
    hardshrink hardsigmoid hardswish hardtanh le leaky_relu lerp log log10 log1p log2 logical_and logical_not logical_or
    logsigmoid lt masked_fill maximum minimum mish mod mul ne neg positive pow prelu reciprocal relu relu6 remainder
    round rsqrt selu sigmoid sign silu sin softplus sqrt square sub tan tanh threshold to trunc where""".split()
)


_OF_TWO_TENSORS = frozenset(["max", "min"])  # of one tensor, they reduce it


def is_elementwise(call: Call) -> bool:
    """Return whether each element of the result depends on one element of each tensor argument."""
    name = call.info.layer_type
    return name in ELEMENTWISE or (name in _OF_TWO_TENSORS and sum(1 for _ in edges_in(call)) > 1)


def crop_of(call: Call, tensors: Tensors) -> Tensors | None:
    """Return matching small parts of the tensor arguments of a call, by path; None for functions without a rule.

    In-place calls overwrite their arguments, so their parts are copied.
    """
    crop = _CROPS.get(call.info.layer_type)
    if crop is None or not has_rule(call):
        return None
    if not all(map(is_dense, tensors.values())):
        return None
    try:
        cropped = crop(call, {path: tensor.detach() for path, tensor in tensors.items()})
    except RuntimeError:  # PyTorch refuses views of a tensor that was given `data` in inference mode
        return None
    if cropped is None or not call.writes:
        return cropped
    return {path: tensor.clone() for path, tensor in cropped.items()}


def has_rule(call: Call) -> bool:
    """Return whether a call runs one of the functions that are known here, which compute from their arguments alone."""
    return call.info.layer_type in _CROPS and call.random is None and is_of_torch(call.info.func)


def _first(tensor: torch.Tensor, *dims: int) -> torch.Tensor:
    for dim in dims:
        tensor = tensor.narrow(dim, 0, min(1, tensor.shape[dim]))
    return tensor


def _rows(call: Call, tensors: Tensors) -> Tensors | None:
    """Take the first row of each tensor; they still broadcast with each other."""
    if any("." in path for path in tensors):
        return None
    return {path: _first(tensor, *range(tensor.dim() - 1)) for path, tensor in tensors.items()}


def _pool(call: Call, tensors: Tensors) -> Tensors | None:
    """Take the first channel of the first image: each channel is pooled by itself."""
    dims = int(_DIGIT.findall(call.info.layer_type)[0])
    return {path: _first(image, *range(image.dim() - dims)) for path, image in tensors.items()}


_DIGIT = re.compile(r"\d")


def _softmax(call: Call, tensors: Tensors) -> Tensors | None:
    """Take the first row in the dimension that is normalised."""
    dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else None)
    if type(dim) is not int:
        return None
    rows = {path: [other for other in range(row.dim()) if other != dim % row.dim()] for path, row in tensors.items()}
    return {path: _first(row, *rows[path]) for path, row in tensors.items()}


def _by_parameter(names: tuple[str, ...], tensors: Tensors) -> Tensors | None:
    """Return the tensors by the names of their parameters."""
    named = {names[int(path)] if path.isdigit() and int(path) < len(names) else path: path for path in tensors}
    return {name: tensors[path] for name, path in named.items()} if set(named) <= set(names) else None


def _by_path(names: tuple[str, ...], tensors: Tensors, cropped: Tensors) -> Tensors:
    return {path: cropped[names[int(path)] if path.isdigit() else path] for path in tensors}


def _with_names(*names: str) -> Callable[[Callable[[Call, Tensors], Tensors | None]], Any]:
    """Turn a function of tensors by parameter name into one of tensors by path."""

    def wrapped(crop: Callable[[Call, Tensors], Tensors | None]) -> Any:
        def by_path(call: Call, tensors: Tensors) -> Tensors | None:
            named = _by_parameter(names, tensors)
            cropped = None if named is None else crop(call, named)
            return None if cropped is None else _by_path(names, tensors, cropped)

        return by_path

    return wrapped


@_with_names("input", "weight", "bias")
def _linear(call: Call, tensors: Tensors) -> Tensors | None:
    """Take one row of the input, and one feature of the result."""
    if tensors["weight"].dim() != 2:  # noqa: PLR2004
        return None
    rows = _first(tensors["input"], *range(tensors["input"].dim() - 1))
    return {**{name: _first(tensor, 0) for name, tensor in tensors.items()}, "input": rows}


@_with_names("input", "weight", "bias")
def _conv(call: Call, tensors: Tensors) -> Tensors | None:
    """Take the part of the image that the kernel covers; the settings stay, so padding only adds to it."""
    image, weight = tensors["input"], tensors["weight"]
    if image.dim() != weight.dim():
        return None
    dilation = call.kwargs.get("dilation", call.args[5] if len(call.args) > _DILATION else 1)
    spread = max(dilation) if isinstance(dilation, tuple | list) else dilation
    for dim in range(2, image.dim()):
        length = spread * (weight.shape[dim] - 1) + 1
        image = image.narrow(dim, 0, min(length, image.shape[dim]))
    one_group = call.kwargs.get("groups", call.args[6] if len(call.args) > _GROUPS else 1) == 1
    features = {name: _first(tensor, 0) if one_group else tensor for name, tensor in tensors.items()}
    return features | {"input": image[:1]}


_DILATION, _GROUPS = 5, 6  # positions among the arguments of conv1d, conv2d and conv3d


@_with_names("input", "running_mean", "running_var", "weight", "bias", "training", "momentum")
def _batch_norm(call: Call, tensors: Tensors) -> Tensors | None:
    """In evaluation, where each number is normalised by itself, take one pixel of some channels."""
    training = call.kwargs.get("training", call.args[5] if len(call.args) > _TRAINING else False)
    image = tensors["input"]
    pixel = tensors | {"input": _first(image, 0, *range(2, image.dim()))}
    return None if training else {name: _some_channels(tensor) for name, tensor in pixel.items()}


def _some_channels(tensor: torch.Tensor) -> torch.Tensor:
    dim = _channel_dim(tensor)
    return tensor.narrow(dim, 0, min(_CHANNELS, tensor.shape[dim]))


def _channel_dim(tensor: torch.Tensor) -> int:
    return int(tensor.dim() > 1)


_TRAINING = 5
_CHANNELS = 20  # they are far apart in memory


def channels_apart(call: Call, cropped: list[tuple[str, torch.Tensor]]) -> torch.Tensor | None:
    """Return, as a mask for each tensor of a cropped call, the channels in which to change it.

    In evaluation `batch_norm` computes each channel of the result from that channel of its arguments alone, so one run
    tells the effects of all tensors apart.  None for any other function, and if there are fewer channels than tensors.
    """
    if call.info.layer_type != "batch_norm" or call.writes:
        return None
    channels = {tensor.shape[_channel_dim(tensor)] for _, tensor in cropped}
    if len(channels) != 1 or min(channels) < len(cropped):
        return None
    return _masks(len(cropped), min(channels), cropped[0][1].device)


@functools.lru_cache(128)
def _masks(count: int, channels: int, device: torch.device) -> torch.Tensor:
    """Return `count` masks, of which each has another share of the channels."""
    return torch.arange(channels, device=device) % count == torch.arange(count, device=device)[:, None]


def replaced(tensor: torch.Tensor, channels: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return an image, or a vector with a number for each channel, with the values of `other` in some channels."""
    return torch.where(channels.view(-1, *[1] * (tensor.dim() - 2)), other, tensor)


def differing(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor | None:
    """Return in which elements, in order, two tensors have other bits; None if they are not of one kind."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return None
    return (one.contiguous().view(torch.uint8) != other.contiguous().view(torch.uint8)).view(-1, one.itemsize).any(1)


@_with_names("input", "normalized_shape", "weight", "bias")
def _layer_norm(call: Call, tensors: Tensors) -> Tensors | None:
    """Take one row: each row is normalised by itself."""
    normalized = call.kwargs.get("normalized_shape", call.args[1] if len(call.args) > 1 else ())
    image = tensors["input"]
    return tensors | {"input": _first(image, *range(image.dim() - len(tuple(normalized))))}


@_with_names("input", "other")
def _matmul(call: Call, tensors: Tensors) -> Tensors | None:
    """Take one row of the first factor and one column of the second."""
    if set(tensors) != {"input", "other"} or any(tensor.dim() < 2 for tensor in tensors.values()):  # noqa: PLR2004
        return None
    one, other = tensors.values()
    return {"input": _first(one, *range(one.dim() - 1)), "other": _first(other, *range(other.dim() - 2), -1)}


@_with_names("query", "key", "value", "attn_mask")
def _attention(call: Call, tensors: Tensors) -> Tensors | None:
    """Take the first query of one head; it attends to every key."""
    causal = call.kwargs.get("is_causal", call.args[5] if len(call.args) > _IS_CAUSAL else False)
    if causal or call.kwargs.get("enable_gqa") or len({tensor.dim() for tensor in tensors.values()}) > 1:
        return None
    heads = {name: _first(tensor, *range(tensor.dim() - 2)) for name, tensor in tensors.items()}
    return {name: _first(tensor, -2) if name in _BY_QUERY else tensor for name, tensor in heads.items()}


def _fused_attention(call: Call, tensors: Tensors) -> Tensors | None:
    """Take two tokens of each sequence: a single token attends only to itself."""
    if not all(path.isdigit() for path in tensors) or tensors["0"].dim() != 3:  # noqa: PLR2004 - a mask by name
        return None
    sequences = [path for path in ("0", "1", "2") if path in tensors and tensors[path].dim() == tensors["0"].dim()]
    return tensors | {path: tensors[path][:1, :2] for path in sequences}


_IS_CAUSAL = 5
_BY_QUERY = ("query", "attn_mask")
_POOLS = ("avg", "max", "adaptive_avg", "adaptive_max")
_CROPS: dict[str, Callable[[Call, Tensors], Tensors | None]] = {
    **dict.fromkeys(ELEMENTWISE, _rows),
    **dict.fromkeys(["conv1d", "conv2d", "conv3d"], _conv),
    **dict.fromkeys(["matmul", "bmm", "mm"], _matmul),
    **dict.fromkeys(["native_multi_head_attention", "transformer_encoder_layer_fwd"], _fused_attention),
    **dict.fromkeys([f"{kind}_pool{dims}d" for kind in _POOLS for dims in (1, 2, 3)], _pool),
    "max_pool2d_with_indices": _pool,
    **dict.fromkeys(["softmax", "log_softmax"], _softmax),
    "linear": _linear,
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "scaled_dot_product_attention": _attention,
}
