"""All passes of a layer as one node, as in the paper's figure 3."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_torchlens.records import Edge
from tests.draw.parsed import parse
from tests.draw.parsed import text_lines
from tests.draw.samples import Sketch


def recurrent(passes=3):
    """Return the poster's RecurrentNetwork: linear, add, mul, three times over."""
    net = Sketch("RecurrentNetwork")
    net.module("fc", "Linear", num_passes=passes)
    x = net.op("input")
    for number in range(1, passes + 1):
        for place, kind in enumerate(("linear", "add", "mul"), 1):
            layer = f"{kind}_1_{place}"
            label = f"{layer}:{number}"
            fields = {"layer_label": layer, "layer_label_w_pass": label, "pass_num": number}
            leaf = f"fc:{number}" if kind == "linear" else None
            net.op(kind, layer_passes_total=passes, leaf=leaf, edges=(Edge(x, "0"),), **fields)
            x = label
    net.op("output", edges=(Edge(x, "0"),), layer_label="output_1_4")
    return replace_children(net)


def replace_children(net):
    net.operations = [replace(op, parent_layers=()) for op in net.operations]
    return net.record()


def test_unrolled_passes_are_nodes_of_their_own():
    drawn = parse(recurrent())
    assert len(drawn.nodes) == 11
    assert drawn.lines("op-linear_1_1.2")[0] == "linear_1_1:2"
    assert drawn.lines("op-linear_1_1.2")[-1] == "@fc:2"


def test_rolled_passes_are_one_node_with_their_number():
    drawn = parse(recurrent(), vis_opt="rolled")
    assert list(drawn.nodes) == ["op-input_1_0", "op-linear_1_1", "op-add_1_2", "op-mul_1_3", "op-output_1_4"]
    assert drawn.lines("op-linear_1_1") == ["linear_1_1 (x3)", "5x5 (100 B)", "@fc"]


def test_a_node_of_several_passes_names_the_steps_that_each_ran():
    net = Sketch("Net")
    x = net.op("input")
    lists = [("sin",), ("cos", "mul"), ("sin",), ("tan",), ("exp",), ("neg",)]
    for number, steps in enumerate(lists, 1):
        fields = {"layer_label": "vmap_1_1", "layer_label_w_pass": f"vmap_1_1:{number}", "pass_num": number}
        net.op("vmap", layer_passes_total=len(lists), edges=(Edge(x, "0"),), steps=steps, **fields)
        x = f"vmap_1_1:{number}"
    drawn = parse(replace_children(net), vis_opt="rolled")
    said = ["1 step: sin", "2 steps: cos, mul", "1 step: tan", "and 2 other lists of steps"]
    assert drawn.lines("op-vmap_1_1") == ["vmap_1_1 (x6)", "5x5 (100 B)", *said]
    assert all(f"steps inside: {', '.join(steps)}" in drawn.nodes["op-vmap_1_1"]["tooltip"] for steps in lists)


def test_rolled_arrows_say_which_passes_they_are_of_where_not_all():
    drawn = parse(recurrent(), vis_opt="rolled")
    assert drawn.arrows == [
        ("op-input_1_0", "op-linear_1_1", ["In 1"]),
        ("op-linear_1_1", "op-add_1_2", []),
        ("op-add_1_2", "op-mul_1_3", []),
        ("op-mul_1_3", "op-linear_1_1", ["In 2-3", "Out 1-2"]),
        ("op-mul_1_3", "op-output_1_4", ["Out 3"]),
    ]


@pytest.mark.parametrize(("direction", "lines"), [("up", ["In 2-3", "Out 1-2"]), ("down", ["Out 1-2", "In 2-3"])])
def test_passes_read_in_the_direction_of_the_data(direction, lines):
    drawn = parse(recurrent(), vis_opt="rolled", direction=direction)
    assert drawn.says("op-mul_1_3", "op-linear_1_1") == lines


def test_a_layer_that_feeds_itself_has_an_arrow_to_itself():
    net = Sketch("Net")
    x = net.op("input")
    for number in (1, 2):
        fields = {"layer_label": "cos_1_1", "layer_label_w_pass": f"cos_1_1:{number}", "pass_num": number}
        net.op("cos", layer_passes_total=2, edges=(Edge(x, "0"),), **fields)
        x = f"cos_1_1:{number}"
    drawn = parse(replace_children(net), vis_opt="rolled")
    assert ("op-cos_1_1", "op-cos_1_1", ["In 2", "Out 1"]) in drawn.arrows


def test_a_layer_whose_shape_differs_from_pass_to_pass_says_from_what_to_what():
    net = Sketch("Net")
    x = net.op("input")
    for number in (1, 2, 3):
        fields = {"layer_label": "cat_1_1", "layer_label_w_pass": f"cat_1_1:{number}", "pass_num": number}
        net.op("cat", layer_passes_total=3, edges=(Edge(x, "0"),), shape=(number, 4), **fields)
        x = f"cat_1_1:{number}"
    drawn = parse(replace_children(net), vis_opt="rolled")
    assert drawn.lines("op-cat_1_1") == ["cat_1_1 (x3)", "1x4 (16 B) … 3x4 (48 B)"]


