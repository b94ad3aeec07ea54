"""Counts the floating-point operations of each recorded call, by PyTorch's formulas over a replay.

PyTorch has no formulas for the fused kernels that attention and recurrent layers use in eval mode on the CPU:
`torch.utils.flop_counter.FlopCounterMode` does not count them.  `FORMULAS` adds these, in the form of its
`custom_mapping`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from math import prod
from typing import Any

import torch

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture.functions import FunctionInfo
from pytest_torchlens.capture.functions import is_of_torch
from pytest_torchlens.capture.functions import overloads_of
from pytest_torchlens.replay import NotReplayableError
from pytest_torchlens.replay import Player
from pytest_torchlens.replay.calls import replay_for


def flops_of(recording: Recording) -> tuple[int, ...]:
    """Return the floating-point operations of each call, by a replay; a multiply-add counts as two.

    Raises
    ------
    NotReplayableError
        If a call cannot be run again, or a formula does not fit it.
    """
    counts = FlopCounts()
    replay_for(counts, recording)
    return counts.by_call


class FlopCounts:
    """Listens to a replay, and counts the floating-point operations of each call while it runs.

    Attributes
    ----------
    mode
        The counter of PyTorch, to be entered around the call that is about to run; None if it can have no operations.
    """

    def __init__(self) -> None:
        self._counter = _counter_class()(display=False, custom_mapping=FORMULAS)
        self.mode: Any = None
        self._counts: list[int] = []

    @property
    def by_call(self) -> tuple[int, ...]:
        """The floating-point operations of each call so far."""
        return tuple(self._counts)

    def before(self, player: Player, call: Call) -> None:
        """Decide whether the next call is counted."""
        known = not call.info.opaque  # facts of opaque calls hold the model, which the cache would keep
        self.mode = None if known and _has_no_formula(call.info) else self._counter
        self._counter.counted = self._counter.error = None

    def after(self, number: int, call: Call, outputs: tuple[torch.Tensor, ...]) -> None:
        """Note the operations of a call that has run; raise `NotReplayableError` if they were not counted."""
        if self._counter.error is not None:
            raise NotReplayableError(f"no formula fits call {number} ({call.info.name}): {self._counter.error}")
        if self.mode is not None and self._counter.counted is None:
            raise NotReplayableError(f"the counter was not entered around call {number} ({call.info.name})")
        self._counts.append(self._counter.counted or 0)


@functools.cache
def _has_no_formula(info: FunctionInfo) -> bool:
    """Return whether a function runs no operator that has a formula: its count is 0."""
    if info.name in _WITHOUT_PRODUCTS and is_of_torch(info.func):
        return True
    overloads = [] if isinstance(info.func, types.FunctionType) else overloads_of(info.func, info.name)
    known = _counter_class()(display=False, custom_mapping=FORMULAS).flop_registry
    return bool(overloads) and not any(one.overloadpacket in known or _is_composite(one) for one in overloads)


def _is_composite(overload: torch._ops.OpOverload) -> bool:
    """Return whether an overload runs other operators; one of TorchScript alone, which takes no tensor, does not."""
    try:
        return overload.has_kernel_for_dispatch_key(_COMPOSITE)
    except RuntimeError:
        return False


_WITHOUT_PRODUCTS = frozenset(
    """batch_norm layer_norm group_norm instance_norm relu relu6 hardswish hardsigmoid silu gelu softmax dropout
    max_pool2d avg_pool2d adaptive_avg_pool2d flatten reshape contiguous chunk transpose permute pad""".split()
)
"""Functions of PyTorch that run other operators, or are Python's, and multiply no matrices."""
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


@functools.cache
def _counter_class() -> type[Any]:
    from torch.utils.flop_counter import FlopCounterMode  # imports triton, which takes a tenth of a second

    class Counter(FlopCounterMode):
        """Notes what it counted when it ends, and the error of a formula, which is not the call's."""

        counted: int | None = None
        error: Exception | None = None

        def __exit__(self, *args: object) -> Any:
            self.counted = self.get_total_flops()
            return super().__exit__(*args)  # type: ignore[no-untyped-call]

        def _count_flops(self, *args: Any) -> Any:
            try:
                return super()._count_flops(*args)  # type: ignore[no-untyped-call]
            except Exception as error:  # noqa: BLE001 - a formula may not fit any arguments
                self.error = error
                return args[1]

    return Counter


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
