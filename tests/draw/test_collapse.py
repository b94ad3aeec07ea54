"""Graphs too large to draw in full, and graphs that are asked for at one level."""

from __future__ import annotations

import pytest

from tests.draw.parsed import parse
from tests.draw.samples import Sketch
from tests.draw.samples import alexnet
from tests.draw.samples import transformer


def test_a_level_draws_modules_as_nodes():
    drawn = parse(alexnet(), vis_nesting_depth=1)
    assert set(drawn.nodes) == {
        "op-input_1_0",
        "module-features",
        "op-adaptiveavgpool2d_1_14",
        "op-flatten_1_15",
        "module-classifier",
        "op-output_1_23",
    }
    assert drawn.boxes == {}


def test_a_collapsed_module_tells_what_is_in_it():
    drawn = parse(alexnet(), vis_nesting_depth=1)
    node = drawn.nodes["module-classifier"]
    assert (node["shape"], node["peripheries"], node["class"]) == ("box", "2", "params module")
    expected = ["@classifier", "Sequential", "1x1000 (3.9 KB)", "7 operations", "58,631,144 params"]
    assert drawn.lines("module-classifier") == expected


def test_arrows_lead_into_and_out_of_a_collapsed_module():
    edges = set(parse(alexnet(), vis_nesting_depth=1).edges)
    assert ("op-input_1_0", "module-features") in edges
    assert ("module-features", "op-adaptiveavgpool2d_1_14") in edges
    assert len(edges) == 5


def test_a_level_below_all_modules_changes_nothing_but_the_title():
    assert set(parse(alexnet(), vis_nesting_depth=9).nodes) == set(parse(alexnet()).nodes)


def test_too_many_nodes_are_collapsed_no_more_than_needed():
    history = transformer(1)
    assert len(history.operations) == 20
    assert len(parse(history, max_nodes=20).nodes) == 20
    drawn = parse(history, max_nodes=19)
    assert "module-blocks-2e-0-2e-attn" in drawn.nodes
    assert "op-add_1_13" in drawn.nodes
    assert drawn.title[-1] == "modules at level 3 are drawn as one node each (20 nodes in full)"


@pytest.mark.parametrize("max_nodes", [3, 4, 9, 19])
def test_the_limit_is_kept(max_nodes):
    assert len(parse(transformer(1), max_nodes=max_nodes).nodes) <= max_nodes


def test_a_graph_without_modules_is_cut_and_says_so():
    net = Sketch("Chain")
    x = net.op("input")
    for _ in range(50):
        x = net.op("cos", x)
    drawn = parse(net.record(), max_nodes=20)
    assert len(drawn.nodes) == 20
    assert drawn.title[-1] == "the last 31 operations are not drawn"


def test_no_limit_draws_all():
    assert len(parse(transformer(2), max_nodes=None).nodes) == 38


def test_depth_by_module():
    drawn = parse(transformer(2), vis_nesting_depth={"blocks.0": 0, "blocks.1": 1})
    inside = [node for node, boxes in drawn.boxes_of.items() if "module-blocks-2e-1" in boxes]
    assert "module-blocks-2e-0" in drawn.nodes
    assert inside[:4] == ["op-layernorm_3_19", "module-blocks-2e-1-2e-attn", "op-add_3_31", "op-layernorm_4_32"]
    assert "module-blocks-2e-1-2e-mlp" in inside


def test_depth_by_wildcard():
    drawn = parse(transformer(2), vis_nesting_depth={"*.attn": 0})
    assert {"module-blocks-2e-0-2e-attn", "module-blocks-2e-1-2e-attn", "op-gelu_1_16"} <= set(drawn.nodes)


def test_the_last_pattern_that_fits_wins():
    drawn = parse(transformer(2), vis_nesting_depth={"blocks.*": 0, "blocks.1*": 9})
    assert "module-blocks-2e-0" in drawn.nodes
    assert "op-gelu_2_34" in drawn.nodes


def test_several_tensors_of_one_call_are_one_operation_of_their_module():
    net = Sketch("Net")
    net.module("lstm", "LSTM")
    x = net.op("input")
    for _ in range(3):
        net.op("lstm", x, leaf="lstm", call_id=1)
    drawn = parse(net.record())
    assert drawn.boxes == {}
    assert len(drawn.nodes) == 4
