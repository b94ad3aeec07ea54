"""Opaque code: custom functions that leave torch, transforms, scripted modules, the compiler."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections import UserDict
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad
from torch.func import hessian
from torch.func import jacfwd
from torch.func import jacrev
from torch.func import jvp
from torch.func import vjp
from torch.func import vmap

from pytest_torchlens.capture import record
from pytest_torchlens.validate import validate
from tests.capture.programs import Programs
from tests.capture.programs import check
from tests.capture.programs import trace
from tests.models import Function

PROGRAMS = Programs()
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:FutureWarning")


# -- custom functions that leave torch -------------------------------------------------------------------------------


class Pair:
    def __init__(self, one, other):
        self.one, self.other = one, other


class SlottedPair:
    __slots__ = ("one", "other")

    def __init__(self, one, other):
        self.one, self.other = one, other


@dataclasses.dataclass(frozen=True)
class FrozenPair:
    one: torch.Tensor
    other: torch.Tensor


class ProductOfAPair(torch.autograd.Function):
    """Works in NumPy on tensors that it finds in an object."""

    @staticmethod
    def forward(ctx, pair):
        one, other = (pair["one"], pair["other"]) if isinstance(pair, UserDict) else (pair.one, pair.other)
        return torch.from_numpy(one.detach().numpy() * other.detach().numpy())


@pytest.mark.parametrize("kind", [Pair, SlottedPair, FrozenPair, lambda one, other: UserDict(one=one, other=other)])
def test_tensors_in_objects_are_parents(kind):
    model = Function(lambda x: ProductOfAPair.apply(kind(x * 2, x + 1)) + 1)
    found = validate(model, (torch.ones(3),))
    assert found, found.verdict
    parents = [found.history[label].layer_type for label in found.history["productofapair_1"].parent_layers]
    assert parents == ["mul", "add"]


class CountsItsCalls(torch.autograd.Function):
    """Writes to a counter, which is not on the path from its input to its output: that goes through Python."""

    count = torch.zeros(1)

    @staticmethod
    def forward(ctx, x):
        CountsItsCalls.count.add_(1)
        return torch.tensor((x * 2).tolist())


def test_a_write_inside_a_custom_function_hides_no_parent():
    found = validate(Function(lambda x: CountsItsCalls.apply(x) + 1), (torch.ones(3),))
    assert found, found.verdict
    assert "input_1_0" in found.history["countsitscalls_1"].parent_layers


class FillsByPointer(torch.autograd.Function):
    """Imitates a kernel of a C++ extension, which writes to its argument's memory."""

    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        doubled = [2 * value for value in (ctypes.c_float * x.numel()).from_address(x.data_ptr())]
        (ctypes.c_float * x.numel()).from_address(out.data_ptr())[:] = doubled
        return out


def test_memory_filled_by_pointer_makes_the_function_an_operation():
    found = validate(Function(lambda x: FillsByPointer.apply(x) + 1), (torch.arange(1.0, 4.0),))
    assert found, found.verdict
    assert found.history["fillsbypointer_1"].parent_layers == ("input_1_0",)


# -- transforms ------------------------------------------------------------------------------------------------------


