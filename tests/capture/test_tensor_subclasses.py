"""Tensors that wrap others (`MaskedTensor` and users' own), and subclasses whose code raises."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.masked import as_masked_tensor
from torch.masked import masked_tensor
from torch.utils._pytree import tree_map

import pytest_torchlens as tl
from pytest_torchlens.records import Status
from pytest_torchlens.validate import validate
from tests.models import Function

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors", "ignore:It is not recommended")


def masked(x):
    return masked_tensor(x, x > 0)


def compared(x):
    return (masked(x) == masked(x)).to_tensor(False)


def overwritten(x):
    a = masked(x)
    a.mul_(masked(x))
    return a.to_tensor(0.0)


def branching(x):
    a = masked(x)
    return a.to_tensor(0.0) if a.get_mask().any() else x


def sparse(x):
    mask = x > 0
    return masked_tensor((x * mask).to_sparse(), mask.to_sparse()).to_dense().to_tensor(0.0)


MASKED = {
    "to_tensor": lambda x: masked(x).to_tensor(0.0),
    "get_data": lambda x: masked(x).get_data() + 1,
    "get_mask": lambda x: masked(x).get_mask().float(),
    "arithmetic": lambda x: (masked(x) + masked(x) * masked(x * 2) / masked(x)).to_tensor(0.0),
    "unary": lambda x: masked(x).exp().sqrt().to_tensor(1.0),
    "sum": lambda x: masked(x).sum(0).to_tensor(0.0),
    "mean": lambda x: masked(x).mean().to_tensor(0.0),
    "amax": lambda x: torch.amax(masked(x), -1).to_tensor(0.0),
    "softmax": lambda x: masked(x).softmax(-1).to_tensor(0.0),
    "masked.softmax": lambda x: torch.masked.softmax(x, -1, mask=x > 0),
    "views": lambda x: masked(x).reshape(4, 2).transpose(0, 1)[0].to_tensor(0.0),
    "where": lambda x: torch.where(x > 0.5, masked(x), masked_tensor(x, x <= 0)).to_tensor(0.0),
    "dtype": lambda x: masked(x).to(torch.float64).to_tensor(0.0),
    "as_masked_tensor": lambda x: as_masked_tensor(x * 2, x > 0).to_tensor(0.0),
    "output": masked,
    "outputs": lambda x: {"a": masked(x) * 2, "b": x},
    "compared": compared,
    "overwritten": overwritten,
    "branching": branching,
    "sparse": sparse,
}


def example():
    torch.manual_seed(1)
    return torch.randn(2, 4)


@pytest.mark.parametrize("name", MASKED)
def test_masked_tensors_are_recorded(name):
    found = validate(Function(MASKED[name]), (example(),))
    assert found.verdict.status is Status.PASSED
    assert not found.verdict.part("perturbation").exempt


@pytest.mark.parametrize(
    "forward",
    [lambda a: a.to_tensor(0.0) + 1, lambda a: (a * a).sum(-1), lambda a: a.get_mask() * 1],
    ids=["to_tensor", "sum", "mask"],
)
def test_a_masked_tensor_is_an_input(forward):
    found = validate(Function(forward), (masked(example()),))
    assert found.verdict.status is Status.PASSED


def test_a_wrapper_has_the_tensors_that_it_holds_as_parents():
    history = validate(Function(MASKED["sum"]), (example(),)).history
    assert history["maskedtensor_1"].parent_layers == ("clone_1_2", "clone_2_3")
    assert history["sum_1"].parent_layers == ("maskedtensor_1_4",)
    assert history["unwrap_1"].parent_layers == ("sum_1_5",)


class Wrapper(torch.Tensor):
    """Holds a tensor, and computes with it."""

    @staticmethod
    def __new__(cls, content):
        return torch.Tensor._make_wrapper_subclass(
            cls, content.shape, strides=content.stride(), dtype=content.dtype, requires_grad=content.requires_grad
        )

    def __init__(self, content):
        self.content = content

    @classmethod
    def __torch_dispatch__(cls, func, _types, args=(), kwargs=None):
        args, kwargs = tree_map(lambda one: one.content if isinstance(one, cls) else one, (list(args), kwargs or {}))
        return tree_map(lambda one: cls(one) if isinstance(one, torch.Tensor) else one, func(*args, **kwargs))


class WithProtocol(Wrapper):
    """Can be taken apart as PyTorch's compiler does."""

    def __tensor_flatten__(self):
        return ["content"], None

    @classmethod
    def __tensor_unflatten__(cls, content, _context, _size, _stride):
        return cls(content["content"])


class WithSlots(Wrapper):
    __slots__ = ("content",)


class OnlyMultiplies(Wrapper):
    """Lacks every other operator: even ``detach``, ``clone`` and ``alias``."""

    @classmethod
    def __torch_dispatch__(cls, func, _types, args=(), kwargs=None):
        if func is not torch.ops.aten.mul.Tensor:
            raise NotImplementedError(f"{func} is not supported")
        return super().__torch_dispatch__(func, _types, args, kwargs)