def test_a_loop_too_long_to_draw_is_rolled_before_anything_is_left_out():
    drawn = parse(recurrent(30), max_nodes=20)
    assert list(drawn.nodes) == ["op-input_1_0", "op-linear_1_1", "op-add_1_2", "op-mul_1_3", "op-output_1_4"]
    assert drawn.lines("op-add_1_2")[0] == "add_1_2 (x30)"
    assert drawn.title[-1] == "all passes of a layer are drawn as one node (92 nodes in full)"


def cell(passes=3):
    """Return a model that calls a module of two operations over and over."""
    net = Sketch("Net")
    net.module("cell", "Cell", num_passes=passes)
    x = net.op("input")
    for number in range(1, passes + 1):
        for place, kind in enumerate(("cos", "sin"), 1):
            layer = f"{kind}_1_{place}"
            label = f"{layer}:{number}"
            fields = {"layer_label": layer, "layer_label_w_pass": label, "pass_num": number}
            net.op(kind, layer_passes_total=passes, inside=(f"cell:{number}",), edges=(Edge(x, "0"),), **fields)
            x = label
    return replace_children(net)


def test_the_passes_of_a_module_share_one_box():
    drawn = parse(cell(), vis_opt="rolled")
    assert set(drawn.boxes) == {"module-cell"}
    assert text_lines(drawn.boxes["module-cell"]["label"]) == ["@cell", "Cell (x3)"]


def test_the_passes_of_a_module_drawn_as_one_node_are_one_node():
    drawn = parse(cell(), vis_opt="rolled", vis_nesting_depth=1)
    assert list(drawn.nodes) == ["op-input_1_0", "module-cell"]
    assert drawn.lines("module-cell")[:2] == ["@cell (x3)", "Cell"]
    assert drawn.arrows == [
        ("op-input_1_0", "module-cell", ["In 1"]),
        ("module-cell", "module-cell", ["In 2-3", "Out 1-2"]),
    ]
    unrolled = parse(cell(), vis_nesting_depth=1)
    assert list(unrolled.nodes) == ["op-input_1_0", "module-cell.1", "module-cell.2", "module-cell.3"]


def test_an_address_with_a_colon_and_a_number_is_not_cut():
    net = Sketch("Net")
    net.module("stage:2", "Stage")
    net.module("cell:7", "Cell", num_passes=2)
    x = net.op("sin", net.op("cos", net.op("input"), leaf="stage:2", containing_module_origin="stage:2"))
    for call in ("cell:7:1", "cell:7:2"):
        x = net.op("exp", net.op("tan", x, inside=(call,)), inside=(call,))
    drawn = parse(net.record(), vis_opt="rolled", vis_nesting_depth=1, color_by={"stage:2": 3.0})
    assert drawn.lines("op-cos_1_1")[2:] == ["@stage:2", "value: 3"]
    assert "module: stage:2" in drawn.nodes["op-cos_1_1"]["tooltip"]
    assert drawn.lines("module-cell.7")[0] == "@cell:7 (x2)"
    assert ("module-cell.7", "module-cell.7", ["In 2", "Out 1"]) in drawn.arrows


def test_equal_passes_of_a_module_are_one_box_with_all_passes_in_it():
    drawn = parse(cell(), vis_opt="rolled", repeats=True)
    assert drawn.lines("op-cos_1_1")[0] == "cos_1_1 (x3)"
    assert ("op-cos_1_1", "op-sin_1_2", []) in drawn.arrows
    assert ("op-sin_1_2", "op-cos_1_1", ["In 2-3", "Out 1-2"]) in drawn.arrows


def test_a_row_in_a_module_called_twice_is_still_one_block():
    net = Sketch("Net")
    net.module("enc", "Encoder", num_passes=2)
    x = net.op("input")
    for number in range(6):
        call, layer = number // 3 + 1, number % 3
        if call == 1:
            net.module(f"enc.{layer}", "Layer", num_passes=2)
        for place, kind in enumerate(("cos", "sin"), 1):
            label = f"{kind}_{layer + 1}_{2 * layer + place}"
            fields = {"layer_label": label, "layer_label_w_pass": f"{label}:{call}", "pass_num": call}
            inside = (f"enc:{call}", f"enc.{layer}:{call}")
            net.op(kind, layer_passes_total=2, inside=inside, edges=(Edge(x, "0"),), **fields)
            x = f"{label}:{call}"
    drawn = parse(replace_children(net), vis_opt="rolled", repeats=True)
    assert list(drawn.nodes) == ["op-input_1_0", "op-cos_1_1", "op-sin_1_2"]
    assert text_lines(drawn.boxes["module-enc-2e-0"]["label"]) == ["@enc.0 × 3, to @enc.2", "Layer (x2)"]
