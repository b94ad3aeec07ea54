"""Counts the floating-point operations of each recorded call, by PyTorch's formulas over a replay.

PyTorch has no formulas for the fused kernels that attention and recurrent layers use in eval mode on the CPU:
`torch.utils.flop_counter.FlopCounterMode` does not count them.  `FORMULAS` adds these, in the form of its
`custom_mapping`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch

from pytest_torchlens.capture import Recording
from pytest_torchlens.replay.calls import replay_calls


def flops_of(recording: Recording) -> tuple[int, ...]:
    """Return the floating-point operations of each call; a multiply-add counts as two.

    Raises
    ------
    NotReplayableError
        If a call cannot be run again.
    """
    from torch.utils.flop_counter import FlopCounterMode  # imports triton, which takes a tenth of a second

    counts, before = [], 0
    with FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
        for _ in replay_calls(recording):
            now = counter.get_total_flops()
            counts.append(now - before)
            before = now
    return tuple(counts)


class CountOnce:
    """Counts by `flops_of`, but only once for passes that make the same calls with outputs of the same shapes."""

    def __init__(self) -> None:
        self._calls: list[Any] | None = None
        self._counts: tuple[int, ...] = ()

    def __call__(self, recording: Recording) -> tuple[int, ...]:
        """Return the floating-point operations of each call; raises as `flops_of` does."""
        calls = [(call.info.name, *(output.shape for output in call.outputs)) for call in recording.calls]
        if calls != self._calls:
            self._counts, self._calls = flops_of(recording), calls
        return self._counts


Shape = tuple[int, ...]


def _attention(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    from torch.utils.flop_counter import sdpa_flop_count

    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


def _multi_head(query: Shape, key: Shape, value: Shape, width: int, heads: int, *_: Any, **__: Any) -> int:
    """Count the projections in and out, and the attention between them."""
    projected = 2 * width * (2 * prod(query[:-1]) * query[-1] + prod(key) + prod(value))
    each = (query[0], heads, query[1], width // heads), (key[0], heads, key[1], width // heads)
    return projected + _attention(*each, each[1])


def _encoder_layer(source: Shape, width: int, heads: int, *args: Any, **_: Any) -> int:
    """Count attention, then two linear layers."""
    weights = [shape for shape in args if isinstance(shape, tuple | torch.Size) and len(shape) == 2]  # noqa: PLR2004
    feed_forward = sum(2 * prod(source[:-1]) * prod(shape) for shape in weights[2:4])
    return _multi_head(source, source, source, width, heads) + feed_forward


def _recurrent(source: Shape, of_input: Shape, of_state: Shape, *_: Any, **__: Any) -> int:
    """Count one layer in one direction, over all steps."""
    return 2 * prod(source[:-1]) * (prod(of_input) + prod(of_state))


def _formulas() -> dict[Any, Callable[..., int]]:
    aten = torch.ops.aten
    by_name: dict[str, Callable[..., int]] = {
        "_scaled_dot_product_flash_attention_for_cpu": _attention,
        "_native_multi_head_attention": _multi_head,
        "_transformer_encoder_layer_fwd": _encoder_layer,
        "mkldnn_rnn_layer": _recurrent,
    }
    return {getattr(aten, name): formula for name, formula in by_name.items() if hasattr(aten, name)}


FORMULAS = _formulas()
"""Formulas for kernels that PyTorch's counter does not know, by operator; pass them to it as ``custom_mapping``."""
