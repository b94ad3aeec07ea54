"""Memory that is freed, reused, grown, or shared with an array that is freed."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture import record
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.validate import validate
from tests.capture.programs import graph_of
from tests.models import Function


def recorded(forward, *inputs):
    with torch.no_grad():
        assert validate(Function(forward), inputs).verdict.status.ok
        return ModelHistory(record(Function(forward), inputs, keep="all"))


def test_an_activation_is_free_when_its_array_is():
    gone = []

    def forward(x):
        activation = x * 2
        total = float(activation.numpy().sum())
        alive = weakref.ref(activation)
        del activation
        y = x + total
        gone.append(alive() is None)
        return y

    with torch.no_grad():
        record(Function(forward), (torch.ones(3),))
    assert gone == [True]


def test_an_activation_is_watched_as_long_as_a_view_of_its_array_is_there():
    def forward(x):
        y = x * 2
        part = y.numpy()[1:]
        z = x + 1
        part[0] = 7
        return y + z

    assert graph_of(recorded(forward, torch.ones(3))).splitlines()[-3:] == [
        "copy_1: mul_1 constant_1",
        "add_2: copy_1 add_1",
        "output_1: add_2",
    ]


def test_what_was_written_through_an_array_before_it_went_is_recorded():
    def forward(x):
        y = x * 2
        y.numpy()[0] = 7
        z = x + 1
        return y + z

    assert "add_2: copy_1 add_1" in graph_of(recorded(forward, torch.ones(3)))


def test_two_arrays_over_parts_of_one_tensor_are_both_watched():
    def forward(x):
        y = x * 2
        first, second = y[:1].numpy(), y[1:].numpy()
        first[0] = 7
        a = y + 0
        second[0] = 8
        b = y + 0
        first[0] = 9
        return a, b, y + 0

    history = recorded(forward, torch.ones(3))
    assert [history.operations[-place].tensor_contents.tolist() for place in (3, 2, 1)] == [
        [7, 2, 2],
        [7, 8, 2],
        [9, 8, 2],
    ]
    assert sum(op.layer_type == "copy" for op in history.operations) == 3


def test_equal_values_at_the_address_of_a_freed_activation_are_no_alias_of_it():
    reused = []

    def forward(x):
        for _ in range(400):
            activation = x * 0
            address = activation.data_ptr()
            del activation
            unseen = torch.Tensor([0.0] * 100)  # no torch function that could be seen
            if unseen.data_ptr() == address:
                reused.append(True)
                break
        return unseen + 1

    with torch.no_grad():
        history = ModelHistory(record(Function(forward), (torch.ones(100),)))
    if not reused:
        pytest.skip("no memory was used again")
    assert [edge.parent for edge in history.operations[-2].edges] == ["constant_1"]


def test_a_parameter_made_of_an_activation_that_is_gone_is_its_alias():
    def forward(x):
        return torch.nn.Parameter(x * 0) + 1

    assert graph_of(recorded(forward, torch.ones(3))).splitlines()[1:3] == ["mul_1: input_1", "assubclass_1: mul_1"]


def test_a_tensor_without_elements_that_grows_is_saved_as_it_was():
    def forward(x):
        out = torch.empty(0)
        torch.add(x, 1, out=out)
        return out * 2

    history = recorded(forward, torch.ones(3))
    assert [tuple(op.tensor_contents.shape) for op in history.operations] == [(3,), (0,), (3,), (3,), (3,)]


def test_a_negated_view_from_the_first_element_on_has_the_negated_values():
    x = torch.arange(1.0, 4.0)
    assert fingerprint(torch._neg_view(x)) == fingerprint(-x) != fingerprint(x)
    history = recorded(lambda x: torch._neg_view(x * 2) + 1, x)
    assert history["negview_1"].tensor_contents.tolist() == [-2, -4, -6]


@pytest.mark.parametrize("make", [torch.zeros, torch.ones], ids=["zeros", "ones"])
@pytest.mark.parametrize(
    "layout",
    [lambda t: t, lambda t: t.t(), lambda t: t[1:], torch.nn.Parameter, lambda t: t[:0]],
    ids=["dense", "transposed", "offset", "parameter", "empty"],
)
def test_fingerprints_of_records_are_those_of_tensors(make, layout):
    tensor = layout(make(3, 3))
    recording = record(Function(lambda x: layout(x * 1)), (make(3, 3),))
    assert recording.calls[-1].outputs[0].fingerprint == fingerprint(tensor) == fingerprint(tensor.detach().clone())


def test_an_array_of_another_type_than_its_tensor_is_a_copy_and_holds_nothing():
    alive = []

    def forward(x):
        y = x * 2
        copied = np.asarray(y, dtype=np.float64)
        alive.append(weakref.ref(y))
        del y
        z = x + float(copied.sum())
        alive.append(alive[0]())
        return z

    with torch.no_grad():
        record(Function(forward), (torch.ones(3),))
    assert alive[1] is None
