"""Opens fused attention: runs the model once more with `scaled_dot_product_attention` as its steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

from pytest_torchlens.capture.functions import Function
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.edit.live import run_again
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import close
from pytest_torchlens.replay import NotReplayableError


def attention_in_steps(  # noqa: PLR0913 - the signature of the function that it stands for
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Return what `torch.nn.functional.scaled_dot_product_attention` returns, by its definition.

    Scores are ``query @ key.T * scale`` plus the mask, the pattern is their softmax, the result ``pattern @ value``.
    With grouped queries each head of keys and values serves several of queries.

    Parameters
    ----------
    query, key, value
        Of shape (…, heads, positions, features).
    attn_mask, dropout_p, is_causal, scale, enable_gqa
        As there.
    """
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.size(-1)) if scale is None else scale)
    if is_causal:
        shape = query.size(-2), key.size(-2)
        attn_mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None:
        hides = attn_mask.dtype is torch.bool
        scores = scores.masked_fill(attn_mask.logical_not(), -math.inf) if hides else scores + attn_mask
    pattern = torch.softmax(scores, dim=-1)
    if attn_mask is not None:  # positions that see nothing get zeros
        pattern = pattern.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0)
    if dropout_p:
        pattern = F.dropout(pattern, dropout_p, training=True)
    return pattern @ value


STEPS: Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sdpa": (F.scaled_dot_product_attention, attention_in_steps),
}
"""What can be opened, by name: the function and its steps."""


def expanded(history: ModelHistory, names: Iterable[str]) -> ModelHistory:
    """Return the history of the same pass with fused functions as their steps.

    Its ``expansions`` say by how much the model's outputs differ.

    Raises
    ------
    ValueError
        If a name is not known, or the pass has no such function.
    NotReplayableError
        If the model or its inputs are no longer there.
    """
    if history.edits:
        raise NotReplayableError(
            "edit: expand: the pass is edited already: expand the pass without edits, as in "
            "edited.original.edit(expand={'sdpa'}), and edit that"
        )
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        if name not in STEPS:
            hint = close(name, STEPS) or f"there is: {', '.join(STEPS)}"
            raise ValueError(f"expand: nothing is known of {name!r}; {hint}")
        if not any(call.info.func is STEPS[name][0] for call in history.recording.calls):
            raise ValueError(f"expand: {history.model_name} calls no {STEPS[name][0].__name__} in this pass")
    recording = run_again(history, bodies=bodies_of({*history.expansions, *names}))
    opened = ModelHistory(recording, history.options)
    opened.arguments = history.arguments
    opened.expansions = history.expansions | dict.fromkeys(names, _difference(history, opened))
    return opened


def bodies_of(names: Iterable[str]) -> dict[Function, Callable[..., Any]]:
    """Return what runs in the place of each function of these names."""
    return dict(STEPS[name] for name in names)


def _difference(before: ModelHistory, after: ModelHistory) -> str:
    pairs = zip(tensors(before.recording.output), tensors(after.recording.output), strict=True)
    reals = [(one.detach(), other.detach()) for one, other in pairs if one.is_floating_point() and one.numel()]
    difference = max((float((one - other).abs().max()) for one, other in reals), default=0.0)
    return f"outputs differ by at most {difference:.2g}"