class Holder:
    def __init__(self, tensor):
        self.tensors = {"weight": tensor}


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    expand_1: input_1
    vmap_1: mul_1 expand_1
    output_1: vmap_1
    """
)
def vmap_over_an_attribute(x):
    held = Holder(x * 2)
    return vmap(lambda row: row * held.tensors["weight"].sum())(x.expand(3, 6))


@PROGRAMS.add(
    """
    input_1
    sum_1: input_1
    expand_1: input_1
    vmap_1: sum_1 expand_1
    output_1: vmap_1
    """
)
def vmap_over_a_partial(x):
    return vmap(functools.partial(lambda factor, row: row * factor, x.sum()))(x.expand(3, 6))


@PROGRAMS.add(
    """
    input_1
    exp_1: input_1
    expand_1: input_1
    vmap_1: exp_1 expand_1
    output_1: vmap_1
    """
)
def vmap_over_a_function_in_a_function(x):
    y = x.exp()

    def inner(row):
        return row + y + torch.zeros(6)

    return vmap(lambda row, twice=inner: twice(row))(x.expand(2, 6))


@PROGRAMS.add(
    """
    input_1
    grad_1: input_1 $score.weight $score.bias
    output_1: grad_1
    """,
    mode="grad",
)
class SlopeOfAModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(6, 1)

    def forward(self, x):
        return grad(lambda v: torch.tanh(self.score(v)).sum())(x)


@PROGRAMS.add(
    """
    input_1
    exp_1: input_1
    mul_1: input_1
    vjp_1: exp_1 mul_1
    pullback_1: exp_1 mul_1 vjp_1
    output_1: pullback_1
    """
)
def pulled_back(x):
    factor = x.exp()
    result, pull = vjp(lambda v: torch.sin(v) * factor, x * 2)
    return pull(result)


@PROGRAMS.add(
    """
    input_1
    exp_1: input_1
    mul_1: input_1
    jvp_1: exp_1 mul_1 input_1
    jvp_2: exp_1 mul_1 input_1
    add_1: jvp_1 jvp_2
    output_1: add_1
    """
)
def pushed_forward(x):
    factor = x.exp()
    result, slope = jvp(lambda v: torch.sin(v) * factor, (x * 2,), (x,))
    return result + slope


@pytest.mark.parametrize("jacobian", [jacrev, functools.partial(jacrev, chunk_size=1), jacfwd])
def test_jacobians_depend_on_all_that_their_function_read(jacobian):
    def forward(x):
        factor = x.exp()
        return jacobian(lambda v: torch.sin(v) * factor)(x * 2)

    found = validate(Function(forward), (torch.linspace(0, 1, 6),))
    assert found, found.verdict
    assert {"exp_1_1", "mul_1_2"} <= set(found.history.ancestors("output_1"))


def test_hessians_depend_on_all_that_their_function_read():
    def forward(x):
        factor = x.exp()
        return hessian(lambda v: (torch.sin(v) * factor).sum())(x * 2)

    found = validate(Function(forward), (torch.linspace(0, 1, 6),))
    assert found, found.verdict
    assert {"exp_1_1", "mul_1_2"} <= set(found.history.ancestors("output_1"))


def test_steps_and_modules_inside_a_transform_are_noted():
    _, history = trace(PROGRAMS["SlopeOfAModule"], "grad")
    (call,) = history.recording.calls
    assert call.info.steps == ("linear", "tanh", "sum")
    assert [module.address for module in history.recording.module_calls] == ["", "score"]


# -- scripted and compiled code --------------------------------------------------------------------------------------


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.norm(x) * self.scale


@PROGRAMS.add(
    """
    input_1
    expand_1: input_1
    buffer_1
    buffer_2
    buffer_3
    scaled_1: buffer_1 buffer_2 buffer_3 expand_1 $inner.scale $inner.norm.weight $inner.norm.bias
    add_1: buffer_1 ~scaled_1
    output_1: scaled_1
    output_2: add_1
    """
)
class ScriptedInTraining(nn.Module):
    """Reads the running mean after a scripted module has written to it."""

    def __init__(self):
        super().__init__()
        self.inner = torch.jit.script(Scaled())

    def forward(self, x):
        y = self.inner(x.expand(3, 6))
        return y, self.inner.norm.running_mean + 0


class AddsUp(nn.Module):
    """Writes to its buffer in evaluation too."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(6))

    def forward(self, x):
        self.total.add_(x)
        return x * 2


@PROGRAMS.add(
    """
    input_1
    buffer_1
    addsup_1: buffer_1 input_1
    add_1: addsup_1 buffer_1 ~addsup_1
    output_1: add_1
    """
)
class ScriptedInEvaluation(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.jit.script(AddsUp()).eval()

    def forward(self, x):
        y = self.inner(x)
        return y + self.inner.total


@torch.jit.script
def halved_in_place(x: torch.Tensor):
    x.div_(2)
    return x + 1


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    halvedinplace_1: mul_1
    add_1: mul_1 ~halvedinplace_1 halvedinplace_1
    output_1: add_1
    """,
    mode="no_grad",
)
def a_scripted_function_writes_its_argument(x):
    y = x * 2
    return y + halved_in_place(y)


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    vmap_1: mul_1
    add_1: mul_1 ~vmap_1 vmap_1
    output_1: add_1
    """,
    mode="no_grad",
)
def vmap_that_writes(x):
    y = x * 2
    z = vmap(lambda row: row.add_(1) * 3)(y)
    return y + z


@torch.compile(backend="eager")
def compiled(x):
    return torch.relu(x * 2) + 1


def test_a_compiled_function_is_recorded():
    found = validate(Function(lambda x: compiled(x) * 2), (torch.rand(4),))
    assert found.verdict
    assert [op.layer_type for op in found.history if op.func_applied_name] == ["mul", "relu", "add", "mul"]


