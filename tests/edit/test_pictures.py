"""Edited passes in drawings, summaries and on pages."""

from __future__ import annotations

import re

import pytest
import torch

import pytest_torchlens as tl
from pytest_torchlens.draw import THEMES
from pytest_torchlens.draw.theme import edit_line
from tests.draw.parsed import read_back
from tests.draw.parsed import text_lines
from tests.edit.samples import Branches
from tests.edit.samples import Loop
from tests.edit.samples import residual

X = torch.tensor([[1.0, -2.0, 3.0, 0.5]])


def drawn(history, tmp_path, **options):
    return read_back(history.draw(tmp_path / "edited.dot", **options).read_text(encoding="utf-8"))


def width(picture, node):
    return float(picture.nodes[node].get("penwidth", 1))


@pytest.fixture(name="history", scope="module")
def fixture_history():
    torch.manual_seed(0)
    return tl.log_forward_pass(Branches(), X)


@pytest.fixture(name="edited", scope="module")
def fixture_edited(history):
    edits = {tl.Part("linear_1")[:, 2]: lambda t: t * 3, ("input_1", "mul_1"): 0.0}
    return history.edit(edits, parameters={"fc.bias": 0.0})


@pytest.mark.parametrize("theme", THEMES)
def test_edited_operations_have_a_fill_and_an_outline_of_their_own(edited, tmp_path, theme):
    picture = drawn(edited, tmp_path, theme=theme)
    node, colours = picture.nodes["op-linear_1_3"], THEMES[theme]
    assert (node["fillcolor"], node["color"]) == (colours.edited, edit_line(colours))
    assert node["class"] == "edited affected"
    assert float(node["penwidth"]) >= 3
    assert picture.lines("op-linear_1_3")[4:6] == ["edited: [:, 2] ← a function", "edited: fc.bias ← 0.0"]
    others = {name for name, node in picture.nodes.items() if node.get("fillcolor") == colours.edited}
    assert others == {"op-linear_1_3"}


def test_the_title_has_the_edits(edited, tmp_path):
    assert drawn(edited, tmp_path).title[-3:] == [
        "edited: linear_1_3 [:, 2] ← a function",
        "edited: input_1_0 as mul_1_7 reads it ← 0.0",
        "edited: fc.bias ← 0.0",
    ]


def test_what_is_behind_an_edit_says_how_much_it_changed_and_has_a_wider_outline(history, tmp_path):
    picture = drawn(history.edit({"linear_1": lambda t: t * 1.04}), tmp_path)
    assert picture.lines("op-mul_1_7")[-1] == "changed by 4 %"
    assert picture.lines("op-relu_1_5")[-1] == "unchanged"
    assert width(picture, "op-mul_1_7") == pytest.approx(1.8)
    assert width(picture, "op-sub_1_4") < width(picture, "op-mul_1_7") < width(picture, "op-linear_1_3")
    assert "color" not in picture.nodes["op-relu_1_5"]
    assert not [name for name in ("op-input_1_0", "op-sigmoid_1_1") if "penwidth" in picture.nodes[name]]


def test_an_edge_edited_for_one_operation_alone_is_marked(edited, tmp_path):
    picture = drawn(edited, tmp_path)
    edge = picture.edges["op-input_1_0", "op-mul_1_7"]
    assert picture.says("op-input_1_0", "op-mul_1_7") == ["edited: 0.0"]
    assert (edge["class"], edge["color"], edge["penwidth"]) == ("edited", edit_line(THEMES["light"]), "3")
    assert "class" not in picture.edges["op-input_1_0", "op-linear_1_3"]
    assert picture.nodes["op-input_1_0"]["fillcolor"] == THEMES["light"].input


def test_a_module_drawn_as_one_node_has_the_edits_inside_it(tmp_path):
    history = tl.log_forward_pass(residual(), X)
    edited = history.edit({"linear_3": 0.0, ("linear_4", "tanh_3"): lambda t: t + 1})
    picture = drawn(edited, tmp_path, vis_nesting_depth=1)
    assert picture.nodes["module-2"]["fillcolor"] == THEMES["light"].edited
    assert "edited: linear_3_4 ← 0.0" in picture.lines("module-2")
    assert "edited: linear_4_6 as tanh_3_7 reads it ← a function" in picture.lines("module-3")
    assert re.fullmatch(r"changed by \S+ %", picture.lines("module-4")[-1])
    assert not [line for line in picture.lines("module-1") if "changed" in line]


def test_in_a_rolled_picture_a_layer_says_which_pass_is_edited(tmp_path):
    edited = tl.log_forward_pass(Loop(), X).edit({"tanh_1:2": 0.0})
    lines = drawn(edited, tmp_path, vis_opt="rolled").lines("op-tanh_1_2")
    assert lines[2] == "edited in pass 2: 0.0"
    assert re.fullmatch(r"changed by \S+ % to 100 %", lines[3])


