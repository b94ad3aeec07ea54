"""Parts of a tensor small enough to be looked at."""

from __future__ import annotations

import torch

SAMPLE = 65_536


def spread_sample(tensor: torch.Tensor, limit: int = SAMPLE) -> torch.Tensor:
    """Return at most `limit` elements, evenly spread over all dimensions, as a view of as many dimensions."""
    while tensor.numel() > limit:
        lengths = tensor.shape
        widest = max(range(tensor.dim()), key=lengths.__getitem__)
        wanted = max(2, -(-tensor.numel() // limit))
        step = min(wanted, 2) if tensor.dim() > 1 else wanted
        tensor = tensor[(slice(None),) * widest + (slice(None, None, step),)]
    return tensor


def picture_sample(tensor: torch.Tensor, limit: int, *, is_batch: bool) -> torch.Tensor:
    """Return the part of a tensor that is drawn, as a view.

    Parameters
    ----------
    tensor
        Of any shape.
    limit
        Elements at most.
    is_batch
        Of three dimensions and more, take the first entry of the first: one sample of a batch.
    """
    if is_batch and tensor.dim() > 2:  # noqa: PLR2004 - a batch of rows is a picture by itself
        tensor = tensor[0]
    return spread_sample(tensor, limit)
