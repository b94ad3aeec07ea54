"""Modules called in unusual ways: other methods, replaced forwards, wrappers, hooks, checkpoints."""

from __future__ import annotations

import functools
import types

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.capture.programs import Programs
from tests.capture.programs import Twice
from tests.capture.programs import check
from tests.capture.programs import trace

PROGRAMS = Programs()


def pairs():
    return (torch.arange(1.0, 5.0).view(2, 2),)


@PROGRAMS.add(
    """
    input_1
    linear_1: input_1 $codec.down.weight $codec.down.bias
    relu_1: linear_1
    linear_2: relu_1 $codec.up.weight $codec.up.bias
    linear_3: linear_2 $loud.weight $loud.bias
    mul_1: linear_3
    output_1: mul_1
    """,
    inputs=pairs,
)
class BackDoors(nn.Module):
    """Forward called directly, another method used, ``__call__`` overridden, children unused."""

    class Codec(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.up = nn.Linear(2, 1), nn.Linear(1, 2)

        def encode(self, x):
            return self.down(x).relu()

    class Loud(nn.Linear):
        def __call__(self, x):
            return super().__call__(x) * 2

    def __init__(self):
        super().__init__()
        self.codec = self.Codec()
        self.loud = self.Loud(2, 2)

    def forward(self, x):
        return self.loud(self.codec.up.forward(self.codec.encode(x)))


@PROGRAMS.add(
    """
    input_1
    linear_1: input_1 $a.weight $a.bias
    mul_1: linear_1
    linear_2: mul_1 $b.weight $b.bias
    mul_2: linear_2
    output_1: mul_2
    """,
    inputs=pairs,
)
class ForwardReplaced(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
        self.a.forward = types.MethodType(lambda layer, x: nn.Linear.forward(layer, x) * 2, self.a)
        self.b.forward = functools.partial(self.scaled, self.b, 3.0)

    @staticmethod
    def scaled(layer, gain, x):
        return nn.Linear.forward(layer, x) * gain

    def forward(self, x):
        return self.b(self.a(x))


@PROGRAMS.add(
    """
    input_1
    linear_1: input_1 $inner.fc.weight
    mul_1: linear_1
    output_1: mul_1
    """,
    inputs=pairs,
)
class Forwarding(nn.Module):
    """Attributes are read from and written to the model inside."""

    def __init__(self):
        super().__init__()
        self._modules["inner"] = Twice()

    def __getattr__(self, name):
        return getattr(self._modules["inner"], name)

    def __setattr__(self, name, value):
        inner = self.__dict__.get("_modules", {}).get("inner")
        super().__setattr__(name, value) if inner is None or name == "training" else setattr(inner, name, value)

    def forward(self, x):
        return self._modules["inner"](x) * 2


@PROGRAMS.add(
    """
    input_1
    linear_1: input_1 $core.0.fc.weight
    tanh_1: linear_1
    view_1: tanh_1
    output_1: view_1
    """,
    inputs=pairs,
)
class GraphModuleChild(nn.Module):
    def __init__(self):
        super().__init__()
        self.core = torch.fx.symbolic_trace(nn.Sequential(Twice(), nn.Tanh()))

    def forward(self, x):
        return self.core(x).view(-1)


@PROGRAMS.add(
    """
    input_1
    linear_1: input_1 $old.fc.weight
    relu_1: linear_1
    linear_2: relu_1 $new.fc.weight
    relu_2: linear_2
    output_1: relu_2
    """,
    inputs=lambda: (torch.ones(2, 2, requires_grad=True),),
    mode="grad",
)
class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.old, self.new = Twice(), Twice()

    def forward(self, x):
        x = checkpoint(lambda t: self.old(t).relu(), x, use_reentrant=True)
        return checkpoint(lambda t: self.new(t).relu(), x, use_reentrant=False)


@PROGRAMS.add(
    """
    input_1
    add_1: input_1
    linear_1: add_1 $inner.fc.weight
    neg_1: linear_1
    mul_1: neg_1
    sub_1: mul_1
    output_1: sub_1
    """,
    inputs=pairs,
    kwargs=lambda: {"gain": 2.0},
)
class HooksOfItsOwn(nn.Module):
    """A pre-hook rewrites arguments, a hook the result, and forward itself adds and removes one."""

    def __init__(self):
        super().__init__()
        self.inner = Twice()
        self.register_forward_pre_hook(lambda _, args, kw: ((args[0] + 1,), kw | {"gain": 3.0}), with_kwargs=True)
        self.register_forward_hook(lambda _, __, output: output - 1)

    def forward(self, x, *, gain):
        handle = self.inner.register_forward_hook(lambda _, __, output: output.neg())
        try:
            return self.inner(x) * gain
        finally:
            handle.remove()


CALLS = {
    "BackDoors": {"": 1, "codec.down": 1, "loud": 1},
    "ForwardReplaced": {"": 1, "a": 1, "b": 1},
    "Forwarding": {"": 1, "inner": 1, "inner.fc": 1},
    "GraphModuleChild": {"": 1, "core": 1, "core.0.fc": 1, "core.1": 1},
    "Checkpointed": {"": 1, "old": 1, "old.fc": 1, "new": 1, "new.fc": 1},
    "HooksOfItsOwn": {"": 1, "inner": 1, "inner.fc": 1},
}


@pytest.mark.parametrize("name", CALLS)
def test_module_calls(name):
    _, history = trace(PROGRAMS[name], "grad")
    counts = {module.address: module.num_passes for module in history.record().modules}
    assert {address: count for address, count in counts.items() if count} == CALLS[name]


def test_module_of_each_operation():
    _, history = trace(PROGRAMS["BackDoors"], "grad")
    modules = {op.layer_label_short: op.containing_module_origin for op in history if op.func_applied_name}
    assert modules == {"linear_1": "codec.down", "relu_1": None, "linear_2": None, "linear_3": "loud", "mul_1": None}


def test_gradients_pass_through_a_traced_checkpoint():
    model, history = trace(PROGRAMS["Checkpointed"], "grad")
    calls = len(history.recording.calls)
    history.recording.output.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert len(history.recording.calls) == calls


@PROGRAMS.parametrize()
def test_graph(program, mode):
    check(program, mode)
