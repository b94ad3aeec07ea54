"""Which operation of one forward pass is which of another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchlens.records import align
from tests.draw.samples import Sketch
from tests.draw.samples import alexnet
from tests.draw.samples import demo_network
from tests.draw.samples import transformer

KINDS = st.sampled_from(["cos", "sin", "relu", "add"])


def chain(*steps, **fields):
    """Return a model whose operations follow one another; ``"layer.0/relu"`` runs in that module."""
    net = Sketch("Net")
    x = net.op("input")
    for step in steps:
        module, _, kind = step.rpartition("/")
        x = net.op(kind, x, inside=tuple(filter(None, [module])), **fields.get(kind, {}))
    net.op("output", x)
    return net.record().operations


def kinds(first, second):
    return {pair.operation.layer_label: pair.kind for pair in align(first, second).pairs if pair.kind != "same"}


@pytest.mark.parametrize("record", [demo_network(), alexnet(), transformer(2)], ids=["demo", "alexnet", "transformer"])
def test_a_pass_is_the_same_as_itself(record):
    alignment = align(record.operations, record.operations)
    assert alignment.is_same_graph
    assert [pair.first for pair in alignment.pairs] == [pair.second for pair in alignment.pairs]
    assert len(alignment.edges) == sum(len(op.edges) for op in record.operations)


def test_put_in_and_left_out():
    short, long = chain("cos", "relu"), chain("cos", "sin", "relu")
    assert kinds(short, long) == {"sin_1_2": "added"}
    assert kinds(long, short) == {"sin_1_2": "removed"}


def test_what_is_gone_stands_where_it_ran():
    alignment = align(chain("cos", "sin", "relu"), chain("cos", "tan", "relu"))
    types = [pair.operation.layer_type for pair in alignment.pairs]
    assert types == ["input", "cos", "sin", "tan", "relu", "output"]


def test_an_operation_put_in_changes_the_fate_of_no_equal_one():
    assert kinds(chain("relu", "relu"), chain("relu", "cos", "relu")) == {"cos_1_2": "added"}


def test_a_module_keeps_its_partner_though_others_move():
    before = chain("a/cos", "a/relu", "b/sin", "b/relu")
    after = chain("b/sin", "b/relu", "b/relu", "a/cos", "a/relu")
    alignment = align(before, after)
    together = {
        (pair.first.layer_label, pair.second.layer_label) for pair in alignment.pairs if pair.first and pair.second
    }
    assert ("cos_1_1", "cos_1_4") in together or ("sin_1_3", "sin_1_1") in together


def test_a_module_put_in_that_moves_the_names_of_all_after_it():
    before = chain("0/cos", "1/relu", "2/sin")
    after = chain("0/cos", "1/dropout", "2/relu", "3/sin")
    assert kinds(before, after) == {"dropout_1_2": "added"}


def test_a_renamed_module():
    steps = ["/cos", "/relu", "/sin"]
    assert kinds(chain(*("layer" + s for s in steps)), chain(*("block" + s for s in steps))) == {}


def test_a_module_with_something_else_inside_is_the_one_of_its_name():
    before = chain("0/cos", "0/relu", "1/cos", "1/relu", "2/cos", "2/relu")
    after = chain("0/cos", "0/relu", "1/cos", "1/gelu", "2/cos", "2/relu")
    assert kinds(before, after) == {"relu_2_4": "removed", "gelu_1_4": "added"}


@pytest.mark.parametrize(
    ("fields", "change"),
    [
        ({"tensor_shape": (5, 6)}, "shape (5, 5) → (5, 6)"),
        ({"tensor_dtype": "torch.float16"}, "dtype torch.float32 → torch.float16"),
        ({"tensor_device": "cuda:0"}, "device cpu → cuda:0"),
        ({"func_applied_name": "relu_"}, "function relu → relu_"),
        ({"func_position_args_non_tensor": ("1=2",)}, "arguments none → 1=2"),
        ({"func_keyword_args_non_tensor": ("dim=1", "out=2")}, "keywords none → dim=1, out=2"),
        ({"function_is_inplace": True}, "in place False → True"),
    ],
)
def test_changes_are_told(fields, change):
    alignment = align(chain("cos", "relu"), chain("cos", "relu", relu=fields))
    assert [pair.changes for pair in alignment.of_kind("changed")] == [(change,)]


def test_other_parents_are_edges_of_one_pass():
    alignment = align(chain("cos", "relu"), chain("cos", "sin", "relu"))
    label = {place: pair.operation.layer_type for place, pair in enumerate(alignment.pairs)}
    found = {(label[e.parent], label[e.child]): (e.in_first, e.in_second) for e in alignment.edges}
    assert found["cos", "relu"] == (True, False)
    assert found["cos", "sin"] == found["sin", "relu"] == (False, True)
    assert found["input", "cos"] == (True, True)
    assert not alignment.is_same_graph


def test_values_are_told_apart_by_fingerprints_alone():
    before = chain("cos", cos={"fingerprint": "aa"})
    after = chain("cos", cos={"fingerprint": "bb"})
    pairs = align(before, after).pairs
    assert [pair.has_other_values for pair in pairs] == [False, True, False]
    assert {pair.kind for pair in pairs} == {"same"}


def test_results_of_one_call_are_not_mixed_up():
    record = chain("lstm", "lstm", "lstm")
    several = tuple(replace(op, iterable_output_index=i) for i, op in enumerate(record))
    assert kinds(several, several[:2] + several[3:]) == {"lstm_2_2": "removed"}


@given(st.lists(KINDS, max_size=12), st.data())
def test_leaving_out_removes_and_nothing_else(steps, data):
    kept = [step for step in steps if data.draw(st.booleans())]
    alignment = align(chain(*steps), chain(*kept))
    assert len(alignment.of_kind("removed")) >= len(steps) - len(kept)
    assert len(alignment.of_kind("removed")) - len(alignment.of_kind("added")) == len(steps) - len(kept)


@given(st.lists(KINDS, max_size=12), st.lists(KINDS, max_size=12))
def test_every_operation_is_in_one_pair_and_order_is_kept(one, other):
    first, second = chain(*one), chain(*other)
    pairs = align(first, second).pairs
    assert tuple(pair.first for pair in pairs if pair.first) == first
    assert tuple(pair.second for pair in pairs if pair.second) == second
