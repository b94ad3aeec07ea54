"""Objects that raise, count or lie when somebody looks at them: whatever we do to a model with one does not raise."""

from __future__ import annotations

import dataclasses
import random
import types
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pytest_torchlens as tl
from pytest_torchlens.capture.looks import class_attribute
from pytest_torchlens.capture.looks import instance_dict
from pytest_torchlens.capture.looks import named_buffers
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.records import Status
from pytest_torchlens.run.call_signature import call_signature
from pytest_torchlens.validate import validate

X = torch.ones(2, 3)
asked: list[str] = []


class RaisesForNames(type):
    def __getattr__(cls, name):
        raise RuntimeError(f"{name}?")


class OfMeta(metaclass=RaisesForNames):
    pass


class Counted(type):
    def __getattr__(cls, name):
        asked.append(name)
        raise AttributeError(name)


class OfCounted(metaclass=Counted):
    pass


class RaisesForAll:
    def __getattribute__(self, name):
        raise RuntimeError(f"{name}?")


class Forwards:
    def __init__(self, target):
        object.__setattr__(self, "target", target)

    def __getattribute__(self, name):
        asked.append(name)
        return getattr(object.__getattribute__(self, "target"), name)


class ComputedDict:
    @property
    def __dict__(self):
        asked.append("__dict__")
        return {"a": len(asked)}


class LiesOfItsClass:
    @property
    def __class__(self):
        asked.append("__class__")
        return torch.Tensor


class RaisesOfItsClass:
    @property
    def __class__(self):
        raise RuntimeError("no class")


class Unequal:
    def __eq__(self, other):
        raise RuntimeError("compared")

    __hash__ = None

    def __bool__(self):
        raise RuntimeError("true?")

    def __len__(self):
        raise RuntimeError("how long?")

    def __repr__(self):
        raise RuntimeError("repr?")


class BadDict(dict):
    def __iter__(self):
        raise RuntimeError("iterated")

    keys = items = values = copy = __len__ = __bool__ = __iter__


class BadList(list):
    def __iter__(self):
        raise RuntimeError("iterated")

    __len__ = __bool__ = copy = __iter__


class BadTuple(tuple):
    def __iter__(self):
        raise RuntimeError("iterated")

    __len__ = __bool__ = __iter__


class BadSet(set):
    def __iter__(self):
        raise RuntimeError("iterated")

    __len__ = __bool__ = copy = __iter__


class BadArray(np.ndarray):
    def __array_finalize__(self, made_from):
        if made_from is not None:
            raise RuntimeError("finalized")


class BadKey:
    def __repr__(self):
        raise RuntimeError("repr?")


@dataclasses.dataclass
class LazyField:
    value: int = 0

    def __getattribute__(self, name):
        if name == "value":
            raise RuntimeError("not loaded")
        return super().__getattribute__(name)


class BadIterator:
    def __iter__(self):
        raise RuntimeError("iter?")

    def __next__(self):
        raise RuntimeError("next?")

    def __length_hint__(self):
        raise RuntimeError("hint?")


class Collected:
    pass


def dead_proxy():
    thing = Collected()
    proxy = weakref.proxy(thing)
    del thing
    return proxy


KEPT = Collected()
AWKWARD = {
    "generic alias": lambda: list[int],
    "alias of an alias": lambda: dict[str, list[int]],
    "union": lambda: int | str,
    "dead proxy": dead_proxy,
    "live proxy": lambda: weakref.proxy(KEPT),
    "metaclass that raises": OfMeta,
    "class of such a metaclass": lambda: OfMeta,
    "metaclass that counts": OfCounted,
    "raises for every name": RaisesForAll,
    "forwards to a module": lambda: Forwards(nn.Linear(1, 1)),
    "forwards to a tensor": lambda: Forwards(torch.ones(2)),
    "forwards to a dict": lambda: Forwards({"a": 1}),
    "computed __dict__": ComputedDict,
    "lies of its class": LiesOfItsClass,
    "raises of its class": RaisesOfItsClass,
    "cannot be compared": Unequal,
    "dict": lambda: BadDict(a=1),
    "list": lambda: BadList([1]),
    "tuple": lambda: BadTuple([1]),
    "set": lambda: BadSet([1]),
    "array": lambda: np.ndarray.__new__(BadArray, 3),
    "odd key": lambda: {BadKey(): torch.ones(3)},
    "field that is not loaded": LazyField,
    "iterator": BadIterator,
    "mapping proxy": lambda: types.MappingProxyType(BadDict(a=1)),
}
PLACES = {
    "in a list": lambda thing: [thing],
    "in a dict": lambda thing: {"a": thing},
    "in a closure": lambda thing: lambda: thing,
    "in an object": lambda thing: types.SimpleNamespace(thing=thing),
    "alone": lambda thing: thing,
}


