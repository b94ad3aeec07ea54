"""Inputs and outputs of any nesting reach the model and the caller unchanged, and each tensor in them is recorded."""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import typing

import torch

from pytest_torchlens.capture import record
from pytest_torchlens.capture.leaves import kinds
from tests.capture.programs import Program
from tests.capture.programs import Programs
from tests.capture.programs import check
from tests.capture.programs import trace
from tests.models import Function

PROGRAMS = Programs()


class Span(typing.NamedTuple):
    low: torch.Tensor
    high: torch.Tensor


class Reply(collections.OrderedDict):
    """A mapping with its entries as attributes, as model libraries return."""

    __getattr__ = collections.OrderedDict.__getitem__


@dataclasses.dataclass(frozen=True)
class Report:
    span: Span
    reply: Reply
    title: str = "a report"


class Region:
    """No ``__dict__``: attributes live in slots."""

    __slots__ = ("_corners", "name")

    def __init__(self, corners, name):
        self._corners = corners
        self.name = name


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    min_1: input_1
    max_1: mul_1
    output_1: min_1
    output_2: max_1
    output_3: mul_1
    output_4: input_1
    """
)
def named_tuple_mapping_and_dataclass(x):
    reply = Reply(last=x * 2, first=x, nothing=None)
    return Report(Span(x.min(), reply.last.max()), reply)


@PROGRAMS.add(
    """
    input_1
    input_2
    input_3
    sum_1: input_1
    add_1: sum_1
    sum_2: input_2
    add_2: sum_2
    output_1: add_1
    output_2: add_2
    """,
    inputs=lambda: (
        [{"image": torch.ones(2), "meta": {"name": "a"}}, {"image": torch.ones(3), "mask": torch.zeros(3)}],
    ),
)
def list_of_dicts(samples):
    return [{"score": sample["image"].sum() + len(sample)} for sample in samples]


@PROGRAMS.add(
    """
    input_1
    input_2
    sub_1: input_2 input_1
    output_1: sub_1
    """,
    inputs=tuple,
    kwargs=lambda: {"second": torch.ones(2), "first": torch.zeros(2), "flag": True},
)
def keywords_alone(*, first, second, flag):
    return first - second if flag else None


@PROGRAMS.add(
    """
    input_1
    input_2
    mul_1: input_1
    mul_2: input_2
    output_1: mul_1
    output_2: mul_2
    """,
    inputs=lambda: ({("level", 0): Region(torch.arange(4.0), "r"), 3: Region(torch.ones(2), "s")},),
)
def slots_and_keys_that_are_no_text(levels):
    return {key: region._corners * 2 for key, region in levels.items()}


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    add_1: mul_1
    output_1: add_1
    """,
    inputs=lambda: (torch.ones(2),) * 2,
    kwargs=dict,
)
def the_same_tensor_twice(a, b):
    assert a is b
    a.mul_(2)
    return b + a


@PROGRAMS.add(
    """
    input_1
    input_2
    mul_1: input_1
    output_1: input_2
    output_2: mul_1
    output_3: input_1
    output_4: mul_1
    output_5: input_2
    """,
    inputs=lambda: (torch.ones(2), torch.ones(3)),
)
def inputs_among_the_outputs(a, b):
    double = a * 2
    return b, double, a, [double, None], b


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    sum_1: input_1
    output_1: mul_1
    output_2: sum_1
    """
)
def deque_and_scalars(x):
    return collections.deque([x * 2, 3, "text"]), x.sum()


@PROGRAMS.add(
    """
    input_1
    """
)
def nothing(x):
    assert x.dim() == 1


@PROGRAMS.add(
    """
    arange_1
    getitem_1: arange_1
    mul_1: getitem_1
    eye_1
    output_1: mul_1
    output_2: eye_1
    """,
    inputs=tuple,
)
def no_inputs():
    return torch.arange(3.0)[:, None] * 2, torch.eye(2), 5


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    sum_1: mul_1
    add_1: input_1
    sub_1: input_1
    getitem_1: input_1
    """
)
def numbers_and_arrays_alone(x):
    return (x * 2).sum().item(), (x + 1).tolist(), (x - 1).numpy(), f"{x[0]:.1f}"


@PROGRAMS.add(
    """
    input_1
    input_2
    cat_1: input_1 input_2
    tensor_1
    tensor_2
    setitem_1: cat_1 tensor_1 tensor_2
    getitem_1: setitem_1
    getitem_2: setitem_1
    getitem_3: setitem_1
    split_1: setitem_1
    split_2: setitem_1
    output_1: getitem_1
    output_2: getitem_2
    output_3: getitem_3
    output_4: split_1
    output_5: split_2
    """,
    inputs=lambda: ([torch.ones(1, 2), torch.ones(2, 2)], (slice(0, 1), [0])),
)
def indices_of_many_kinds(parts, where):
    whole = torch.cat(parts)
    whole[(torch.tensor([0]), torch.tensor([1]))] = 5
    return whole[where[0]], whole[:, where[1]], whole[..., None], torch.split(whole, [1, 2])


def test_paths_of_the_outputs():
    _, history = trace(PROGRAMS["named_tuple_mapping_and_dataclass"], "grad")
    paths = [path for path, _ in history.recording.outputs]
    assert paths == ["span.0", "span.1", "reply.last", "reply.first"]


def test_a_generator_is_handed_on_unused():
    def forward(x):
        return (x * i for i in range(3))

    model, history = trace(Program(forward, ""), "grad")
    assert history.recording.calls == []
    assert [tensor.sum().item() for tensor in history.recording.output] == [0, 21, 42]
    assert model(torch.ones(2)) is not None


def test_a_dot_in_a_key_is_not_a_container():
    assert kinds({"a.b": torch.ones(1), "a": 3}) == {"": "dict of 2", "a.b": "tensor"}


class Named(tuple):
    """A tuple whose constructor takes more than its items."""

    def __new__(cls, name, *items):
        return super().__new__(cls, items)


class NamedList(list):
    def __init__(self, name, items):
        super().__init__(items)


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    stack_1: input_1 mul_1
    cat_1: stack_1
    output_1: cat_1
    """
)
def sequences_with_constructors_of_their_own(x):
    stacked = torch.stack(Named("a", x, x * 2))
    return torch.cat(NamedList("b", [stacked, stacked]))


@PROGRAMS.parametrize()
def test_graph(program, mode):
    check(program, mode)


class Lazy(collections.abc.Mapping):
    """Creates an entry on access."""

    def __init__(self, **makers):
        self.makers = makers

    def __getitem__(self, key):
        return self.makers[key]()

    def __iter__(self):
        return iter(self.makers)

    def __len__(self):
        return len(self.makers)


class Closed:
    __slots__ = ("x",)

    def __getattr__(self, name):
        raise KeyError(name)


def refuse():
    raise KeyError("nobody asked for this")


def test_inputs_are_not_asked_for_what_the_model_does_not_ask():
    batch = Lazy(mask=refuse, x=lambda: torch.ones(3))
    recording = record(Function(lambda batch, closed: batch["x"] * 2), (batch, Closed()))
    assert torch.equal(recording.output, torch.full((3,), 2.0))
