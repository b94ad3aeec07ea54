"""Edits that a pass in eval mode does not show in its values: those that alter the training are no refactor."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from pytest_torchlens.baseline.align import StepAlignment
from pytest_torchlens.baseline.compare import compare
from pytest_torchlens.records import Change
from tests.baseline.samples import Made
from tests.baseline.samples import an_input
from tests.baseline.samples import filled
from tests.baseline.samples import snapshot_of

X = an_input(2, 3, 8, 8)


def attention(model, x):
    return model.drop((x @ x.mT).softmax(-1)) @ x


def fused(model, x, *arguments, **more):
    return nn.functional.scaled_dot_product_attention(x, x, x, *arguments, scale=1.0, **more)


def stopped(model, y):
    return y.detach().clone()


TRAINING = {
    "dropout left out": (attention, lambda model, x: (x @ x.mT).softmax(-1) @ x),
    "dropout left out with a view": (
        lambda model, x: model.drop(x.view(2, -1)),
        lambda model, x: x.reshape(2, -1),
    ),
    "dropout left out with a function": (
        lambda model, x: model.drop(x.relu()),
        lambda model, x: x.clamp(min=0),
    ),
    "dropout moved behind a sum": (
        lambda model, x: x + model.drop(x * 2),
        lambda model, x: model.drop(x + x * 2),
    ),
    "dropout moved before an activation": (
        lambda model, x: model.drop(x.relu()),
        lambda model, x: model.drop(x).clamp(min=0),
    ),
    "dropout in the other branch": (
        lambda model, x: model.drop(x).exp() + x.tanh(),
        lambda model, x: x.exp() + model.drop(x).tanh(),
    ),
    "dropout of another kind": (
        lambda model, x: model.drop(x) + 1,
        lambda model, x: nn.functional.alpha_dropout(x, 0.5, model.training) + 1,
    ),
    "dropout of another place and probability": (
        lambda model, x: x + model.drop(x * 2),
        lambda model, x: nn.functional.dropout(x + x * 2, 0.1, model.training),
    ),
    "fused without a dropout": (attention, fused),
    "dropout elsewhere than the fused attention": (
        lambda model, x: x + model.drop((x @ x.mT).softmax(-1) @ x),
        lambda model, x: x + fused(model, x, dropout_p=0.0),
    ),
    "two dropouts for one": (
        lambda model, x: model.drop(model.drop((x @ x.mT).softmax(-1)) @ x),
        lambda model, x: fused(model, x, dropout_p=0.0),
    ),
    "detach": (lambda model, x: x * 2, lambda model, x: x.detach() * 2),
    "detach and clone": (lambda model, x: x * 2, lambda model, x: stopped(model, x) * 2),
    "detach before a copy": (
        lambda model, x: x.relu().contiguous(),
        lambda model, x: x.relu().detach().contiguous(),
    ),
    "data": (lambda model, x: x * 2, lambda model, x: x.data * 2),
    "straight-through": (lambda model, x: x.sign(), lambda model, x: x + (x.sign() - x).detach()),
    "detach moved": (
        lambda model, x: x.exp() + (x * 2).detach(),
        lambda model, x: x.exp().detach() + x * 2,
    ),
}


@pytest.mark.parametrize("edit", TRAINING)
def test_what_alters_the_training_is_no_refactor(edit):
    def made(call):
        return snapshot_of(filled(Made(lambda model, x: call(model, model.conv(x)))), X)

    before, after = map(made, TRAINING[edit])
    for first, second in ((before, after), (after, before)):
        found = compare(first, second)
        assert (found.verdict, found.fails, found.outputs.within) == (Change.STRUCTURE, True, True)


SAME_TRAINING = {
    "fused with a dropout": (
        attention,
        lambda model, x: fused(model, x, dropout_p=model.drop.p if model.training else 0.0),
    ),
    "fused with a dropout by place": (attention, lambda model, x: fused(model, x, None, 0.0)),
    "fused and copied otherwise": (  # the dropout is removed apart from the place at which the attention is added
        lambda model, x: attention(model, x).mT.reshape(2, -1),
        lambda model, x: fused(model, x, dropout_p=0.0).mT.contiguous().mT.mT.reshape(2, -1),
    ),
    "a view that is a copy": (
        lambda model, x: x.exp().reshape(2, -1) + 1,
        lambda model, x: (x * math.log2(math.e)).exp2().mT.contiguous().mT.reshape(2, -1) + 1,
    ),
    "a dropout that drops nothing": (
        lambda model, x: nn.functional.dropout(x.exp(), 0.0, model.training) + 1,
        lambda model, x: x.exp() + 1,
    ),
    "dropout as a function": (
        attention,
        lambda model, x: nn.functional.dropout((x @ x.mT).softmax(-1), 0.5, model.training) @ x,
    ),
    "dropout in place": (
        lambda model, x: model.drop(x.exp()) + 1,
        lambda model, x: nn.functional.dropout(x.exp(), 0.5, model.training, inplace=True) + 1,
    ),
    "other functions around a dropout": (
        lambda model, x: model.drop(x.relu()) @ x,
        lambda model, x: torch.einsum("bcij,bcjk->bcik", model.drop(x.clamp(min=0)), x),
    ),
    "branches in another order": (
        lambda model, x: (a := model.drop(x.exp()).tanh()) + model.mix(a),
        lambda model, x: model.mix(a := model.drop(x.exp()).tanh()) + a,
    ),
    "a dropout that moves with its branch": (
        lambda model, x: {"a": model.drop(x.exp()).tanh(), "b": x.sin()},
        lambda model, x: dict(reversed({"b": x.sin(), "a": model.drop(x.exp()).tanh()}.items())),
    ),
    "detach before other functions": (
        lambda model, x: x.detach().relu() + x,
        lambda model, x: x.detach().clamp(min=0) + x,
    ),
}


@pytest.mark.parametrize("edit", SAME_TRAINING)
def test_other_calls_around_the_same_dropout_are_a_refactor(edit):
    before, after = (
        snapshot_of(filled(Made(lambda model, x, call=call: call(model, model.conv(x)))), X)
        for call in SAME_TRAINING[edit]
    )
    for first, second in ((before, after), (after, before)):
        found = compare(first, second)
        assert (found.verdict, found.outputs.within) == (Change.REFACTOR, True), found.findings


class Layers(nn.Module):
    """Linear layers in a row, of equal weights; one name given twice is one layer."""

    def __init__(self, *names) -> None:
        super().__init__()
        self.names = names
        for name in names:
            setattr(self, name, nn.Linear(8, 8))
            nn.init.eye_(getattr(self, name).weight)
            nn.init.zeros_(getattr(self, name).bias)

    def forward(self, x):
        for name in self.names:
            x = torch.relu(getattr(self, name)(x))
        return x


@pytest.mark.parametrize("names", [("l1", "l2"), ("l", "l2")], ids=["both new", "one new"])
def test_a_layer_that_was_used_twice_and_is_two_now_is_no_rename(names):
    before, after = snapshot_of(Layers("l", "l"), X), snapshot_of(Layers(*names), X)
    apart, together = compare(before, after), compare(after, before)
    for found in (apart, together):
        assert (found.verdict, found.fails, found.outputs.same) == (Change.STRUCTURE, True, True)
    both = f"{names[0]}.weight and {names[1]}.weight"
    assert any(f"untied: {both} are read where l.weight was" in f.message for f in apart.findings)
    assert any(f"tied: l.weight is read where {both} were" in f.message for f in together.findings)


def test_an_old_name_is_given_to_one_new_one_alone():
    before, after = snapshot_of(Layers("l", "l"), X), snapshot_of(Layers("l1", "l2"), X)
    assert StepAlignment(before, after).renamed_weights == {"l1.weight": "l.weight", "l1.bias": "l.bias"}
