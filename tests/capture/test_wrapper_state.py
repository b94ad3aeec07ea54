"""What a tensor that wraps others holds besides its first tensor: numbers, objects, other tensors, caches, itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

import pytest_torchlens as tl
from pytest_torchlens.records import Status
from pytest_torchlens.validate import validate
from tests.models import Function


class Scaled(torch.Tensor):
    """Stands for ``inner * factor``."""

    @staticmethod
    def __new__(cls, inner, factor):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=torch.float32)

    def __init__(self, inner, factor):
        self.inner, self.factor, self.cache = inner, factor, None

    def whole(self):
        return self.inner.float() * self.factor

    @classmethod
    def __torch_dispatch__(cls, func, _types, args=(), kwargs=None):
        args, kwargs = tree_map(lambda one: one.whole() if isinstance(one, Scaled) else one, (args, kwargs or {}))
        return func(*args, **kwargs)


class WithContext(Scaled):
    """Gives its factor to PyTorch's compiler as context."""

    def __tensor_flatten__(self):
        return ["inner"], self.factor

    @classmethod
    def __tensor_unflatten__(cls, inner, factor, _size, _stride):
        return cls(inner["inner"], factor)


class Caching(Scaled):
    """Keeps what it computed."""

    def whole(self):
        if self.cache is None:
            self.cache = super().whole()
        return self.cache

    def __tensor_flatten__(self):
        return ["inner", "factor"], None

    @classmethod
    def __tensor_unflatten__(cls, parts, _context, _size, _stride):
        return cls(parts["inner"], parts["factor"])


class OfArray(Scaled):
    def whole(self):
        return self.inner * torch.from_numpy(self.factor)


class Box:
    def __init__(self, content):
        self.content = content


class OfBox(Scaled):
    def whole(self):
        return self.inner * self.factor.content


class ScalesItself(Scaled):
    """Multiplies its factor where it is multiplied in place."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is not torch.ops.aten.mul_.Tensor:
            return super().__torch_dispatch__(func, types, args, kwargs)
        args[0].factor.mul_(args[1])
        return args[0]


def example():
    torch.manual_seed(1)
    return torch.randn(2, 3)


def integers(x):
    return (x * 9).to(torch.int8)


def verdict_on(function):
    return validate(Function(function), (example(),)).verdict


def write_through_the_wrapper(x):
    factor = x.abs().mean() + 1
    wrapper = ScalesItself(integers(x), factor)
    y = torch.relu(wrapper)
    wrapper.mul_(x.max())
    return y * factor + torch.relu(wrapper)


def each_other(x):
    one, other = Scaled(integers(x), x.mean()), Scaled(integers(x * 2), x.max())
    one.other, other.other = other, one
    return torch.relu(one) + torch.relu(other)


BESIDES = {
    "item": (lambda x: torch.relu(Scaled(x * 2, 1 / (1 + x.abs().max().item() ** 2))), "of type float"),
    "float": (lambda x: torch.relu(Scaled(x * 2, float(x.abs().max()))), "of type float"),
    "integer": (lambda x: torch.relu(Scaled(x * 2, int(x.abs().max().item() * 1000))), "of type int"),
    "context": (lambda x: torch.relu(WithContext(x * 2, x.abs().max().item())), "of type float"),
    "array": (lambda x: torch.relu(OfArray(x * 2, x.numpy() * 2)), "of type ndarray"),
    "object": (lambda x: torch.relu(OfBox(x * 2, Box(x.mean()))), "of type Box"),
    "each other": (each_other, "of type Scaled"),
    "written through": (write_through_the_wrapper, "it writes through a wrapper"),
}


@pytest.mark.parametrize(("function", "reason"), BESIDES.values(), ids=BESIDES)
def test_what_a_wrapper_holds_besides_its_tensors_is_not_shown(function, reason):
    verdict = verdict_on(function)
    assert verdict.status is Status.UNPROVEN
    (found,) = [one for one in verdict.unproven if reason in one.message]
    assert "test_wrapper_state.py" in found.source_line


def itself(x):
    wrapper = Scaled(integers(x), x.mean())
    wrapper.me = wrapper
    return torch.relu(wrapper) + 1


SHOWN = {
    "number of the code": lambda x: torch.relu(Scaled(x * 2, 0.37)) + 1,
    "context of the code": lambda x: torch.relu(WithContext(x * 2, 0.37)) + 1,
    "tensor": lambda x: torch.relu(Scaled(x * 2, x.mean())) + 1,
    "cache": lambda x: torch.add(w := Caching(integers(x), x.mean()), w) + 1,
    "itself": itself,
}


@pytest.mark.parametrize("function", SHOWN.values(), ids=SHOWN)
def test_a_wrapper_of_tensors_and_settings_passes(function):
    assert verdict_on(function).status is Status.PASSED


class Remembering(Scaled):
    """Keeps what it computed, and does not tell PyTorch's compiler what it holds."""

    def whole(self):
        if self.cache is None:
            self.cache = super().whole()
        return self.cache


