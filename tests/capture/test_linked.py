"""Objects that reference each other, long chains, and modules nested as deep as Python allows."""

from __future__ import annotations

import sys

import torch
from torch import nn

from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture import record
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.validate import validate
from tests.models import Function
from tests.models import failures


class Node:
    """References its neighbours, and itself."""

    def __init__(self, value):
        self.value = value
        self.neighbours = [self]


def everyone_knows_everyone(count):
    nodes = [Node(torch.full((1,), float(number))) for number in range(count)]
    for node in nodes:
        node.neighbours = nodes
        node.others = [other for other in nodes if other is not node]
    return nodes


def chain(length):
    linked = None
    for number in range(length):
        linked = (torch.full((1,), float(number)), linked)
    return linked


class Nested(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.inner = Nested(depth - 1) if depth else None

    def forward(self, x):
        return self.inner(x) + 1 if self.inner else x


def input_paths(recording):
    return [source.name for source in recording.sources if source.kind == "input"]


def test_objects_that_know_each_other_are_entered_once():
    nodes = everyone_knows_everyone(40)
    recording = record(Function(lambda nodes: nodes[0].others[1].value * 2), (nodes,))
    assert len(input_paths(recording)) == 40
    assert recording.sources[recording.calls[0].args[0].position].live is nodes[2].value


class SumOfNodes(torch.autograd.Function):
    """Finds tensors in objects, and adds them up in a custom function."""

    @staticmethod
    def forward(ctx, x, node):
        return torch.from_numpy(x.detach().numpy() + sum(other.value.numpy() for other in node.neighbours))


def test_objects_that_reference_each_other_are_rebuilt():
    model = Function(lambda x: SumOfNodes.apply(x, everyone_knows_everyone(30)[3]))
    (*_, call) = record(model, (torch.ones(2),)).calls
    assert len(edges_in(call)) == 31
    assert failures(validate(model, (torch.ones(2),)).verdict) == []


def test_a_chain_of_objects_that_is_too_long_to_enter_is_left_alone():
    node = Node(torch.ones(1))
    for _ in range(500):
        node, last = Node(torch.ones(1)), node
        node.neighbours = [last]
    output = record(Function(lambda x: SumOfNodes.apply(x, node)), (torch.ones(2),)).output
    assert output.tolist() == [2, 2]


def test_a_list_that_is_shared_many_times_over_is_entered_once():
    shared = [torch.ones(1)]
    for _ in range(50):
        shared = [shared, shared]
    recording = record(Function(lambda shared: [shared, torch.ones(1)]), (shared,))
    assert input_paths(recording) == [".".join("0" * 52)]
    assert len(recording.outputs) == 2


def test_a_tensor_twice_in_a_result_has_both_its_paths():
    recording = record(Function(lambda x: [(y := x * 2), {"again": y}]), (torch.ones(1),))
    assert [path for path, _ in recording.outputs] == ["0", "1.again"]


def test_inputs_and_outputs_linked_a_thousand_deep():
    recording = record(Function(lambda linked: (linked, linked[0] * 2)), (chain(1000),))
    assert len(input_paths(recording)) == 1000
    assert len(recording.outputs) == 1001
    assert validate(Function(lambda linked: linked[1][1][0] * 2), (chain(1000),)).verdict


def test_a_generator_deep_in_the_result_is_said_to_be_unfinished():
    def deep(x):
        linked = (number for number in range(3))
        for _ in range(2000):
            linked = [linked]
        return linked

    recording = record(Function(deep), (torch.ones(1),))
    assert recording.untraced == ["it returned a generator: what that yields was not recorded (exhaust=True does)"]


def test_modules_nested_as_deep_as_a_plain_call_allows():
    limit = sys.getrecursionlimit()
    model = Nested(200)
    history = ModelHistory(record(model, (torch.ones(1),)))
    assert len(history.operations) == 202
    assert validate(model, (torch.ones(1),)).verdict
    assert sys.getrecursionlimit() == limit


def test_a_recursion_limit_that_the_model_sets_stays():
    limit = sys.getrecursionlimit()

    def forward(x):
        sys.setrecursionlimit(limit + 7)
        return x * 2

    try:
        record(Function(forward), (torch.ones(1),))
        assert sys.getrecursionlimit() == limit + 7
    finally:
        sys.setrecursionlimit(limit)
