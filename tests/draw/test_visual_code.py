"""One test for each rule of the paper's figure 2."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from pytest_torchlens.draw import THEMES
from pytest_torchlens.draw import dot_source
from pytest_torchlens.draw import render
from pytest_torchlens.records import Edge
from pytest_torchlens.records import EscapeRecord
from tests.draw.parsed import parse
from tests.draw.parsed import text_lines
from tests.draw.samples import Sketch
from tests.draw.samples import alexnet
from tests.draw.samples import demo_network

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def demo():
    return parse(demo_network())


def test_every_operation_is_a_node(demo):
    labels = [op.layer_label for op in demo_network().operations]
    assert list(demo.nodes) == [f"op-{label}" for label in labels]


def heights(svg):
    """Return how far down the middle of each oval is."""
    root = ET.fromstring(svg)  # noqa: S314 - drawn here
    groups = [group for group in root.iter(f"{SVG}g") if "node" in group.get("class", "")]
    ovals = {group.get("id"): group.find(f".//{SVG}ellipse") for group in groups}
    return {node: float(oval.attrib["cy"]) for node, oval in ovals.items() if oval is not None}


def test_data_flow_upward():
    height = heights(render(dot_source(demo_network())))
    assert height["op-input_1_0"] > height["op-add_2_6"] > height["op-output_1_10"]


@pytest.mark.parametrize(
    ("node", "fill"),
    [
        ("op-input_1_0", "input"),
        ("op-output_1_10", "output"),
        ("op-linear_1_3", "params"),
        ("op-buffer_1", "buffer"),
        ("op-relu_1_2", "plain"),
    ],
)
def test_fill(demo, node, fill):
    assert demo.nodes[node]["fillcolor"] == getattr(THEMES["light"], fill)
    assert demo.nodes[node]["class"] == fill


def test_truth_value_is_yellow():
    net = Sketch("Net")
    x = net.op("input")
    net.op("gt", x, is_terminal_bool_layer=True)
    assert parse(net.record()).nodes["op-gt_1_1"]["class"] == "bool"


def test_a_value_that_goes_on_is_yellow_too_if_a_condition_asked_for_it():
    net = Sketch("Net")
    x = net.op("input")
    x = net.op("sum", x, is_condition=True)
    net.op("output", x)
    drawn = parse(net.record())
    assert drawn.nodes["op-sum_1_1"]["class"] == "bool"


def test_a_bold_if_stands_where_a_condition_leaves_the_way_to_the_output():
    net = Sketch("Net")
    x = net.op("input")
    total = net.op("sum", x, in_cond_branch=True)
    net.op("gt", total, in_cond_branch=True, is_condition=True)
    net.op("output", net.op("cos", x))
    drawn = parse(net.record())
    assert [(tail, head) for tail, head, lines in drawn.arrows if lines == ["IF"]] == [("op-input_1_0", "op-sum_1_1")]
    assert "<B>IF</B>" in drawn.edges["op-input_1_0", "op-sum_1_1"]["label"]


def test_a_truth_value_says_what_was_asked_and_done():
    net = Sketch("Net")
    gt = net.op("gt", net.op("input"), is_condition=True)
    asked = {"function": "__bool__", "operation": gt, "statement": "if"}
    escapes = (
        EscapeRecord(**asked, value=True, branch="body"),
        EscapeRecord(**asked, value=False, branch="else"),
        EscapeRecord(function="item", operation=gt, value=0.25),
    )
    record = replace(net.record(), escapes=escapes)
    assert parse(record).lines("op-gt_1_1")[2:] == ["if: True → body, False → else", "item(): 0.25"]


def test_constants_look_like_buffers():
    net = Sketch("Net")
    net.op("add", net.op("input"), net.source("constant"))
    assert parse(net.record()).nodes["op-constant_1"]["class"] == "buffer"


def test_module_of_one_operation_is_a_box_and_a_free_function_an_oval(demo):
    assert demo.nodes["op-relu_1_2"]["shape"] == "box"
    assert demo.nodes["op-relu_2_4"]["shape"] == "ellipse"


def test_tensors_made_inside_the_model_are_dashed(demo):
    assert demo.nodes["op-randn_1_5"]["style"] == "filled,dashed"
    assert demo.nodes["op-add_2_6"]["style"] == "filled"


def test_text_of_a_node(demo):
    assert demo.lines("op-linear_1_3") == ["linear_1_3", "5x5 (100 B)", "params: 5x5, x5", "@fc"]
    assert demo.lines("op-relu_2_4") == ["relu_2_4", "5x5 (100 B)"]
    assert demo.lines("op-buffer_1")[-1] == "@example_buffer"


def test_passes_stand_in_the_label():
    net = Sketch("Net")
    passes = {"layer_label_w_pass": "relu_1_0:2", "layer_passes_total": 3}
    net.op("relu", **passes)
    assert parse(net.record()).lines("op-relu_1_0.2")[0] == "relu_1_0:2"


def test_arrows_run_from_parent_to_child(demo):
    parents = {(f"op-{p}", f"op-{op.layer_label}") for op in demo_network().operations for p in op.parent_layers}
    assert set(demo.edges) == parents


def test_argument_positions_where_order_matters(demo):
    assert demo.says("op-add_2_6", "op-div_1_8") == ["arg 0"]
    assert demo.says("op-pow_1_7", "op-div_1_8") == ["arg 1"]


def test_no_argument_positions_where_order_does_not_matter(demo):
    assert "label" not in demo.edges["op-randn_1_5", "op-add_2_6"]
    assert "label" not in demo.edges["op-buffer_1", "op-mul_1_9"]


def test_no_argument_position_for_one_parent(demo):
    assert "label" not in demo.edges["op-add_2_6", "op-pow_1_7"]


def test_alpha_makes_a_sum_lopsided():
    net = Sketch("Net")
    x, y = net.op("input"), net.op("input")
    net.op("add", x, y, func_keyword_args_non_tensor=("alpha=2",))
    assert parse(net.record()).says("op-input_2_0", "op-add_1_2") == ["arg 1"]


@pytest.mark.parametrize(
    ("places", "label"),
    [(("0", "weight"), "weight"), (("0", "1.2"), "arg 1[2]"), (("1", "2"), "arg 1, arg 2")],
)
def test_keywords_lists_and_one_tensor_twice(places, label):
    net = Sketch("Net")
    x, y = net.op("input"), net.op("input")
    first = x if places[0] == "0" else y
    edges = (Edge(first, places[0]), Edge(y, places[1]))
    net.op("where", x, y, edges=edges)
    assert parse(net.record()).says("op-input_2_0", "op-where_1_2") == [label]


def test_a_write_into_the_tensor_of_another_is_dotted():
    net = Sketch("Net")
    x = net.op("zeros", initialized_inside_model=True)
    wrote = net.op("add", x, net.op("input"))
    net.op("cos", x, wrote, edges=(Edge(x, "0"), Edge(wrote, "0", through_write=True)))
    drawn = parse(net.record(), legend=True)
    assert drawn.edges["op-add_1_2", "op-cos_1_3"]["style"] == "dotted"
    assert drawn.says("op-add_1_2", "op-cos_1_3") == ["arg 0, written"]
    assert "style" not in drawn.edges["op-zeros_1_0", "op-cos_1_3"]
    assert "dotted arrow: written into another's tensor" in drawn.lines("legend")


def test_boxes_of_modules_are_nested_with_address_and_class():
    net = Sketch("Net")
    for address, kind in (("outer", "Outer"), ("outer.inner", "Inner")):
        net.module(address, kind)
    x = net.op("input")
    x = net.op("cos", x, inside=("outer",))
    x = net.op("sin", x, inside=("outer", "outer.inner"))
    net.op("tan", x, inside=("outer", "outer.inner"))
    drawn = parse(net.record())
    assert drawn.boxes_of["op-input_1_0"] == ()
    assert drawn.boxes_of["op-cos_1_1"] == ("module-outer",)
    assert drawn.boxes_of["op-tan_1_3"] == ("module-outer", "module-outer-2e-inner")
    assert text_lines(drawn.boxes["module-outer-2e-inner"]["label"]) == ["@outer.inner", "Inner"]


def test_a_module_called_several_times_says_so():
    net = Sketch("Net")
    net.module("cell", "Cell", num_passes=3)
    x = net.op("input")
    for call in ("cell:1", "cell:2", "cell:3"):
        x = net.op("tanh", net.op("add", x, inside=(call,)), inside=(call,))
    drawn = parse(net.record())
    assert text_lines(drawn.boxes["module-cell.2"]["label"]) == ["@cell:2", "Cell (x3)"]


def test_a_module_of_one_operation_has_no_box_around_it():
    drawn = parse(alexnet())
    assert set(drawn.boxes) == {"module-features", "module-classifier"}
    assert drawn.boxes_of["op-conv2d_1_1"] == ("module-features",)


def test_a_buffer_stands_in_the_box_of_its_user():
    net = Sketch("Net")
    net.module("block", "Block")
    net.module("block.bn", "BatchNorm2d")
    x = net.op("conv2d", net.op("input"), inside=("block",))
    mean = net.source("buffer", buffer_address="block.bn.running_mean")
    net.op("batchnorm", x, mean, inside=("block",), leaf="block.bn")
    drawn = parse(net.record())
    assert drawn.boxes_of["op-buffer_1"] == drawn.boxes_of["op-batchnorm_1_2"] == ("module-block",)


def test_title(demo):
    assert demo.title == ["DemoNetwork", "12 tensors total (1.2 KB)", "30 params total (120 B)"]


def test_hint_of_a_node_tells_type_and_source(demo):
    hint = demo.nodes["op-add_1_1"]["tooltip"].split(r"\n")
    assert hint[:3] == ["add_1_1", "5x5 torch.float32 on cpu, 100 B", "add"]
    assert hint[3:5] == ["from: input_1_0", "to: relu_1_2"]
    assert hint[-1] == "demo.py:12, in forward"


def test_a_node_names_a_few_steps_and_its_hint_all():
    net = Sketch("Net")
    steps = ("linear", "tanh", "linear", "sum", *["add"] * 60)
    few = net.op("grad", net.op("input"), steps=steps[:2])
    net.op("add", net.op("vmap", few, steps=steps))
    drawn = parse(net.record())
    assert "2 steps: linear, tanh" in drawn.lines("op-grad_1_1")
    assert "64 steps: linear, tanh, linear and 61 more" in drawn.lines("op-vmap_1_2")
    assert not [line for line in drawn.lines("op-add_1_3") if "step" in line]
    hint = " ".join(drawn.nodes["op-vmap_1_2"]["tooltip"].split(r"\n"))
    assert f"steps inside: {', '.join(steps)} from: grad_1_1" in hint


def test_link_of_a_node():
    drawn = parse(demo_network(), link=lambda op: f"#row-{op.layer_label}")
    assert drawn.nodes["op-add_1_1"]["URL"] == "#row-add_1_1"
    assert "URL" not in parse(demo_network()).nodes["op-add_1_1"]


def test_frozen_parameters_are_not_grey_and_said():
    net = Sketch("Net")
    shapes = {"parent_param_shapes": ((5, 5), (5,))}
    x = net.op("linear", net.op("input"), leaf="backbone", num_params_trainable=0, **shapes)
    net.op("linear", net.op("linear", x, leaf="neck", num_params_trainable=5, **shapes), leaf="head", **shapes)
    drawn = parse(net.record())
    assert [drawn.nodes[f"op-linear_{i}_{i}"]["class"] for i in (1, 2, 3)] == ["plain", "params", "params"]
    assert "params: 5x5, x5, all frozen" in drawn.lines("op-linear_1_1")
    assert "params: 5x5, x5, 25 frozen" in drawn.lines("op-linear_2_2")
    assert "params: 5x5, x5" in drawn.lines("op-linear_3_3")
    assert drawn.title[2] == "90 params total (360 B), 55 frozen"
