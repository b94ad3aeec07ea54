"""Two forward passes in one picture."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

import pytest_torchlens as tl
from pytest_torchlens.draw import THEMES
from pytest_torchlens.draw.difference import difference
from pytest_torchlens.draw.dot import scene_source
from pytest_torchlens.draw.draw_options import DrawOptions
from pytest_torchlens.records import EscapeRecord
from tests.draw.parsed import read_back
from tests.draw.samples import Sketch
from tests.draw.samples import demo_network
from tests.draw.test_rolled import recurrent


def compare(before, after, **options):
    return read_back(scene_source(difference(before, after), DrawOptions(**options)))


def pass_of(*steps, name="Net"):
    net = Sketch(name)
    net.module("block", "Block")
    net.module("same", "Same")
    x = net.op("input")
    for step in steps:
        x = net.op(step, x, inside=("block",))
    x = net.op("sin", net.op("cos", x, inside=("same",)), inside=("same",))
    net.op("output", x, shape=(5, len(steps)))
    return net.record()


def test_added_removed_and_changed_have_a_fill_and_a_sign():
    drawn = compare(pass_of("relu", "tanh"), pass_of("relu", "gelu", "exp"))
    found = {node: look["class"].split()[-1] for node, look in drawn.nodes.items()}
    assert {node for node, mark in found.items() if mark == "added"} == {"op-gelu_1_2", "op-exp_1_3"}
    assert [node for node, mark in found.items() if mark == "removed"] == ["op-old-20-tanh_1_2"]
    assert [node for node, mark in found.items() if mark == "changed"] == ["op-output_1_6"]
    assert drawn.lines("op-gelu_1_2")[0] == "+ gelu_1_2"
    assert drawn.lines("op-old-20-tanh_1_2")[0] == "− old tanh_1_2"
    assert drawn.lines("op-output_1_6")[0] == "~ output_1_6"
    assert drawn.lines("op-output_1_6")[-1] == "shape (5, 2) → (5, 3)"
    assert drawn.nodes["op-gelu_1_2"]["fillcolor"] == THEMES["light"].added
    assert drawn.nodes["op-relu_1_1"]["fillcolor"] == THEMES["light"].plain
    assert drawn.title[-1] == "+ 2 added, − 1 removed, ~ 1 changed, 4 the same"


def test_arrows_of_one_pass_alone_are_marked():
    drawn = compare(pass_of("relu", "tanh"), pass_of("relu", "gelu"))
    marks = {ends: look.get("class") for ends, look in drawn.edges.items()}
    assert marks["op-relu_1_1", "op-gelu_1_2"] == "added"
    assert marks["op-relu_1_1", "op-old-20-tanh_1_2"] == "removed"
    assert marks["op-input_1_0", "op-relu_1_1"] is None
    assert drawn.edges["op-relu_1_1", "op-old-20-tanh_1_2"]["style"] == "dashed"


def test_modules_without_a_difference_are_one_node_unless_a_depth_is_asked_for():
    before, after = pass_of("relu"), pass_of("gelu")
    assert "module-same" in compare(before, after).nodes
    assert "module-block" in compare(before, after).boxes
    assert "module-same" in compare(before, after, vis_nesting_depth=9).boxes


def test_a_module_that_is_new_or_gone_as_a_whole_is_one_node():
    drawn = compare(pass_of("relu", "tanh"), pass_of())
    assert drawn.lines("module-block")[0] == "− @block"
    assert drawn.edges["op-input_1_0", "module-block"]["class"] == "removed"
    assert compare(pass_of(), pass_of("relu", "tanh")).lines("module-block")[0] == "+ @block"


def test_a_module_drawn_as_one_node_is_changed_if_anything_in_it_is():
    drawn = compare(pass_of("relu", "cos"), pass_of("gelu", "cos"), vis_nesting_depth=1)
    assert drawn.lines("module-block")[0] == "~ @block"
    assert drawn.lines("module-same")[0] == "@same"


def test_another_model_is_named():
    assert compare(pass_of(name="Old"), pass_of(name="New")).title[3].startswith("compared with Old: + 0 added")


def asking(value, branch, *, number=0.5):
    """Return a pass that asks one value whether it is true, and for a number."""
    net = Sketch("Net")
    total = net.op("sum", net.op("input"))
    net.op("output", net.op("cos" if value else "sin", total))
    told = EscapeRecord(function="__bool__", operation=total, statement="if", value=value, branch=branch)
    return replace(net.record(), escapes=(told, EscapeRecord(function="item", operation=total, value=number)))


def test_a_branch_that_the_other_pass_took_is_said():
    drawn = compare(asking(True, "body"), asking(False, "else", number=0.25))
    assert drawn.lines("op-sum_1_1")[0] == "~ sum_1_1"
    assert "if: was True → body, now False → else" in drawn.lines("op-sum_1_1")
    assert "item(): was 0.5, now 0.25" in drawn.lines("op-sum_1_1")
    assert drawn.title[-1] == "+ 1 added, − 1 removed, ~ 1 changed, 2 the same"


def test_other_numbers_alone_are_no_change():
    drawn = compare(asking(True, "body"), asking(True, "body", number=0.25))
    assert drawn.lines("op-sum_1_1")[::2] == ["sum_1_1", "if: True → body"]
    assert drawn.title[-1] == "+ 0 added, − 0 removed, ~ 0 changed, 4 the same"


def test_what_is_gone_still_says_what_it_was_asked():
    before, after = asking(True, "body"), pass_of()
    lines = compare(before, after).lines("op-old-20-sum_1_1")
    assert "if: True → body" in lines


def test_passes_that_are_gone_are_counted_by_themselves():
    drawn = read_back(scene_source(difference(recurrent(5), recurrent(2)), DrawOptions(vis_opt="rolled")))
    assert drawn.lines("op-linear_1_1")[0] == "linear_1_1 (x2)"
    assert drawn.lines("op-old-20-linear_1_1")[0] == "− old linear_1_1 (x3)"
    inner = [
        lines for tail, head, lines in drawn.arrows if (tail, head) == ("op-old-20-linear_1_1", "op-old-20-add_1_2")
    ]
    assert inner == [[]]


def test_a_pass_and_itself():
    drawn = compare(demo_network(), demo_network(), legend=True)
    assert drawn.title[-1] == "+ 0 added, − 0 removed, ~ 0 changed, 12 the same"
    assert not [look for look in drawn.edges.values() if "class" in look]
    assert "~ differs" in drawn.lines("legend")


def test_histories_and_records(tmp_path):
    x = torch.rand(1, 4)
    before = tl.log_forward_pass(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), x)
    after = tl.log_forward_pass(nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 3)), x)
    paths = [after.draw_difference(made, tmp_path / f"{i}.dot") for i, made in enumerate((before, before.record()))]
    assert paths[0].read_text() == paths[1].read_text()
    drawn = read_back(paths[0].read_text())
    assert drawn.title[-1] == "+ 1 added, − 1 removed, ~ 2 changed, 2 the same"
    assert after.draw_difference(before, tmp_path / "net.svg").read_bytes().startswith(b"<?xml")