class Net(nn.Module):
    """Holds an awkward object; assigned past `nn.Module.__setattr__`, which may ask it for its class."""

    def __init__(self, held):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        vars(self)["held"] = held

    def forward(self, x, thing=None):
        return self.layer(x)


class Passes(Net):
    def forward(self, x, thing=None):
        return self.layer(x), thing


def look_everywhere(model, args):
    verdict = validate(model, args).verdict
    tl.log_forward_pass(model, list(args))
    tl.measure_forward_pass(model, list(args), passes=1)
    call_signature(model, args, {})
    return verdict


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", AWKWARD)
def test_a_model_that_holds_it_is_validated(name, place):
    held = PLACES[place](AWKWARD[name]())
    asked.clear()
    verdict = validate(Net(held), (X,)).verdict
    # what an iterator gave cannot be asked for again
    assert verdict.status is Status.PASSED or (name == "iterator" and verdict.status is not Status.FAILED), verdict
    assert not asked


@pytest.mark.parametrize("name", AWKWARD)
def test_every_function_looks_at_it(name):
    verdict = look_everywhere(Net(AWKWARD[name]()), (X,))
    assert verdict.status is not Status.FAILED, verdict


@pytest.mark.parametrize("name", AWKWARD)
def test_an_argument_that_is_returned(name):
    verdict = look_everywhere(Passes(None), (X, AWKWARD[name]()))
    assert verdict.status is not Status.FAILED, verdict


@pytest.mark.parametrize("seed", range(12))
def test_nests_of_awkward_objects(seed):
    """Some ten objects in random nests, in the model and in its arguments."""
    drawn = random.Random(seed)

    def nest(depth: int) -> Any:
        if depth == 0 or drawn.random() < 0.3:
            return drawn.choice(list(AWKWARD.values()))()
        parts = [nest(depth - 1) for _ in range(3)]
        return drawn.choice([list, tuple, BadList, lambda parts: BadDict(enumerate(parts)), Forwards])(parts)

    model = Net(nest(3))
    verdict = look_everywhere(model, (X, nest(2)))
    assert verdict.status is not Status.FAILED, verdict


HIDING = """modules named_modules parameters named_parameters buffers named_buffers children named_children train eval
to apply state_dict requires_grad_ zero_grad float half get_parameter get_submodule register_buffer""".split()


class Hides(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.BatchNorm1d(3)
        vars(self)[name] = [self.a, self.b]
        self.inner = nn.Module()
        vars(self.inner)[name] = 3

    def forward(self, x):
        return self.b(self.a(x))


@pytest.mark.parametrize("name", HIDING)
def test_an_attribute_that_hides_a_method_of_modules(name, tmp_path):
    model = Hides(name)
    assert look_everywhere(model, (X,))
    history = tl.log_forward_pass(model, X)
    assert [module.address for module in history.modules] == ["", "a", "b", "inner"]
    history.draw(tmp_path / "model.dot")


def test_members_are_listed_as_pytorch_lists_them():
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.Sequential(nn.BatchNorm1d(2), shared), nn.ModuleDict({"a": nn.GRU(2, 2)}))
    model.tied = shared.weight
    model.register_parameter("absent", None)
    script = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    for each in (model, script):
        assert list(named_modules(each)) == list(each.named_modules())
        for ours, theirs in ((named_parameters, each.named_parameters), (named_buffers, each.named_buffers)):
            assert [name for name, _ in ours(each)] == [name for name, _ in theirs()]
            everywhere = [name for name, _ in theirs(remove_duplicate=False)]
            assert [name for name, _ in ours(each, duplicates=True)] == everywhere


def test_a_module_inside_itself_ends_its_address():
    model = nn.Module()
    model.layer = nn.Linear(1, 1)
    model._modules["me"] = model
    assert [name for name, _ in named_modules(model)] == ["", "layer"]
    assert [name for name, _ in named_parameters(model, duplicates=True)] == ["layer.weight", "layer.bias"]


@pytest.mark.parametrize("name", AWKWARD)
def test_the_stored_attributes_are_found_without_asking(name):
    thing = AWKWARD[name]()
    asked.clear()
    found = instance_dict(thing)
    assert found is None or isinstance(found, dict | types.MappingProxyType)
    assert class_attribute(type(thing), "never there") is None
    assert not asked
