"""What a picture may be asked to show."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from pytest_torchlens.draw import THEMES
from pytest_torchlens.draw import DrawOptions
from pytest_torchlens.draw import OptionError
from pytest_torchlens.draw import dot_source
from pytest_torchlens.draw import render
from tests.draw.parsed import parse
from tests.draw.samples import Sketch
from tests.draw.samples import alexnet
from tests.draw.samples import demo_network
from tests.draw.samples import transformer


@pytest.mark.parametrize(("direction", "rankdir"), [("up", "BT"), ("down", "TB"), ("right", "LR"), ("left", "RL")])
def test_direction(direction, rankdir):
    assert parse(demo_network(), direction=direction).graph["rankdir"] == rankdir


# -- one module ------------------------------------------------------------------------------------------------


def test_focus_draws_one_module_with_stubs_for_what_is_beside_it():
    drawn = parse(transformer(2), focus="blocks.1.mlp")
    stubs = [node for node, look in drawn.nodes.items() if look["class"].endswith("stub")]
    assert set(drawn.nodes) - set(stubs) == {"op-linear_7_33", "op-gelu_2_34", "op-linear_8_35"}
    assert stubs == ["op-layernorm_4_32", "op-add_4_36"]
    assert all("dotted" in drawn.nodes[stub]["style"] for stub in stubs)
    assert set(drawn.boxes) == {"module-blocks-2e-1-2e-mlp"}
    assert drawn.boxes_of["op-layernorm_4_32"] == ()
    assert drawn.title[-1] == "only @blocks.1.mlp (Mlp) and what is beside it"
    assert [line.split(" (")[0].split(" ", 1)[1] for line in drawn.title[1:3]] == [
        "tensors in the whole model",
        "params in the whole model",
    ]


def test_arrows_between_stubs_are_not_drawn():
    drawn = parse(transformer(1), focus="blocks.0.mlp")
    assert ("op-layernorm_2_14", "op-linear_3_15") in drawn.edges
    assert ("op-add_1_13", "op-add_2_18") not in drawn.edges


def test_depth_counts_from_the_module_in_focus():
    drawn = parse(transformer(2), focus="blocks.1", vis_nesting_depth=1)
    assert "module-blocks-2e-1-2e-attn" in drawn.nodes
    assert "module-blocks-2e-1" in drawn.boxes


def test_focus_on_one_call_of_a_module():
    net = Sketch("Net")
    net.module("cell", "Cell", num_passes=2)
    x = net.op("input")
    for call in ("cell:1", "cell:2"):
        x = net.op("sin", net.op("cos", x, inside=(call,)), inside=(call,))
    drawn = parse(net.record(), focus="cell:2")
    assert set(drawn.nodes) == {"op-sin_1_2", "op-cos_2_3", "op-sin_2_4"}
    assert set(parse(net.record(), focus="cell").boxes) == {"module-cell.1", "module-cell.2"}


# -- numbers ---------------------------------------------------------------------------------------------------


def test_fills_show_a_metric_from_the_lowest_to_the_highest():
    record = demo_network()
    times = {op.layer_label: op.func_time_elapsed for op in record.operations}
    drawn = parse(record, color_by="time")
    scale = THEMES["light"].scale
    inner = [label for label in times if not label.startswith(("input", "output", "buffer"))]
    assert drawn.nodes[f"op-{min(inner, key=times.get)}"]["fillcolor"] == scale[0]
    assert drawn.nodes[f"op-{max(inner, key=times.get)}"]["fillcolor"] == scale[-1]
    assert "time: 20 µs" in drawn.lines("op-add_1_1")
    assert drawn.title[3:] == ["time", "10 µs", "40 µs", "70 µs"]


@pytest.mark.parametrize(
    ("color_by", "line"),
    [
        ("memory", "memory: 100 B"),
        ("params", "params: 30"),
        ("num_param_tensors", "num_param_tensors: 0"),
        ({"linear_1_3": 7, "fc": 8}, "value: 7"),
        ({"fc": 0.5}, "value: 0.5"),
        (lambda op: len(op.layer_type), "value: 6"),
    ],
)
def test_metrics(color_by, line):
    assert parse(demo_network(), color_by=color_by).lines("op-linear_1_3")[-1] == line


def test_a_node_without_a_number_is_unfilled():
    drawn = parse(demo_network(), color_by={"fc": 1.0}, theme="dark")
    assert drawn.nodes["op-add_1_1"]["fillcolor"] == THEMES["dark"].background
    assert drawn.lines("op-add_1_1") == ["add_1_1", "5x5 (100 B)"]


def test_no_number_is_said_and_not_shown_as_a_colour():
    drawn = parse(demo_network(), color_by={"fc": float("nan"), "add_1_1": 1.0, "mul_1": 2.0})
    assert drawn.lines("op-linear_1_3")[-1] == "value: nan"
    assert drawn.nodes["op-linear_1_3"]["fillcolor"] == THEMES["light"].background
    assert drawn.title[-3:] == ["1", "1.5", "2"]


@pytest.mark.parametrize(
    ("value", "fill"),
    [("nan", THEMES["light"].background), ("inf", THEMES["light"].scale[-1]), ("-inf", THEMES["light"].scale[0])],
)
def test_no_number_beside_equal_ones(value, fill):
    drawn = parse(demo_network(), color_by={"fc": float(value), "add_1_1": 1.0, "mul_1": 1.0})
    assert drawn.nodes["op-linear_1_3"]["fillcolor"] == fill
    assert drawn.nodes["op-add_1_1"]["fillcolor"] == THEMES["light"].scale[0]


def test_shared_parameters_count_once_in_a_node():
    net = Sketch("Net")
    net.module("outer", "Outer")
    x = net.op("input")
    shared = {"parent_param_shapes": ((5, 5),), "parent_param_addresses": ("fc.weight",)}
    for _ in range(3):
        x = net.op("linear", x, inside=("outer",), **shared)
    lines = parse(net.record(), vis_nesting_depth=1, color_by="params").lines("module-outer")
    assert lines[-2:] == ["25 params", "params: 25"]


def test_numbers_far_apart_are_on_a_logarithmic_scale():
    drawn = parse(demo_network(), color_by={"add_1_1": 1.0, "mul_1": 10_000.0, "fc": 100.0})
    assert drawn.title[-4:] == ["value, logarithmic", "1", "100", "10,000"]
    assert drawn.nodes["op-linear_1_3"]["fillcolor"] == THEMES["light"].scale[2]


def test_nothing_is_the_lowest_on_a_logarithmic_scale():
    drawn = parse(demo_network(), color_by={"add_1_1": 0.0, "mul_1": 1_000.0, "fc": 1.0})
    assert drawn.title[-4:] == ["value, logarithmic", "1", "31.62", "1,000"]
    assert drawn.nodes["op-add_1_1"]["fillcolor"] == THEMES["light"].scale[0]


def test_a_module_drawn_as_one_node_has_the_sum_or_the_largest():
    params = parse(alexnet(), vis_nesting_depth=1, color_by="params").lines("module-classifier")[-1]
    assert params == "params: 58,631,144"
    largest = parse(alexnet(), vis_nesting_depth=1, color_by={"classifier.1": 3.0, "classifier.4": 5.0})
    assert largest.lines("module-classifier")[-1] == "value: 5"


def test_a_call_with_several_results_took_its_time_once():
    net = Sketch("Net")
    net.module("outer", "Outer")
    x = net.op("input")
    for _ in range(3):
        net.op("lstm", x, inside=("outer",), call_id=1, func_time_elapsed=0.5)
    net.op("cos", x, inside=("outer",), call_id=2, func_time_elapsed=0.25)
    assert parse(net.record(), vis_nesting_depth=1, color_by="time").lines("module-outer")[-1] == "time: 750 ms"


def test_inputs_and_outputs_are_still_told_apart():
    drawn = parse(demo_network(), color_by="memory")
    assert {drawn.nodes[node]["penwidth"] for node in ("op-input_1_0", "op-output_1_10")} == {"3"}
    assert drawn.nodes["op-input_1_0"]["color"] != drawn.nodes["op-output_1_10"]["color"]


# -- text, legend, gradients -----------------------------------------------------------------------------------


def test_text_by_a_function():
    texts = {"linear": ["mine", "<b>"], "add": "one\ntwo", "relu": None}
    drawn = parse(demo_network(), node_text=lambda op: texts.get(op.layer_type))
    assert drawn.lines("op-linear_1_3") == ["mine", "<b>"]
    assert drawn.lines("op-add_1_1") == ["one", "two"]
    assert drawn.lines("op-relu_1_2")[0] == "relu_1_2"


@pytest.mark.parametrize("number", [3, 0, 2.5])
def test_text_that_is_a_number(number):
    assert parse(demo_network(), node_text=lambda op: number).lines("op-add_1_1") == [str(number)]


def test_a_legend_explains_what_the_picture_has():
    plain = set(parse(demo_network(), legend=True).lines("legend"))
    focused = set(parse(transformer(3), legend=True, focus="blocks", repeats=True).lines("legend"))
    rolled = set(parse(demo_network(), legend=True, vis_opt="rolled").lines("legend"))
    assert focused - plain == {
        "dotted outline: beside what is drawn",
        "thick box, × 3: three equal modules in a row",
    }
    assert rolled - plain == {"(x3): three passes; Out 1, In 2: from the first into the second"}


def test_a_legend_on_request():
    said = parse(demo_network(), legend=True).lines("legend")
    assert said[0] == "Legend"
    assert {"input of the model", "buffer or constant"} <= set(said)
    assert not any("gradient" in line for line in said)
    assert "legend" not in parse(demo_network()).nodes


def test_gradients_run_back_in_blue_where_they_flowed():
    reached = frozenset({"output_1_10", "mul_1_9", "div_1_8"})
    drawn = parse(demo_network(), gradients=True, reached=reached)
    backward = {ends: look for ends, look in drawn.edges.items() if look.get("class") == "gradient"}
    assert set(backward) == {("op-output_1_10", "op-mul_1_9"), ("op-mul_1_9", "op-div_1_8")}
    assert {look["color"] for look in backward.values()} == {THEMES["light"].gradient}
    assert {look["constraint"] for look in backward.values()} == {"false"}
    assert not [1 for look in parse(demo_network(), reached=reached).edges.values() if "class" in look]


# -- what cannot be --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vis_opt": "role"}, r"vis_opt: expected 'none', 'unrolled', 'rolled', got 'role' \(did you mean 'rolled'"),
        ({"direction": "north"}, "direction: expected 'up', 'down', 'right', 'left', got 'north'"),
        ({"theme": "drak"}, r"theme: expected 'light', 'dark', 'print' or a Theme, got 'drak' \(did you mean 'dark'"),
        ({"theme": replace(THEMES["light"], text="black")}, "theme.text: expected a colour as '#rrggbb', got 'black'"),
        ({"theme": replace(THEMES["light"], scale=())}, "theme.scale: expected at least one colour as"),
        ({"colour_by": "time"}, "unknown option 'colour_by'; did you mean 'color_by'"),
        ({"max_nodes": 0}, "max_nodes: expected a whole number of at least 1 or None, got 0"),
        ({"vis_nesting_depth": 0}, "vis_nesting_depth: expected a whole number of at least 1, .*, got 0"),
        (
            {"vis_nesting_depth": {"features": -1}},
            r"vis_nesting_depth\['features'\]: expected a whole number of .*, got -1",
        ),
        (
            {"vis_nesting_depth": {"feature.*": 1}},
            "a pattern that matches a module, got 'feature.*'; did you mean 'features.9'",
        ),
        (
            {"focus": "classifer"},
            "focus: expected a module that was called, got 'classifer'; did you mean 'classifier'",
        ),
        (
            {"color_by": "tiem"},
            "color_by: expected a field with numbers in this history, got 'tiem'; did you mean 'time'",
        ),
        (
            {"color_by": "flops"},
            r"expected measured FLOPs for 'flops', got none: call measure_forward_pass\(model, x, history=history\)",
        ),
        ({"vis_opt": "none"}, "vis_opt: expected 'unrolled' or 'rolled' to draw a picture, got 'none'"),
        ({"color_by": "gradient_norm"}, "expected saved gradients, got none: record with save_gradients=True"),
        (
            {"color_by": {"conv2d_9": 1}},
            "color_by: expected labels of layers as keys, got 'conv2d_9'; did you mean 'conv2d_",
        ),
        ({"color_by": {"conv2d_1": "x"}}, "color_by: expected a number for conv2d_1_1, got 'x'"),
        ({"color_by": {}}, "color_by: expected a number for at least one layer, got none from {}"),
        ({"color_by": lambda op: None}, "color_by: expected a number for at least one layer, got none from <function"),
        ({"color_by": lambda op: 1 / 0}, "given as color_by raised ZeroDivisionError: division by zero, for input_1_0"),
        ({"node_text": lambda op: op.x}, "given as node_text raised AttributeError: .*, for input_1_0"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(OptionError, match=message):
        parse(alexnet(), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vis_nesting_depth": "2"}, "vis_nesting_depth: expected a whole number of at least 1, .* or None, got '2'"),
        ({"vis_nesting_depth": {1: 2}}, "vis_nesting_depth: expected module addresses .text. as keys, got 1"),
        ({"legend": "maybe"}, "legend: expected True or False, got 'maybe'"),
        ({"gradients": 1}, "gradients: expected True or False, got 1"),
        ({"repeats": "yes"}, "repeats: expected True, False or None, got 'yes'"),
        ({"focus": ["features"]}, r"focus: expected a module address or None, got \['features'\]"),
        ({"color_by": 3}, "color_by: expected a name, a mapping .*, got 3"),
        ({"node_text": "label"}, "node_text: expected a function of an operation or None, got 'label'"),
        ({"theme": None}, "theme: expected .* or a Theme, got None"),
        ({"max_nodes": True}, "max_nodes: expected a whole number of at least 1 or None, got True"),
    ],
)
def test_values_of_a_wrong_kind(options, message):
    with pytest.raises(TypeError, match=message):
        DrawOptions.of(**options)


# -- colours ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", THEMES)
def test_a_theme_draws_in_its_colours(name):
    drawn = parse(demo_network(), theme=name)
    theme = THEMES[name]
    assert drawn.graph["bgcolor"] == theme.background
    assert drawn.nodes["op-input_1_0"]["fillcolor"] == theme.input
    ET.fromstring(render(dot_source(demo_network(), DrawOptions(theme=name, legend=True))))  # noqa: S314


def test_a_theme_of_your_own():
    mine = replace(THEMES["dark"], plain="#123456")
    assert parse(demo_network(), theme=mine).nodes["op-add_1_1"]["fillcolor"] == "#123456"
