"""Statistics of a tensor, cheap enough for each training step.

Fast kernels compute sums and norms.  A slower, exact pass follows only where a norm shows that values are NaN or
infinite.  On an accelerator, nothing waits for the device until the result is read.  The exact pass also measures
activations for reports.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from dataclasses import replace

import torch

NOT_MEASURED = math.nan

CANCELLED = 1e-3
"""Share of the squared norm below which the variance is mostly rounding error, and is computed exactly."""

SAMPLE = 65_536


@dataclass(frozen=True)
class Statistics:
    """Statistics of the finite values of one tensor.

    Attributes
    ----------
    count : int
        Elements.
    mean, std, norm, min, max : float
        Mean, standard deviation, Euclidean norm, extremes; NaN if no value is finite.
    zeros : float
        Share of elements that are zero; of a larger tensor, in a sample of at most 65,536 elements.
    nans : int
        Elements that are NaN or infinite.
    """

    count: int
    mean: float
    std: float
    norm: float
    min: float
    max: float
    zeros: float
    nans: int

    def divided_by(self, scale: float) -> Statistics:
        """Return the statistics of the tensor divided by a positive number."""
        if scale == 1:
            return self
        sizes = {name: getattr(self, name) / scale for name in ("mean", "std", "norm", "min", "max")}
        return replace(self, **sizes)


class TensorStatistics:
    """The statistics of a tensor, whose values may change afterwards.

    Parameters
    ----------
    tensor
        Real or complex, of any dtype and device, with at least one element.  Real and imaginary parts count as
        separate elements.
    norm_only
        Measure only the norm and the NaN count, which takes a tenth of the time.
    """

    def __init__(self, tensor: torch.Tensor, *, norm_only: bool = False) -> None:
        plain = as_plain(tensor)
        self.count = plain.numel()
        is_near = plain.device.type == "cpu"
        quick = (_norm_only(plain) if norm_only else _quick(plain)) if is_near else None
        self._result: Statistics | torch.Tensor = quick or exact_statistics(plain.double() if is_near else plain)

    def statistics(self) -> Statistics:
        """Return the statistics; waits for the device."""
        if isinstance(self._result, torch.Tensor):
            mean, std, norm, low, high, zeros, nans, _ = self._result.tolist()
            self._result = Statistics(self.count, mean, std, norm, low, high, zeros, int(nans))
        return self._result


def as_plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values in a dtype whose sums do not overflow, as a view if possible."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor if tensor.dtype in {torch.float32, torch.float64} else tensor.float()


def _norm_only(plain: torch.Tensor) -> Statistics | None:
    norm = float(torch.linalg.vector_norm(plain))
    nothing = NOT_MEASURED
    if not math.isfinite(norm):
        return None
    return Statistics(plain.numel(), nothing, nothing, norm, nothing, nothing, nothing, 0)


def _quick(plain: torch.Tensor) -> Statistics | None:
    """Return the statistics in three passes over memory; None if they would be inaccurate."""
    norm, total = float(torch.linalg.vector_norm(plain)), float(plain.sum())
    count = plain.numel()
    mean = total / count
    variance = norm * norm - total * mean
    if not math.isfinite(variance) or variance < CANCELLED * norm * norm:
        return None
    low, high = plain.aminmax()
    std = math.sqrt(variance / max(count - 1, 1))
    return Statistics(count, mean, std, norm, float(low), float(high), _zeros(plain), 0)


def _zeros(plain: torch.Tensor) -> float:
    sample = spread_sample(plain)
    return 1 - int(torch.count_nonzero(sample)) / sample.numel()


def exact_statistics(plain: torch.Tensor, *, correction: int = 1) -> torch.Tensor:
    """Return statistics of all elements, without waiting for the device.

    Parameters
    ----------
    plain
        Dense and real, of 32-bit or 64-bit floats, one element at least.
    correction
        Subtracted from the number of finite values in the divisor of the variance: 1 for a sample, 0 for a population.

    Returns
    -------
    torch.Tensor
        Mean, standard deviation, norm, minimum and maximum of the finite values, NaN without any; the share of zeros;
        the number of elements that are NaN or infinite; the number that are NaN.
    """
    finite = plain.isfinite()
    count = finite.sum()
    values = plain.where(finite, 0)
    mean = values.sum() / count.clamp(min=1)
    deviation = torch.linalg.vector_norm((plain - mean).where(finite, 0)) / (count - correction).clamp(min=1).sqrt()
    low = plain.where(finite, math.inf).amin()
    high = plain.where(finite, -math.inf).amax()
    norm = torch.linalg.vector_norm(values)
    sizes = [size.where(count > 0, NOT_MEASURED) for size in (mean, deviation, norm, low, high)]
    facts = (*sizes, (plain == 0).sum() / plain.numel(), (~finite).sum(), plain.isnan().sum())
    dtype = torch.float32 if plain.device.type == "mps" else torch.float64  # Apple's GPUs have no doubles
    return torch.stack([fact.to(dtype) for fact in facts])


def spread_sample(tensor: torch.Tensor, limit: int = SAMPLE) -> torch.Tensor:
    """Return at most `limit` elements, evenly spread over all dimensions, as a view of as many dimensions."""
    while tensor.numel() > limit:
        lengths = tensor.shape
        widest = max(range(tensor.dim()), key=lengths.__getitem__)
        factor = max(2, -(-tensor.numel() // limit))
        step = min(factor, 2) if tensor.dim() > 1 else factor
        tensor = tensor[(slice(None),) * widest + (slice(None, None, step),)]
    return tensor


def picture_sample(tensor: torch.Tensor, limit: int, *, is_batch: bool) -> torch.Tensor:
    """Return the part of a tensor that is drawn, as a view.

    Parameters
    ----------
    tensor
        Of any shape.
    limit
        Maximum number of elements.
    is_batch
        Whether the first dimension of three or more is a batch, of which only the first sample is drawn.
    """
    if is_batch and tensor.dim() > 2:  # noqa: PLR2004 - a batch of rows is a picture by itself
        tensor = tensor[0]
    return spread_sample(tensor, limit)
