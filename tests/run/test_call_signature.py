"""Two module calls have one signature only if forward sees the same in both, but for the values of tensors."""

from __future__ import annotations

import contextlib
import copy
import enum
import functools
import logging
import operator
import threading
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_torchlens.run.call_signature import call_signature

X = torch.ones(2, 4)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass
class Config:
    width: int = 4
    act: object = torch.relu


class Net(nn.Module):
    STEPS = 3

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.1)
        self.option = None

    def forward(self, x):
        return helper(self.fc(x))

    def other(self):
        return 1


def helper(x):
    return x


def times(factor):
    return lambda x: x * factor


def signature(model, *args, **kwargs):
    return call_signature(model, args or (X,), kwargs)


VALUES = {
    "None": None, "bool": True, "int": 1, "other int": 2, "float": 1.0, "nan": float("nan"), "text": "mean",
    "bytes": b"a", "enum": Color.RED, "other enum": Color.BLUE, "dtype": torch.float32, "other dtype": torch.float64,
    "device": torch.device("cpu"), "function of torch": torch.relu, "other function of torch": torch.tanh,
    "operator": torch.ops.aten.relu.default, "other operator": torch.ops.aten.tanh.default,
    "builtin": operator.add, "other builtin": operator.mul, "lambda": lambda x: x * 2, "other lambda": lambda x: x * 3,
    "closure": times(2), "other closure": times(3), "default": lambda x, k=2: x, "other default": lambda x, k=3: x,
    "partial": functools.partial(torch.clamp, min=0), "other partial": functools.partial(torch.clamp, min=1),
    "class": nn.ReLU, "other class": nn.Tanh, "module": nn.ReLU(), "other module": nn.Tanh(), "third": nn.Softmax(0),
    "other softmax": nn.Softmax(1), "list": [1, 2], "other list": [2, 1], "longer list": [1, 2, 3], "tuple": (1, 2),
    "dict": {"a": 1}, "other dict": {"a": 2}, "other key": {"b": 1}, "set": {1, 2}, "other set": {1, 3},
    "namespace": SimpleNamespace(a=1), "other namespace": SimpleNamespace(a=2), "dataclass": Config(),
    "other dataclass": Config(5),
    "nested": {"a": [{"b": (1, {2: "x"})}]}, "other nested": {"a": [{"b": (1, {2: "y"})}]},
    "array": np.arange(3), "other array": np.arange(3) + 1, "array type": np.arange(3.0), "tensor": torch.ones(3),
    "tensor shape": torch.ones(4), "tensor type": torch.ones(3).int(), "modules in a list": [nn.ReLU()],
    "other modules in a list": [nn.Tanh()], "bound method": Config().__init__, "slice": slice(1), "range": range(3),
}  # fmt: skip


def test_no_two_values_of_an_attribute_are_alike():
    """Nor of an argument."""
    signatures, arguments = {}, {}
    for name, value in VALUES.items():
        model = Net()
        model.option = value
        signatures[name] = signature(model)
        arguments[name] = signature(Net(), X, value)
    assert None not in signatures.values()
    assert None not in arguments.values()
    assert len(set(signatures.values())) == len(VALUES)
    assert len(set(arguments.values())) == len(VALUES)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_models_made_alike_are_alike(value):
    one, other = Net(), Net()
    one.option, other.option = value, value if callable(value) else copy.deepcopy(value)
    assert signature(one) == signature(other) is not None


def test_values_of_tensors_make_no_difference():
    one, other = Net(), Net()
    assert signature(one, torch.rand(2, 4)) == signature(other, torch.rand(2, 4))


def change_hook(model):
    model.fc.register_forward_hook(lambda module, inputs, output: output * 2)


def change_other_hook(model):
    model.fc.register_forward_hook(lambda module, inputs, output: output * 3)


def change_hook_with_keywords(model):
    model.fc.register_forward_pre_hook(lambda module, args, kwargs: None, with_kwargs=True)


def change_instance_forward(model):
    model.fc.forward = torch.tanh


def add_module(model):
    model.extra = nn.ReLU()


def freeze(model):
    model.fc.requires_grad_(False)


CHANGES = {
    "training flag": lambda model: model.drop.eval(),
    "constant of a child": lambda model: setattr(model.drop, "p", 0.2),
    "forward hook": change_hook,
    "other forward hook": change_other_hook,
    "hook with keywords": change_hook_with_keywords,
    "backward hook": lambda model: model.fc.register_full_backward_hook(lambda *args: None),
    "forward of the instance": change_instance_forward,
    "child": add_module,
    "child exchanged": lambda model: setattr(model, "drop", nn.AlphaDropout(0.1)),
    "shape": lambda model: setattr(model, "fc", nn.Linear(4, 5)),
    "bias": lambda model: setattr(model, "fc", nn.Linear(4, 4, bias=False)),
    "dtype": lambda model: model.double(),
    "frozen": freeze,
    "buffer": lambda model: model.register_buffer("mask", torch.ones(1)),
}


def test_every_change_of_the_module_tree_makes_a_difference():
    signatures = {"unchanged": signature(Net())}
    for name, change in CHANGES.items():
        model = Net()
        change(model)
        signatures[name] = signature(model)
    assert len(set(signatures.values())) == len(CHANGES) + 1


def test_a_hook_that_was_removed_makes_none():
    model, before = Net(), signature(Net())
    model.fc.register_forward_hook(lambda *args: None).remove()
    assert signature(model) == before