@PROGRAMS.add(
    """
    input_1
    sum_1: input_1
    gt_1: sum_1
    mul_1: input_1
    output_1: mul_1
    """
)
def branch_of_cond(x):
    return torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y - 1, (x,))


# -- subclasses ------------------------------------------------------------------------------------------------------


class Listening(torch.Tensor):
    heard: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.heard.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("keep", ["none", "all"])
def test_a_subclass_hears_the_model_and_not_us(keep):
    model = Function(lambda x: torch.relu(x * 2).add_(1).sum())
    x = torch.rand(4).as_subclass(Listening)
    Listening.heard.clear()
    record(model, (x,), keep=keep)
    assert Listening.heard == ["mul", "relu", "add_", "sum"]


# -- objects with __torch_function__ that are no tensors --------------------------------------------------------------


class Interval:
    """Two bounds, which functions of PyTorch take like one tensor."""

    def __init__(self, low, high):
        self.low = low
        self.high = high

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func not in (torch.add, torch.Tensor.add, torch.stack, F.silu, torch.sum):
            return NotImplemented
        low, high = (func(*_bounds(args, name), **(kwargs or {})) for name in ("low", "high"))
        return cls(low, high) if func is not torch.sum else high - low


def _bounds(arg, name):
    if isinstance(arg, list | tuple):
        return type(arg)(_bounds(item, name) for item in arg)
    return getattr(arg, name) if isinstance(arg, Interval) else arg


@PROGRAMS.add(
    """
    input_1
    sub_1: input_1
    add_1: input_1
    stack_1: sub_1
    stack_2: add_1
    add_2: input_1 stack_1
    add_3: input_1 stack_2
    silu_1: add_2
    silu_2: add_3
    sum_1: silu_1
    sum_2: silu_2
    sub_2: sum_2 sum_1
    output_1: sub_2
    """
)
def object_in_place_of_tensors(x):
    interval = Interval(x - 1, x + 2)
    both = torch.stack([interval, interval])
    return torch.sum(F.silu(torch.add(x, both)))


def test_an_object_is_asked_once_and_its_steps_are_grouped_under_the_function():
    recording = record(Function(object_in_place_of_tensors), (torch.rand(3),))
    groups = [(call.info.name, call.group.name) for call in recording.calls if call.group is not None]
    assert groups == [
        *[("stack", "stack")] * 2,
        *[("add", "add")] * 2,
        *[("silu", "silu")] * 2,
        *[("sum", "sum")] * 2,
        ("sub", "sum"),
    ]


class Countable(type):
    """A class that counts its members, of which it has none: false in a condition."""

    def __len__(cls):
        return 0


class Empty(Interval, metaclass=Countable):
    """An interval of such a class."""


def test_an_object_whose_class_is_false_is_asked_as_any_other():
    def forward(x):
        return torch.sum(torch.add(Empty(x - 1, x + 2), x))

    assert not bool(Empty)
    groups = [call.group.name for call in record(Function(forward), (torch.rand(3),)).calls if call.group is not None]
    assert groups == ["add", "add", "sum", "sum", "sum"]


def test_a_function_that_an_object_does_not_know_raises_as_without_us():
    def unknown(x):
        return torch.cos(Interval(x, x))

    with pytest.raises(TypeError) as plain:
        unknown(torch.rand(2))
    with pytest.raises(TypeError) as recorded:
        record(Function(unknown), (torch.rand(2),))
    assert str(recorded.value) == str(plain.value)


def test_an_error_of_an_object_leaves_the_group_as_it_was():
    class Refusing:
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            raise LookupError(func.__name__)

    def refused(x):
        with pytest.raises(LookupError, match="cos"):
            torch.cos(Refusing())
        return x + 1

    (call,) = record(Function(refused), (torch.rand(2),)).calls
    assert call.group is None


def test_a_method_in_place_of_a_class_method_stays_one_call():
    class Old:
        def __init__(self, value):
            self.value = value

        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(self.value)

    with pytest.warns(UserWarning, match="plain method"):
        recording = record(Function(lambda x: torch.cos(Old(x)) + x), (torch.rand(2),))
    assert [call.info.name for call in recording.calls][-1] == "add"


@PROGRAMS.parametrize()
def test_graph(program, mode):
    check(program, mode)


def test_our_own_look_at_what_a_transform_reaches_is_no_escape():
    recording = record(SlopeOfAModule(), (torch.rand(3, 6),), thorough=True)
    assert recording.escapes == []
    assert [source.value.position for source in recording.sources] == list(range(len(recording.sources)))