class OnlyAdds(Wrapper):
    """Raises for every function that it does not know, also where an attribute is read."""

    @classmethod
    def __torch_function__(cls, func, _types, args=(), kwargs=None):
        if func is not torch.Tensor.add:
            raise TypeError(f"{func} is not supported")
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Pair(Wrapper):
    """Holds its tensors in a list, and a number."""

    def __init__(self, content):
        self.both, self.scale = [content, content + 1], 0.5

    @property
    def content(self):
        return self.both[1]


def write_to_the_wrapper(kind, x):
    wrapper = kind(x.clone())
    wrapper.add_(1)
    return wrapper.content


def write_to_what_it_holds(kind, x):
    content = x.clone()
    wrapper = kind(content)
    content.add_(1)
    return (wrapper * 2).content


def give_it_another(kind, x):
    wrapper = kind(x.clone())
    _ = wrapper * 2
    wrapper.content = x.exp()
    return (wrapper * 2).content


USES = {
    "made": lambda kind, x: (kind(x) * 2 + 1).content,
    "returned": lambda kind, x: kind(x) * 2,
    "written": write_to_the_wrapper,
    "written inside": write_to_what_it_holds,
    "given another": give_it_another,
}


@pytest.mark.parametrize("kind", [Wrapper, WithProtocol, WithSlots])
@pytest.mark.parametrize("use", USES)
def test_users_wrappers_are_recorded(kind, use):
    x = example()
    plain = USES[use](kind, x)
    found = validate(Function(lambda x: USES[use](kind, x)), (x,))
    assert found.verdict.status is Status.PASSED
    assert not found.verdict.part("perturbation").exempt
    again = USES[use](kind, x)
    assert torch.equal(getattr(again, "content", again), getattr(plain, "content", plain))


@pytest.mark.parametrize("kind", [Wrapper, WithProtocol, WithSlots, OnlyMultiplies, Pair])
def test_a_users_wrapper_is_an_input(kind):
    wrapper = kind(example())
    before = wrapper.content.clone()
    found = validate(Function(lambda wrapper: (wrapper * 2).content + 1), (wrapper,))
    assert found.verdict.status is Status.PASSED
    assert torch.equal(wrapper.content, before)


def test_a_wrapper_that_lacks_operators():
    found = validate(Function(lambda x: (OnlyMultiplies(x) * 2).content), (example(),))
    assert found.verdict.status is Status.PASSED


def test_a_wrapper_whose_torch_function_raises():
    found = validate(Function(lambda x: OnlyAdds(x).add(1)), (example(),))
    assert found.verdict.status is Status.PASSED


class WithBuffer(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.register_buffer("state", kind(torch.ones(2, 4)))

    def forward(self, x):
        return (self.state.add_(x) * 1).content


@pytest.mark.parametrize("kind", [Wrapper, WithProtocol, WithSlots])
def test_a_wrapper_that_forward_writes_to_is_put_back(kind):
    model = WithBuffer(kind)
    assert validate(model, (example(),)).verdict.status is Status.PASSED
    assert torch.equal(model.state.content, torch.ones(2, 4))


class RaisesAlways(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, _types, args=(), kwargs=None):
        raise TypeError(f"{func} is not supported")


ATTRIBUTES = {
    "OnlyMultiplies": lambda: OnlyMultiplies(example()),
    "OnlyAdds": lambda: OnlyAdds(example()),
    "RaisesAlways": lambda: example().as_subclass(RaisesAlways),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "sparse": lambda: example().to_sparse(),
    "meta": lambda: example().to("meta"),
}


class WithAttribute(nn.Module):
    """Holds a tensor that it does not use; a hook may run in a gradient that it takes."""

    def __init__(self, tensor, hooked):
        super().__init__()
        self.fc, self.tensor, self.hooked = nn.Linear(4, 4), tensor, hooked

    def forward(self, x):
        y = self.fc(x)
        if not self.hooked:
            return y
        y.register_hook(lambda gradient: gradient * 2)
        return torch.autograd.grad(y.sum(), self.fc.weight)[0] + x.sum()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", ATTRIBUTES)
@pytest.mark.parametrize("hooked", [False, True])
def test_an_unusual_tensor_is_an_attribute(name, hooked):
    found = validate(WithAttribute(ATTRIBUTES[name](), hooked), (example(),))
    assert found.verdict.status is (Status.UNPROVEN if hooked else Status.PASSED)


@pytest.mark.parametrize(
    ("forward", "x"),
    [
        (MASKED["sum"], example()),
        (lambda x: (OnlyMultiplies(x) * 2).content, example()),
        (lambda x: OnlyAdds(x).add(1), example()),
        (lambda pair: (pair * 2).content, Pair(example())),
    ],
    ids=["masked", "lacks operators", "raises", "input"],
)
def test_a_history_with_wrappers_is_printed_saved_drawn_and_measured(forward, x, tmp_path):
    history = tl.log_forward_pass(Function(forward), x, layers_to_save="all")
    assert all(str(operation) for operation in history)
    with pytest.warns(UserWarning, match="of the class"):
        history.save(tmp_path / "saved")
    loaded = tl.load(tmp_path / "saved")
    assert list(loaded.layer_list) == list(history.layer_list)
    assert loaded.left_out
    assert history.draw(tmp_path / "drawn.svg")
    assert tl.measure_forward_pass(Function(forward), x, passes=1).live_bytes
