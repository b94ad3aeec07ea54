"""Equal parallel streams in a loop: each has its own layers, even if they read each other."""

from __future__ import annotations

import pytest
import torch

from tests.history.loop_programs import trace
from tests.models import Function

PASSES = 3


def apart(xs):
    return [torch.sin(torch.cos(a)) for a in xs]


def in_a_ring(xs):
    return [torch.sin(a) + torch.cos(b) for a, b in zip(xs, xs[1:] + xs[:1], strict=True)]


def handed_round(xs):
    return [torch.sin(torch.cos(a)) for a in xs[1:] + xs[:1]]


def of_both_neighbours(xs):
    return [torch.tanh(xs[i - 1] + xs[i] * 0.5 + xs[(i + 1) % len(xs)]) for i in range(len(xs))]


def of_all(xs):
    mean = torch.stack(xs).mean(0)
    return [torch.sin(a - mean) for a in xs]


def looped(step):
    def forward(x):
        xs = list(x)
        for _ in range(PASSES):
            xs = step(xs)
        return torch.stack(xs)

    return forward


@pytest.mark.parametrize("step", [apart, in_a_ring, handed_round, of_both_neighbours, of_all])
@pytest.mark.parametrize("streams", [2, 3, 5, 17, 40])
def test_each_stream_has_a_pass_of_each_layer(step, streams):
    history = trace(Function(looped(step)), torch.rand(streams, 2))
    body = [op for op in history if op.layer_type in ("sin", "cos", "add", "sub", "mul", "tanh")]
    assert {op.layer_passes_total for op in body} == {PASSES}
    layers = {op.layer_label for op in body}
    assert len(layers) * PASSES == len(body)


def test_streams_one_after_the_other():
    def forward(x):
        out = []
        for a in x:
            b = a
            for _ in range(PASSES):
                b = torch.sin(torch.cos(b))
            out.append(b)
        return torch.stack(out)

    history = trace(Function(forward), torch.rand(20, 2))
    assert {op.layer_passes_total for op in history if op.layer_type in ("sin", "cos")} == {PASSES}