class Held(nn.Module):
    """A model that holds a wrapper, reads it, gives it another factor, and reads it again."""

    def __init__(self, kind, factor, first=None, then=None):
        super().__init__()
        self.wrapper = kind(torch.ones(2, 3).to(torch.int8), factor)
        self.first, self.then = first, then

    def forward(self, x):
        for change in (self.first, self.then):
            if change is not None:
                self.wrapper.factor = change(x)
            x = x + torch.relu(self.wrapper)
        return x


def twice(x):
    wrapper = Remembering(integers(x), x.mean())
    return torch.relu(wrapper) + torch.relu(wrapper) * 2


TWO = torch.tensor(2.0)
HELD = {
    "a cache of a new wrapper": Function(twice),
    "a cache of a held wrapper": Held(Remembering, 2.0),
    "a number for a tensor": Held(Scaled, TWO, first=lambda x: 0.5),
    "a number for a number": Held(Scaled, 2.0, first=lambda x: 0.5),
    "another number between": Held(Scaled, 2.0, then=lambda x: 0.5),
    "a number for a tensor between": Held(Scaled, TWO, then=lambda x: 0.5),
    "a tensor between": Held(Scaled, 2.0, then=lambda x: x.mean()),
}


@pytest.mark.parametrize("model", HELD.values(), ids=HELD)
def test_what_a_wrapper_gets_in_forward_is_replayed(model):
    assert validate(model, (example(),)).verdict.status is Status.PASSED


@pytest.mark.parametrize("place", ["first", "then"])
def test_a_number_of_an_input_in_a_held_wrapper_is_not_shown(place):
    model = Held(Scaled, 2.0, **{place: lambda x: float(x.sum())})
    assert validate(model, (example(),)).verdict.status is Status.UNPROVEN


def write_to_the_second(x):
    factor = x.abs().mean() + 1
    wrapper = Scaled(integers(x), factor)
    y = torch.relu(wrapper)
    factor.mul_(x.max())
    return y + torch.relu(wrapper)


def test_a_write_to_the_second_tensor_has_an_edge():
    found = validate(Function(write_to_the_second), (example(),))
    assert found.verdict.status is Status.PASSED
    assert {"mul_2", "scaled_2"} <= {label.rpartition("_")[0] for label in found.history.ancestors("relu_2")}


def write_inside_a_nested_one(x):
    factor = x.abs().mean() + 1
    wrapper = Scaled(Scaled(integers(x), factor), x.max())
    y = torch.relu(wrapper)
    factor.mul_(x.max())
    return y + torch.relu(wrapper)


def test_a_write_inside_a_nested_wrapper_has_an_edge():
    found = validate(Function(write_inside_a_nested_one), (example(),))
    assert found.verdict.status is Status.PASSED
    assert {"mul_2", "scaled_3", "scaled_4"} <= {
        label.rpartition("_")[0] for label in found.history.ancestors("relu_2")
    }


def write_through_an_array(x):
    factor = x.abs().mean(0) + 1
    wrapper = Scaled(integers(x), factor)
    y, array = torch.relu(wrapper), factor.numpy()
    array *= 2
    return y + torch.relu(wrapper)


def test_a_write_through_an_array_over_the_second_tensor_is_seen():
    verdict = verdict_on(write_through_an_array)
    assert verdict.status is Status.UNPROVEN
    assert "made after numpy handed" in verdict.words


