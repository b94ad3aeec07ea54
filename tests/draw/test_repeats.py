"""Equal modules in a row, drawn once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_torchlens.records import EscapeRecord
from tests.draw.parsed import parse
from tests.draw.parsed import text_lines
from tests.draw.samples import Sketch
from tests.draw.samples import transformer


def blocks(kinds, *, between=False):
    """Return a model of blocks in a row, each of two functions, the second of the kind given."""
    net = Sketch("Net")
    x = net.op("input")
    for number, kind in enumerate(kinds):
        net.module(f"layer.{number}", "Layer")
        inside = ("layer", f"layer.{number}")
        x = net.op(kind, net.op("cos", x, inside=inside), x, inside=inside)
        if between:
            x = net.op("tan", x, inside=("layer",))
    net.op("output", x)
    return net.record()


def test_equal_blocks_are_drawn_once_with_their_number():
    drawn = parse(transformer(3), repeats=True)
    assert set(drawn.boxes) == {
        "module-blocks",
        *(f"module-blocks-2e-0{inner}" for inner in ("", "-2e-attn", "-2e-mlp")),
    }
    assert text_lines(drawn.boxes["module-blocks-2e-0"]["label"]) == ["@blocks.0 × 3, to @blocks.2", "Block"]
    assert drawn.boxes["module-blocks-2e-0"]["penwidth"] == "3"
    others = [box for name, box in drawn.boxes.items() if name != "module-blocks-2e-0"]
    assert {box["penwidth"] for box in others} == {"1"}
    assert drawn.title[-1] == "of equal modules in a row one is drawn, × their number (56 nodes in full)"


def test_arrows_lead_into_the_one_block_and_out_of_it_and_none_back():
    drawn = parse(blocks(["add"] * 3), repeats=True)
    assert drawn.arrows == [
        ("op-input_1_0", "op-cos_1_1", []),
        ("op-cos_1_1", "op-add_1_2", []),
        ("op-input_1_0", "op-add_1_2", []),
        ("op-add_1_2", "op-output_1_7", []),
    ]


def test_blocks_that_alternate():
    drawn = parse(blocks(["add", "mul"] * 3), repeats=True)
    assert set(drawn.boxes) == {"module-layer", "module-layer-2e-0", "module-layer-2e-1"}
    labels = [text_lines(drawn.boxes[f"module-layer-2e-{number}"]["label"])[0] for number in (0, 1)]
    assert labels == ["@layer.0 × 3, to @layer.4", "@layer.1 × 3, to @layer.5"]
    assert ("op-add_1_2", "op-cos_2_3") in drawn.edges
    assert ("op-mul_1_4", "op-cos_1_1") not in drawn.edges


def test_blocks_that_differ_are_all_drawn():
    drawn = parse(blocks(["add", "mul", "sub"]), repeats=True)
    assert len(drawn.nodes) == 8
    assert "equal" not in " ".join(drawn.title)


def test_a_block_in_a_row_that_differs_ends_the_row():
    drawn = parse(blocks(["add", "add", "mul", "add", "add"]), repeats=True)
    labels = [text_lines(box["label"])[0] for name, box in drawn.boxes.items() if name != "module-layer"]
    assert labels == ["@layer.0 × 2, to @layer.1", "@layer.2", "@layer.3 × 2, to @layer.4"]


def test_what_stands_between_blocks_keeps_them_apart():
    assert len(parse(blocks(["add"] * 3, between=True), repeats=True).nodes) == 11


def test_blocks_within_blocks():
    net = Sketch("Net")
    x = net.op("input")
    for stage in ("a.0", "a.1"):
        net.module(stage, "Stage")
        for block in (f"{stage}.0", f"{stage}.1", f"{stage}.2"):
            net.module(block, "Block")
            inside = ("a", stage, block)
            x = net.op("sin", net.op("cos", x, inside=inside), inside=inside)
    net.op("output", x)
    drawn = parse(net.record(), repeats=True)
    assert set(drawn.nodes) == {"op-input_1_0", "op-cos_1_1", "op-sin_1_2", "op-output_1_13"}
    assert [lines for _, _, lines in drawn.arrows] == [[], [], []]
    assert text_lines(drawn.boxes["module-a-2e-0-2e-0"]["label"])[0] == "@a.0.0 × 3, to @a.0.2"


def test_a_shared_parent_reaches_the_one_block():
    net = Sketch("Net")
    x, mask = net.op("input"), net.op("input")
    for number in range(3):
        net.module(f"layer.{number}", "Layer")
        inside = ("layer", f"layer.{number}")
        x = net.op("where", net.op("cos", x, inside=inside), mask, inside=inside)
    drawn = parse(net.record(), repeats=True)
    assert drawn.says("op-input_2_0", "op-where_1_3") == ["arg 1"]
    assert len(drawn.arrows) == 3


def two_input_blocks(*reads):
    """Return a model of blocks that read what is given: ``y`` is the result of the one before."""
    net = Sketch("Net")
    known = {"y": net.op("input")}
    known |= {kind: net.op(kind, known["y"]) for kind in ("cos", "sin", "tan")}
    for number, (first, second) in enumerate(reads):
        net.module(f"layer.{number}", "Layer")
        inside = ("layer", f"layer.{number}")
        q, k = net.op("exp", known[first], inside=inside), net.op("log", known[second], inside=inside)
        known["y"] = net.op("sub", q, k, inside=inside)
    net.op("output", known["y"])
    return net.record()


def rows(record):
    boxes = parse(record, repeats=True).boxes
    return [text_lines(box["label"])[0] for name, box in boxes.items() if name != "module-layer"]


@pytest.mark.parametrize(
    ("reads", "drawn"),
    [
        (["y cos"] * 4, ["@layer.0 × 4, to @layer.3"]),
        (["sin cos", "y cos", "y cos"], ["@layer.0 × 3, to @layer.2"]),
        (["y cos", "cos y", "y cos", "y cos"], ["@layer.0", "@layer.1", "@layer.2 × 2, to @layer.3"]),
        (["y cos", "cos y", "y cos", "cos y"], ["@layer.0 × 2, to @layer.2", "@layer.1 × 2, to @layer.3"]),
        (["y cos", "y sin", "y tan"], ["@layer.0", "@layer.1", "@layer.2"]),
        (["y y", "y cos", "y cos"], ["@layer.0", "@layer.1 × 2, to @layer.2"]),
        (["cos sin", "cos sin"], ["@layer.0 × 2, to @layer.1"]),
    ],
)
def test_blocks_that_read_something_else_differ(reads, drawn):
    assert rows(two_input_blocks(*map(str.split, reads))) == drawn


def test_what_all_read_from_the_first_block_is_no_way_from_one_to_the_next():
    net = Sketch("Net")
    x = bias = net.op("input")
    for number in range(4):
        net.module(f"layer.{number}", "Layer")
        inside = ("layer", f"layer.{number}")
        if number == 0:
            bias = net.op("tan", x, inside=inside)
        x = net.op("sub", net.op("cos", x, inside=inside), bias, inside=inside)
    assert rows(net.record()) == ["@layer.0", "@layer.1 × 3, to @layer.3"]


def test_frozen_and_trained_blocks_differ():
    net = Sketch("Net")
    x = net.op("input")
    for number, trained in enumerate((30, 30, 0, 0)):
        net.module(f"layer.{number}", "Layer")
        inside = ("layer", f"layer.{number}")
        params = {"parent_param_shapes": ((5, 5), (5,)), "num_params_trainable": trained}
        x = net.op("relu", net.op("linear", x, inside=inside, **params), inside=inside)
    assert rows(net.record()) == ["@layer.0 × 2, to @layer.1", "@layer.2 × 2, to @layer.3"]
    drawn = parse(net.record(), repeats=True)
    assert [drawn.nodes[f"op-linear_{i}_{2 * i - 1}"]["class"] for i in (1, 3)] == ["params", "plain"]


def test_blocks_that_took_another_branch_differ():
    record = blocks(["add"] * 3)
    asked = {"function": "__bool__", "statement": "if"}
    escapes = tuple(
        EscapeRecord(**asked, operation=f"cos_{i}_{2 * i - 1}", value=branch == "body", branch=branch)
        for i, branch in enumerate(("body", "body", "else"), 1)
    )
    assert rows(replace(record, escapes=escapes)) == ["@layer.0 × 2, to @layer.1", "@layer.2"]


@pytest.mark.parametrize(("repeats", "count"), [(None, 20), (False, 20), (True, 20)])
def test_too_many_nodes_draw_repeats_once_unless_forbidden(repeats, count):
    drawn = parse(transformer(6), repeats=repeats, max_nodes=count)
    assert len(drawn.nodes) <= count
    assert any("equal modules" in line for line in drawn.title) == (repeats is not False)
    assert any("modules at level" in line for line in drawn.title) == (repeats is False)


def test_few_nodes_are_all_drawn():
    assert len(parse(blocks(["add"] * 3)).nodes) == 8
