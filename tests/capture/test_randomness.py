"""Random numbers: a traced run draws the same as a plain run, and a replay draws them again."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchlens.capture import record
from pytest_torchlens.history import ModelHistory
from tests.capture.programs import Programs
from tests.capture.programs import check
from tests.capture.programs import trace
from tests.models import Function

PROGRAMS = Programs()


@PROGRAMS.add(
    """
    input_1
    rand_1
    gt_1: rand_1
    mul_1: input_1 gt_1
    randnlike_1: input_1
    add_1: mul_1 randnlike_1
    dropout_1: add_1
    randperm_1
    getitem_1: input_1 randperm_1
    div_1: input_1
    bernoulli_1: div_1
    output_1: dropout_1
    output_2: getitem_1
    output_3: bernoulli_1
    """
)
def drawn_from_the_global_generator(x):
    mask = torch.rand(6) > 0.5
    return F.dropout(x * mask + torch.randn_like(x), 0.25), x[torch.randperm(6)], torch.bernoulli(x / 6)


@PROGRAMS.add(
    """
    input_1
    empty_1
    uniform_1: empty_1
    add_1: input_1 uniform_1
    randn_1
    add_2: add_1 randn_1
    output_1: add_2
    """
)
def drawn_from_a_generator_made_here(x):
    generator = torch.Generator().manual_seed(2)
    return x + torch.empty(6).uniform_(generator=generator) + torch.randn(6, generator=generator)


@PROGRAMS.add(
    """
    input_1
    rand_1
    rand_2
    rand_3
    sub_1: rand_1 rand_3
    add_1: sub_1 rand_2
    add_2: add_1 input_1
    output_1: add_2
    """
)
def reseeded_forked_and_rewound(x):
    state = torch.get_rng_state()
    first = torch.rand(6)
    torch.set_rng_state(state)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        other = torch.rand(6)
    return first - torch.rand(6) + other + x


@PROGRAMS.add(
    """
    input_1
    zeros_1
    zeros_2
    lstm_1: input_1 zeros_1 zeros_2 $lstm.weight_ih_l0..8
    lstm_2: input_1 zeros_1 zeros_2 $lstm.weight_ih_l0..8
    lstm_3: input_1 zeros_1 zeros_2 $lstm.weight_ih_l0..8
    view_1: lstm_1
    scaleddotproductattention_1: view_1
    output_1: scaleddotproductattention_1
    """,
    inputs=lambda: (torch.randn(2, 1, 3),),
)
class DropoutInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 2, 2, dropout=0.5)

    def forward(self, x):
        y = self.lstm(x)[0].view(1, 1, 2, 2)
        return F.scaled_dot_product_attention(y, y, y, dropout_p=0.5)


def test_random_operations_are_marked():
    _, history = trace(PROGRAMS["drawn_from_the_global_generator"], "grad")
    marked = [op.layer_label_short for op in history if op.function_is_random]
    assert marked == ["rand_1", "randnlike_1", "dropout_1", "randperm_1", "bernoulli_1"]
    _, history = trace(PROGRAMS["DropoutInside"], "grad")
    marked = [op.layer_type for op in history if op.function_is_random]
    assert marked == ["lstm"] * 3 + ["scaleddotproductattention"]


DROPOUTS = {
    "trained": lambda x: F.dropout(x, 0.5, True),
    "default": F.dropout,
    "idle": lambda x: F.dropout(x, 0.5, False),
    "idle-by-keyword": lambda x: F.dropout(x, p=0.5, training=False),
    "none": lambda x: F.dropout(x, 0.0, True),
    "all": lambda x: F.dropout(x, 1.0, True),
    "empty": lambda x: F.dropout(x[:0], 0.5, True),
    "bottom": lambda x: torch.dropout(x, p=0.5, train=True),
    "bottom-idle": lambda x: torch.dropout(x, p=0.5, train=False),
    "native": lambda x: torch.native_dropout(x, 0.5, True)[0],
    "alpha": lambda x: F.alpha_dropout(x, 0.5, True),
    "alpha-by-default": F.alpha_dropout,
    "feature": lambda x: F.feature_alpha_dropout(x[None], 0.5, training=True),
    "channels": lambda x: F.dropout1d(x[None], 0.5, True),
    "in-place": lambda x: F.dropout(x.clone(), 0.5, True, True),
}


@pytest.mark.parametrize("name", list(DROPOUTS))
def test_dropout_is_random_when_it_draws(name):
    before = torch.get_rng_state()
    history = ModelHistory(record(Function(DROPOUTS[name]), (torch.ones(4),), keep="all"))
    draws = not torch.equal(before, torch.get_rng_state())
    assert any(op.function_is_random for op in history) == draws
    torch.set_rng_state(before)
    assert torch.equal(history[-1].tensor_contents, DROPOUTS[name](torch.ones(4)))
    states = [op.func_rng_states for op in history if op.function_is_random]
    assert all(torch.equal(state, before) for state in states)


@PROGRAMS.parametrize()
def test_graph(program, mode):
    check(program, mode)