def test_what_tests_replace_makes_a_difference():
    before = signature(Net())
    with mock.patch.object(Net, "forward", lambda self, x: x):
        assert signature(Net()) != before
    with mock.patch.object(Net, "other", lambda self: self):
        assert signature(Net()) != before
    with mock.patch.object(Net, "STEPS", 4):
        assert signature(Net()) != before
    with mock.patch(f"{__name__}.helper", lambda x: x * 2):
        assert signature(Net()) != before
    with mock.patch.object(nn.Linear, "forward", lambda self, x: x):
        assert signature(Net()) != before
    assert signature(Net()) == before


def test_modes_make_a_difference():
    found = {signature(Net())}
    for mode in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)):
        with mode:
            found.add(signature(Net()))
    handle = nn.modules.module.register_module_forward_hook(lambda *args: None)
    found.add(signature(Net()))
    handle.remove()
    assert len(found) == 5


class Functions(TorchFunctionMode):
    factor = 1


class Dispatch(TorchDispatchMode):
    pass


def test_modes_of_torch_make_a_difference():
    net = Net()
    modes = [contextlib.nullcontext(), Functions(), Dispatch(), torch.device("meta"), torch.device("cpu")]
    other = Functions()
    other.factor = 2
    found = set()
    for mode in [*modes, other]:
        with mode, torch._C.DisableTorchFunction():  # as when a test's calls are looked at
            found.add(call_signature(net, (X,), {}))
    assert len(found) == 6
    assert None not in found


def test_classes_of_one_name_are_not_one():
    def make(factor):
        class Local(nn.Module):
            def forward(self, x):
                return x * factor

        return Local()

    assert signature(make(2)) != signature(make(3))


UNTELLABLE = {
    "iterator of a list": lambda: iter([1]),
    "open file": Path(__file__).open,
    "array of objects": lambda: np.array([object()]),
    "set of objects": lambda: {object()},
}


@pytest.mark.parametrize("make", UNTELLABLE.values(), ids=UNTELLABLE)
def test_what_cannot_be_told_is_like_nothing(make):
    model = Net()
    model.option = make()
    assert signature(model) is None
    assert signature(Net(), X, make()) is None


def test_what_every_library_holds_can_be_told():
    model = Net()
    for value in (logging.getLogger("x"), threading.Lock(), torch.Generator(), (i for i in ())):
        model.option = value
        if not hasattr(value, "gi_frame"):
            assert signature(model) is not None


def test_cycles_end():
    model = Net()
    model.option = {"self": [model]}
    model.option["option"] = model.option
    assert signature(model) is not None


class Mixin:
    act = torch.relu


class Mixed(nn.Sequential, Mixin):
    """Has a base after one of PyTorch's."""


class Slotted:
    __slots__ = ("__secret",)

    def __init__(self, secret):
        self.__secret = secret


class ListWithMore(list):
    """A list with an attribute."""


def with_attribute(value):
    items = ListWithMore([1])
    items.more = value
    return items


ACT, TABLE, CLIP = torch.relu, {"act": helper}, functools.partial(torch.clamp, min=0)


class UsesGlobals(nn.Module):
    static = staticmethod(helper)
    table: ClassVar = {"act": helper}
    act = torch.relu

    @property
    def chosen(self):
        return 1

    def forward(self, x):
        step = lambda y: CLIP(TABLE["act"](ACT(nn.functional.relu(y))))  # noqa: E731
        return step(x)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (f"{__name__}.ACT", torch.tanh),
        (f"{__name__}.TABLE", {"act": times}),
        (f"{__name__}.CLIP", functools.partial(torch.clamp, min=1)),
        ("torch.nn.functional.relu", times(2)),
        (f"{__name__}.UsesGlobals.static", staticmethod(times)),
        (f"{__name__}.UsesGlobals.table", {"act": times}),
        (f"{__name__}.UsesGlobals.act", torch.tanh),
        (f"{__name__}.UsesGlobals.chosen", property(times)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_forward_reaches_by_name_makes_a_difference(place, value):
    before = signature(UsesGlobals())
    with mock.patch(place, value):
        assert signature(UsesGlobals()) != before
    assert signature(UsesGlobals()) == before


def test_a_base_after_one_of_pytorch_makes_a_difference():
    before = signature(Mixed())
    with mock.patch.object(Mixin, "act", torch.tanh):
        assert signature(Mixed()) != before


@pytest.mark.parametrize(
    ("one", "other"), [(Slotted(1), Slotted(2)), (with_attribute(1), with_attribute(2))], ids=["slot", "list"]
)
def test_what_is_beside_items_and_in_slots_makes_a_difference(one, other):
    assert signature(Net(), X, one) != signature(Net(), X, other)


def test_shared_memory_and_strides_make_a_difference():
    y = X.clone()
    found = [(X, X), (X, y), (X, X[:]), (X, y.t().contiguous().t())]
    assert len({signature(Net(), *pair) for pair in found}) == 4
    tied, loose = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    assert signature(tied) != signature(loose)


def test_default_and_autocast_dtypes_make_a_difference():
    before = signature(Net())
    torch.set_default_dtype(torch.float64)
    try:
        assert call_signature(Net().float(), (X,), {}) != before
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        half = signature(Net())
    with torch.autocast("cpu", torch.float16):
        assert signature(Net()) != half


class Raises:
    def __getattribute__(self, name):
        raise RuntimeError("do not look")


class SecretEnum(enum.Enum):
    A = 1

    def __repr__(self):
        raise RuntimeError("do not print")


@pytest.mark.parametrize(
    "make", [Raises, lambda: SecretEnum.A, lambda: list(range(300_000))], ids=["attribute", "repr", "long"]
)
def test_what_raises_or_is_too_long_is_like_nothing(make):
    assert call_signature(Net(), (X, make()), {}) is None
