"""Makes inputs of other sizes: images that are taller or wider, sequences that are shorter or longer."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from typing import NamedTuple

import torch

from pytest_torchlens.checks.draws import is_whole
from pytest_torchlens.checks.draws import other_values
from pytest_torchlens.checks.exact import is_discrete
from pytest_torchlens.checks.inputs import Arguments
from pytest_torchlens.checks.inputs import inputs_of
from pytest_torchlens.checks.inputs import with_inputs
from pytest_torchlens.checks.subject import Subject

_IMAGE_DIMS = 4
_SEQUENCE_DIMS = 2
_STRIDES = (32, 28)
"""Images grow by so much: by the stride of most models, or else by two patches of 14."""
_SHORTEST = 4


class Size(NamedTuple):
    """Inputs of another size.

    Attributes
    ----------
    way
        In words: ``"on images of 96×64"``.
    given
        The inputs.
    beyond
        The same with other values in the part that goes beyond the first size; None if no part does.
    control
        The inputs of the first size with other values in as large a part at their end, or in half of them.
    """

    way: str
    given: Arguments
    beyond: Arguments | None = None
    control: Arguments | None = None


class _Dims(NamedTuple):
    """The sizes of the dimensions that change, from which tensors that have them are known."""

    first: tuple[int, ...]
    dims: tuple[int, ...]
    has_it: Callable[[torch.Tensor], bool]


def image_sizes(subject: Subject) -> Iterator[list[Size]]:
    """Yield sizes of images, each as a list of alternatives; nothing if no input is a batch of images."""
    images = (tensor for tensor in inputs_of(subject).values() if tensor.dim() == _IMAGE_DIMS)
    image = next((tensor for tensor in images if tensor.is_floating_point() and min(tensor.shape) > 0), None)
    if image is None:
        return
    height, width = image.shape[-2:]
    dims = _Dims(
        (height, width), (-2, -1), lambda tensor: tensor.dim() > _SEQUENCE_DIMS and tensor.shape[-2:] == (height, width)
    )
    for down, right in ((1, 1), (1, 0)):
        sizes = [(height + down * stride, width + right * stride) for stride in _STRIDES]
        yield [_size(subject, dims, size, f"on images of {size[0]}×{size[1]}") for size in sizes]


def sequence_sizes(subject: Subject) -> Iterator[list[Size]]:
    """Yield lengths of sequences of whole numbers, each as a list of alternatives; nothing if no input is one."""
    tables = (tensor for tensor in inputs_of(subject).values() if _is_table(tensor))
    ids = next((tensor for tensor in tables if tensor.dtype in (torch.int64, torch.int32)), None)
    if ids is None or ids.size(1) < _SHORTEST:
        return
    length = ids.size(1)
    dims = _Dims((length,), (1,), lambda tensor: _is_table(tensor) and tensor.size(1) == length)
    for other in (length // 2, length + length // 2):
        yield [_size(subject, dims, (other,), f"on sequences of {other}")]


def _is_table(tensor: torch.Tensor) -> bool:
    return tensor.dim() == _SEQUENCE_DIMS and is_discrete(tensor)


def _size(subject: Subject, dims: _Dims, size: tuple[int, ...], way: str) -> Size:
    def change(function: Callable[[torch.Tensor], torch.Tensor]) -> Arguments:
        return with_inputs(
            subject, lambda tensor: function(tensor) if dims.has_it(tensor) or _says(tensor, dims.first) else tensor
        )

    def resized(tensor: torch.Tensor) -> torch.Tensor:
        if _says(tensor, dims.first):
            return torch.tensor(size, dtype=tensor.dtype, device=tensor.device).expand_as(tensor).clone()
        for dim, length in zip(dims.dims, size, strict=True):
            tensor = _of_length(tensor.detach(), dim, length)
        return tensor if is_discrete(tensor) else other_values(tensor, seed=5)

    given = change(resized)
    grown = [(dim, old, new - old) for dim, old, new in zip(dims.dims, dims.first, size, strict=True) if new > old]
    if not grown:
        return Size(way, given)
    beyond = [(dim, more) for dim, _, more in grown]
    ends = [(dim, max(1, min(more, old // 2))) for dim, old, more in grown]

    def other_end(tensor: torch.Tensor, made: torch.Tensor, parts: list[tuple[int, int]]) -> torch.Tensor:
        return made if _says(tensor, dims.first) else _end_changed(made, parts)

    return Size(
        way,
        given,
        change(lambda tensor: other_end(tensor, resized(tensor), beyond)),
        change(lambda tensor: other_end(tensor, tensor.detach(), ends)),
    )


def _says(tensor: torch.Tensor, size: tuple[int, ...]) -> bool:
    """Return whether a tensor holds the sizes of images as numbers."""
    is_of_images = len(size) > 1 and is_discrete(tensor) and tensor.dim() and tensor.size(-1) == len(size)
    return bool(is_of_images) and bool((tensor == torch.tensor(size, device=tensor.device)).all())


def _of_length(tensor: torch.Tensor, dim: int, length: int) -> torch.Tensor:
    """Return a tensor that is cut, or goes on from its beginning; numbers that count up go on counting."""
    old = tensor.size(dim)
    if is_whole(tensor) and _counts_up(tensor.long(), dim):
        along = [length if at == dim % tensor.dim() else 1 for at in range(tensor.dim())]
        places = torch.arange(length, device=tensor.device).reshape(along)
        return (tensor.long().narrow(dim, 0, 1) + places).to(tensor.dtype)
    return tensor.index_select(dim, torch.arange(length, device=tensor.device) % old)


def _counts_up(tensor: torch.Tensor, dim: int) -> bool:
    return tensor.size(dim) > 1 and bool((tensor.diff(dim=dim) == 1).all())


def _end_changed(tensor: torch.Tensor, parts: list[tuple[int, int]]) -> torch.Tensor:
    """Return a tensor with other values, in the range of its own, in the last parts of its dimensions."""
    if tensor.dtype is torch.bool:
        return tensor
    made = tensor.clone()
    for dim, length in parts:
        start = tensor.size(dim) - length
        made.narrow(dim, start, length).copy_(_mirrored(tensor).narrow(dim, start, length))
    return made


def _mirrored(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose largest numbers are the least, and the other way round."""
    if tensor.is_complex():
        return torch.view_as_complex(_mirrored(torch.view_as_real(tensor.resolve_conj())))
    numbers = tensor.long() if is_whole(tensor) else tensor
    return (numbers.max() + numbers.min() - numbers).to(tensor.dtype)