def test_a_write_to_the_second_tensor_leaves_the_saved_wrapper_as_it_was():
    x = example()
    history = tl.log_forward_pass(Function(write_to_the_second), x, layers_to_save="all")
    first, second = history["scaled_1"].tensor_contents, history["scaled_2"].tensor_contents
    assert torch.equal(first.factor, x.abs().mean() + 1)
    assert torch.equal(second.factor, (x.abs().mean() + 1) * x.max())


class Holder(nn.Module):
    """Holds a wrapper as an attribute."""

    def __init__(self, kind, change=lambda wrapper: None):
        super().__init__()
        self.weight = kind(torch.arange(9, dtype=torch.int8).view(3, 3), torch.tensor(0.1))
        change(self.weight)

    def forward(self, x):
        return nn.functional.linear(x, self.weight) + nn.functional.linear(x * 2, self.weight)


class Writer(Holder):
    def forward(self, x):
        y = nn.functional.linear(x, self.weight)
        self.weight.factor.mul_(x.abs().max())
        return y + nn.functional.linear(x, self.weight)


def refer_to_itself(wrapper):
    wrapper.me = wrapper


def refer_to_each_other(wrapper):
    wrapper.other = Scaled(wrapper.inner + 1, wrapper.factor)
    wrapper.other.other = wrapper


HELD = {
    "plain": lambda: Holder(Scaled),
    "cache": lambda: Holder(Caching),
    "itself": lambda: Holder(Scaled, refer_to_itself),
    "each other": lambda: Holder(Scaled, refer_to_each_other),
    "second written": lambda: Writer(Scaled),
}


@pytest.mark.parametrize("build", HELD.values(), ids=HELD)
def test_a_model_holds_a_wrapper(build):
    model = build()
    before = dict(vars(model.weight))
    factor = model.weight.factor.clone()
    assert validate(model, (example(),)).verdict.status is Status.PASSED
    assert {name: id(value) for name, value in vars(model.weight).items() if name in before} == {
        name: id(value) for name, value in before.items()
    }
    assert torch.equal(model.weight.factor, factor)


class Filled(Scaled):
    """Keeps what it computed, which its number may no longer say."""

    def whole(self):
        if self.cache is None:
            self.cache = super().whole()
        return self.cache


class FilledInList(Filled):
    def whole(self):
        if self.cache is None:
            self.cache = [Scaled.whole(self)]
        return self.cache[0]


class FilledWithContext(Filled, WithContext):
    pass


def changed_after(kind, x):
    wrapper = kind(x * 1, 2)
    first = wrapper + 1
    wrapper.factor = 3
    return first + wrapper * 2


def changed_twice(kind, x):
    wrapper = kind(x * 1, 2)
    first = wrapper + 1
    wrapper.factor = 3
    second = first + wrapper * 2
    wrapper.factor, wrapper.cache = 4, None
    third = second + wrapper
    wrapper.factor = 5
    return third * wrapper


def cleared(kind, x):
    wrapper = kind(x * 1, 2)
    first = wrapper + 1
    wrapper.factor, wrapper.cache = 3, None
    return first + wrapper * 2


def written_between(kind, x):
    inner = x * 1
    wrapper = kind(inner, 2)
    first = wrapper + 1
    inner.add_(1)
    wrapper.factor, wrapper.cache = 3, None
    return first + wrapper


@pytest.mark.parametrize("use", [changed_after, changed_twice, cleared, written_between])
@pytest.mark.parametrize("kind", [Scaled, WithContext, Filled, FilledInList, FilledWithContext])
def test_a_number_that_changes_after_the_class_has_kept_a_result(kind, use):
    verdict = validate(Function(lambda x: use(kind, x)), (torch.rand(6),)).verdict
    assert verdict.status is Status.PASSED, verdict.words


@pytest.mark.parametrize("kind", [Scaled, WithContext, Filled, FilledInList, FilledWithContext])
def test_a_number_of_a_wrapper_of_the_model_that_changes(kind):
    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = kind(torch.ones(6), 2)

        def forward(self, x):
            y = x + self.weight
            self.weight.factor = 3
            return y * self.weight

    model = Holds()
    verdict = validate(model, (torch.rand(6),)).verdict
    assert verdict.status is Status.PASSED, verdict.words
    assert (model.weight.factor, model.weight.cache) == (2, None)