def test_modules_alike_but_for_an_edit_are_not_drawn_as_one(tmp_path):
    edited = tl.log_forward_pass(residual(), X).edit({"linear_3": lambda t: t * 2})
    picture = drawn(edited, tmp_path, repeats=True)
    assert text_lines(picture.boxes["module-3"]["label"])[0] == "@3 × 2, to @4"
    assert {"module-1", "module-2"} <= picture.boxes.keys()
    assert re.fullmatch(r"changed by \S+ % to \S+ %", picture.lines("op-tanh_3_7")[-1])


def test_with_a_metric_fills_are_its_and_the_edits_keep_outline_and_words(edited, tmp_path):
    node = drawn(edited, tmp_path, color_by=edited.changed_by).nodes["op-linear_1_3"]
    assert node["fillcolor"] != THEMES["light"].edited
    assert node["color"] == edit_line(THEMES["light"])
    assert "edited: fc.bias" in node["label"]


def test_the_legend_explains_only_signs_that_are_there(history, edited, tmp_path):
    def rows(history):
        return text_lines(drawn(history, tmp_path, legend=True).nodes["legend"]["label"])

    assert rows(edited)[-3:] == [
        "edited",
        "thick arrow: edited for one operation alone",
        "thick outline: how much edits changed the tensor",
    ]
    assert not [row for row in rows(history) if "edit" in row]


def test_a_picture_without_edits_is_as_before(history, tmp_path):
    picture = drawn(history, tmp_path)
    assert not [line for node in picture.nodes for line in picture.lines(node) if "edit" in line or "chang" in line]
    assert not [node for node in picture.nodes.values() if "penwidth" in node]


def test_the_difference_from_the_original_opens_what_is_edited_and_closes_the_rest(tmp_path):
    history = tl.log_forward_pass(residual(), X)
    edited = history.edit({"linear_3": 0.0})
    picture = read_back(edited.draw_difference(history, tmp_path / "difference.dot").read_text(encoding="utf-8"))
    assert picture.nodes["op-linear_3_4"]["fillcolor"] == THEMES["light"].edited
    assert {"module-1", "module-3", "module-4"} <= picture.nodes.keys()
    assert re.fullmatch(r"changed by \S+ %", picture.lines("module-3")[-1])
    assert "edited: linear_3_4 ← 0.0" in picture.title
    turned = read_back(history.draw_difference(edited, tmp_path / "difference.dot").read_text(encoding="utf-8"))
    assert turned.nodes["op-linear_3_4"]["fillcolor"] == THEMES["light"].edited
    assert turned.title[-2:] == ["the first pass is the edited one", "edited: linear_3_4 ← 0.0"]


def test_the_difference_of_two_edited_passes_names_the_edits_of_both(history, tmp_path):
    one, other = history.edit({"linear_1": 0.0}), history.edit({"mul_1": 0.0})
    picture = read_back(other.draw_difference(one, tmp_path / "difference.dot").read_text(encoding="utf-8"))
    assert picture.title[-2:] == ["in the first, edited: linear_1_3 ← 0.0", "edited: mul_1_7 ← 0.0"]


def test_a_loaded_edited_history_is_drawn_alike(edited, tmp_path):
    edited.save(tmp_path / "saved")
    loaded = tl.load(tmp_path / "saved")
    one, other = (each.draw(tmp_path / "one.dot", legend=True).read_text() for each in (edited, loaded))
    assert one == other


def test_summaries_say_what_is_edited(history, edited):
    lines = [line.strip() for line in str(edited).splitlines()]
    assert "Edited: input_1_0 as mul_1_7 reads it ← 0.0" in lines
    words = re.compile(r"3: linear_1_3 \(edited: \[:, 2\] ← a function; changed by \S+ %\)")
    assert any(map(words.fullmatch, lines))
    assert "5: relu_1_5 (unchanged)" in lines
    assert "1: sigmoid_1_1" in lines
    assert repr(edited) == "<ModelHistory of Branches: 10 layers, 3 edits>"
    table = edited._repr_html_()
    assert ">Edits</th>" in table
    assert "edited: [:, 2] ← a function; edited: fc.bias ← 0.0; changed by" in table
    assert "Edited" not in str(history)
    assert "Edits" not in history._repr_html_()
    assert repr(history) == "<ModelHistory of Branches: 10 layers>"


def test_many_edits_are_counted_beyond_the_first(history):
    edited = history.edit({tl.Part("linear_1")[:, place]: 0.0 for place in range(4)} | {"mul_1": 0.0})
    lines = [line.strip() for line in str(edited).splitlines()]
    expected = [f"Edited: linear_1_3 [:, {place}] ← 0.0" for place in range(3)]
    assert [line for line in lines if line.startswith("Edited")] == expected
    assert "And 2 more edits" in lines


def test_a_theme_of_ones_own_without_the_new_colour_still_works(edited, tmp_path):
    colours = {name: colour for name, colour in vars(THEMES["light"]).items() if name != "edited"}
    assert drawn(edited, tmp_path, theme=tl.Theme(**colours)).nodes["op-linear_1_3"]["class"] == "edited affected"
