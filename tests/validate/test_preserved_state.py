"""Validation restores everything that the model changes: tensors, objects, inputs, generators."""

from __future__ import annotations

import collections
import random

import numpy as np
import pytest
import torch
from torch import nn

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.validate import validate
from tests.models import Function

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")


class Growing(nn.Module):
    """Writes to its weight and its buffer, counts, and replaces a tensor that is not registered."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("total", torch.zeros(3))
        self.latest = torch.zeros(3)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.latest = x * 2
        self.weight.data.add_(1.0)
        self.total.add_(x)
        return x * self.weight + self.total + self.calls


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x * 2)


class Swapping(nn.Module):
    """Moves a parameter and a buffer to other memory."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("table", torch.zeros(2))

    def forward(self, x):
        self.weight.data = torch.cat([self.weight.data, torch.zeros(1)])
        self.table.data = self.table + 1
        return x.sum() * self.weight + self.table.sum()


class Memory:
    """A cache like those of language models."""

    def __init__(self):
        self.keys = []
        self.seen = 0
        self.block = torch.zeros(4)

    def push(self, x):
        self.keys.append(x)
        self.seen += 1
        self.block[self.seen] = 1.0
        return torch.cat(self.keys).sum() * self.seen + self.block


class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = Memory()

    def forward(self, x):
        return self.memory.push(x * 2)


MODELS = {
    "eager": Growing,
    "scripted": lambda: torch.jit.script(Growing()),
    "scripted child": lambda: Around(torch.jit.script(Growing())),
    "compiled child": lambda: Around(torch.compile(Growing(), backend="eager")),
    "frozen child": lambda: Around(torch.jit.freeze(torch.jit.script(nn.Linear(3, 3).eval()))),
    "other memory": Swapping,
    "plain object": Remembers,
}


def everything_in(value):
    """Return a comparable form of a value: contents of tensors, objects and containers."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), fingerprint(value)
    if isinstance(value, dict | collections.UserDict):
        return [(key, everything_in(item)) for key, item in value.items()]
    if isinstance(value, list | tuple | set | collections.deque):
        return [everything_in(item) for item in value]
    if isinstance(value, torch.Generator):
        return fingerprint(value.get_state())
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return everything_in(vars(value)) if isinstance(value, Memory) else value


def all_of(model):
    """Return a comparable form of everything that forward may change in a model."""
    scripted = [(m.calls, everything_in(m.latest)) for m in model.modules() if hasattr(m, "latest")]
    plain = [everything_in(m.memory) for m in model.modules() if hasattr(m, "memory")]
    return everything_in(dict(model.state_dict())), scripted, plain


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_a_model_is_restored(build):
    model, x = build(), torch.tensor([1.0, 2.0, 3.0])
    before = all_of(model)
    found = validate(model, (x,))
    assert found, found.verdict
    assert all_of(model) == before


def takes_out_and_puts_in(batch):
    label = batch.pop("label")
    batch["seen"] = True
    return batch["x"] * label


def appends(items):
    items.append(items[-1] * 2)
    return items[-1] + len(items)


def fills(x, array):
    array[:] = 7
    return x * float(array.sum())


X = torch.ones(3)
INPUTS = {
    "dict": (takes_out_and_puts_in, lambda: ({"x": X + 1, "label": X * 2},)),
    "UserDict": (takes_out_and_puts_in, lambda: (collections.UserDict(x=X + 1, label=X * 2),)),
    "list": (appends, lambda: ([X, X],)),
    "deque": (appends, lambda: (collections.deque([X]),)),
    "object": (lambda x, memory: memory.push(x), lambda: (X, Memory())),
    "object in a tuple": (lambda x, pair: pair[0].push(x), lambda: (X, (Memory(), 1))),
    "array": (fills, lambda: (X, np.zeros(2))),
    "generator": (lambda x, g: x + torch.rand(3, generator=g), lambda: (X, torch.Generator().manual_seed(1))),
    "NumPy generator": (lambda x, g: x * float(g.random()), lambda: (X, np.random.default_rng(1))),
    "Python generator": (lambda x, g: x * g.random(), lambda: (X, random.Random(1))),
}


@pytest.mark.parametrize(("forward", "build"), INPUTS.values(), ids=INPUTS)
def test_inputs_are_restored(forward, build):
    args = build()
    before = everything_in(args)
    found = validate(Function(forward), args)
    assert found, found.verdict
    assert everything_in(args) == before
    assert [path for path, _ in walk(args)]


GENERATOR = torch.Generator()


def test_a_global_generator_is_restored():
    before = fingerprint(GENERATOR.get_state())
    found = validate(Function(lambda x: x + torch.rand(3, generator=GENERATOR)), (X,))
    assert found, found.verdict
    assert fingerprint(GENERATOR.get_state()) == before


class WrittenThroughAnArray(nn.Module):
    """Holds an array over its own parameter."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.array = self.weight.detach().numpy()

    def forward(self, x):
        y = x * self.weight
        self.array[0] += 1
        return y + self.weight


def test_a_parameter_written_unannounced_fails_with_its_name():
    part = validate(WrittenThroughAnArray(), (X,)).verdict.part("replay")
    assert part.failures[0].message == (
        "parameter 'weight' changed during the forward pass, but no recorded operation wrote to it"
    )


class Raises(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x):
        with torch.no_grad():
            self.weight.mul_(0.5)
        raise LookupError("at the end")


def test_a_model_that_raises_keeps_its_parameters():
    model = Raises()
    with pytest.raises(LookupError, match="at the end"):
        validate(model, (torch.ones(2),))
    assert model.weight.tolist() == [1.0, 1.0]
