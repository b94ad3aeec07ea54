"""Inputs that can be read only once are read once; a part that checked nothing has not passed."""

from __future__ import annotations

import ctypes
import itertools

import pytest
import torch
from torch import nn

from pytest_torchlens.records import Status
from pytest_torchlens.validate import validate
from tests.models import Function
from tests.models import failures

X = torch.ones(2)


class Stream:
    """An object around a single-use iterator."""

    def __init__(self, pipe):
        self.pipe = pipe


ONCE = {
    "iterator": (lambda: iter([X, X + 1]), "input '0' (list_iterator)"),
    "generator": (lambda: (X * n for n in range(3)), "input '0' (generator)"),
    "map": (lambda: map(torch.neg, [X, X]), "input '0' (map)"),
    "in a dict": (lambda: {"batches": [iter([X, X])]}, "input '0.batches.0' (list_iterator)"),
    "in an object": (lambda: Stream(iter([X, X])), "input '0.pipe' (list_iterator)"),
}


def total(batches):
    if isinstance(batches, dict):
        batches = batches["batches"][0]
    return sum(batch * 2 for batch in getattr(batches, "pipe", batches))


@pytest.mark.parametrize(("build", "name"), ONCE.values(), ids=ONCE)
def test_the_one_recording_there_can_be_is_judged(build, name):
    found = validate(Function(total), (build(),))
    assert failures(found.verdict) == []
    assert found.verdict.status is Status.UNPROVEN
    assert found.verdict.operations_checked > 2
    part = found.verdict.part("observer")
    assert part.status is Status.NOT_APPLICABLE
    assert part.reason == f"the model cannot be run again on what can be read once: {name}"
    assert found.verdict.part("completeness").status is Status.PASSED


def test_a_model_that_uses_up_the_graph_of_an_input_is_told_so():
    start = torch.ones(2, requires_grad=True)
    model = Function(lambda x: torch.autograd.grad(x.sum(), start)[0])
    with pytest.raises(RuntimeError, match=r"^Function ran once and cannot run again.* the graph of input '0'"):
        validate(model, (start.exp(),))


def test_a_model_that_uses_up_its_own_graph_raises_what_it_raises():
    def takes_two_gradients(x):
        y = x.exp().sum()
        return torch.autograd.grad(y, start)[0] + torch.autograd.grad(y, start)[0]

    start = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"^Trying to backward through the graph a second time"):
        validate(Function(takes_two_gradients), (start * 2,))


def test_a_failure_of_the_one_recording_stands():
    def bypasses(batches):
        x = next(batches)
        with torch._C.DisableTorchFunction():
            return torch.cos(x)

    verdict = validate(Function(bypasses), (iter([X]),)).verdict
    assert [failure.operation for failure in verdict.part("completeness").failures] == ["aten::cos"]


def test_a_list_is_read_as_often_as_need_be():
    assert validate(Function(total), ([X, X],)).verdict.part("observer").status is Status.PASSED


STEPS = itertools.count()  # not held by the model: nothing tells that it is used


def test_of_a_model_that_runs_other_operations_each_time_the_first_recording_is_judged():
    table = torch.ones(2)

    def forward(x):
        for _ in range(next(STEPS) + 1):
            x = x + table
        return x

    found = validate(Function(forward), (X,))
    assert found.verdict.status is Status.UNPROVEN
    assert len(found.history.recording.calls) == 1
    part = found.verdict.part("observer")
    assert part.status is Status.NOT_APPLICABLE
    assert part.reason == "two plain runs from one state differ: the model does not repeat itself"


FIRST_CALLS: list[int] = []  # not held by the model either
TABLE = torch.tensor([0.25, 0.5])
OTHERS = {
    "another number": lambda x, is_first: TABLE + x * (1.5 if is_first else 1.25),
    "another function": lambda x, is_first: TABLE * (x.sin() if is_first else x.cos()),
    "another count": lambda x, is_first: TABLE + (x * 2 + 1 if is_first else x * 2),
    "a constant made": lambda x, is_first: torch.Tensor([1.0, 2.0]) + x * (1.5 if is_first else 1.25),
    "no constant": lambda x, is_first: x * (1.5 if is_first else 1.25),
}


@pytest.mark.parametrize("function", OTHERS.values(), ids=OTHERS)
def test_a_first_call_that_differs_is_a_failure(function):
    """A constant has the model recorded twice: the second record must not replace what the first one shows."""
    FIRST_CALLS.clear()

    def forward(x):
        FIRST_CALLS.append(1)
        return function(x, len(FIRST_CALLS) == 1)

    verdict = validate(Function(forward), (X,)).verdict
    assert verdict.part("observer").status is Status.FAILED, verdict.words
    message = "output differs between the recorded and the plain run, in the first of three runs only"
    assert verdict.part("observer").failures[0].message == message


class DiffersAtFirst(nn.Module):
    """Under a dispatch mode, and only then, its weight holds other values for a moment: blame the watch."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.address = self.weight.data_ptr()

    def forward(self, x):
        FIRST_CALLS.append(1)
        ctypes.memset(self.address, torch._C._len_torch_dispatch_stack(), self.weight.nbytes)
        zeros = self.weight * 0
        ctypes.memset(self.address, 0, self.weight.nbytes)
        return (zeros + x) * (1.5 if len(FIRST_CALLS) == 1 else 1.25)


def test_a_part_that_fails_under_each_watch_excuses_no_other():
    FIRST_CALLS.clear()
    verdict = validate(DiffersAtFirst(), (X,)).verdict
    assert verdict.part("replay").reason.startswith("while the dispatcher was watched: ")
    assert verdict.part("observer").failures[0].message.endswith("in the first of three runs only")


def generating(x):
    yield x * 2


EMPTY = {"nothing": lambda x: None, "a number": lambda x: 3, "a generator": generating}


@pytest.mark.parametrize("forward", EMPTY.values(), ids=EMPTY)
def test_a_model_without_operations_is_unproven(forward):
    found = validate(Function(forward), (X,))
    assert not found
    assert found.verdict.status is Status.UNPROVEN
    assert found.verdict.words == "unproven (no operation ran, so there was nothing to prove)"


def test_a_model_that_returns_its_input_is_unproven():
    verdict = validate(nn.Identity(), (X,)).verdict
    assert verdict.status is Status.UNPROVEN
    assert verdict.part("replay").status is Status.PASSED
