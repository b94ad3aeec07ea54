"""Names come from models, and a model may be called anything."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
import torch
from torch import nn

from pytest_torchlens import log_forward_pass
from pytest_torchlens.draw import dot_source
from pytest_torchlens.draw import module_id
from pytest_torchlens.draw import node_id
from pytest_torchlens.draw import render
from pytest_torchlens.draw.text import printable
from pytest_torchlens.draw.text import shorten
from tests.draw.parsed import parse
from tests.draw.parsed import text_lines
from tests.draw.samples import Sketch
from tests.draw.samples import demo_network

HOSTILE = [
    '<b>"&\n',
    "</script><script>alert(1)</script>",
    "&lt;i&gt; &amp; &quot;",
    r"\N \G \l \\ C:\repo\new.py",
    'quoted "name" and \\',
    "null\0 bell\a escape\x1b[31m",
    "日本語 ünïcode 🙂",
    "<<B>html</B>>",
    "]; evil [label=x]",
    "lone \ud800 surrogate",
]
_SVG = "{http://www.w3.org/2000/svg}"


def hostile_network(name):
    net = Sketch(name)
    net.module(name, name)
    x = net.op("input", source_line=f"{name}.py:3, in forward")
    x = net.op("cos", x, inside=(name,), layer_type=name, source_line=name)
    y = net.op("linear", x, leaf=f"{name}.0", inside=(name,), func_position_args_non_tensor=(name,))
    x = net.op("where", x, y, edges=())
    return net.record()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_read_back(name):
    shown = printable(name)
    drawn = parse(hostile_network(name), link=lambda op: f"#{name}")
    assert drawn.title[0] == shown
    assert text_lines(drawn.boxes[module_id(name)]["label"]) == [f"@{shown}", shown]
    assert drawn.lines("op-linear_1_2")[-1] == f"@{shown}.0"


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_draw(name):
    root = drawn(hostile_network(name))
    texts = ["".join(text.itertext()) for text in root.iter(f"{_SVG}text")]
    assert printable(name) in texts
    assert f"@{printable(name)}.0" in texts
    assert {element.tag.removeprefix(_SVG) for element in root.iter()} <= {
        *("svg", "g", "title", "a", "text", "polygon", "polyline", "path", "ellipse"),
    }


@pytest.mark.parametrize("name", HOSTILE)
def test_hints_hold_hostile_names_to_the_letter(name):
    hints = [link.get("{http://www.w3.org/1999/xlink}title") for link in drawn(hostile_network(name)).iter(f"{_SVG}a")]
    assert any(hint and hint.endswith(printable(name)) for hint in hints)


def test_normal_names_draw():
    root = drawn(demo_network())
    ids = {group.get("id") for group in root.iter(f"{_SVG}g")}
    assert {"op-input_1_0", "op-linear_1_3", "op-buffer_1"} <= ids


def test_long_names_are_shortened_in_the_middle():
    assert shorten("a" * 50 + "b" * 50, 11) == "aaaaabbbbb".replace("ab", "a…b")
    assert shorten("short", 11) == "short"
    net = Sketch("N" * 10_000)
    net.op("input")
    assert len(parse(net.record()).title[0]) == 80


def test_ids_are_safe_and_differ():
    names = ["a.b", "a:b", "a-b", "a_b", "a b", "a-2e-b", "é", "", "<"]
    ids = [module_id(name) for name in names]
    assert len(set(ids)) == len(ids)
    assert all(char.isascii() and (char.isalnum() or char in "-_.") for id_ in ids for char in id_)


def test_node_ids_name_the_layer():
    assert [node_id(op) for op in demo_network().operations][:2] == ["op-input_1_0", "op-add_1_1"]


def drawn(history):
    return ET.fromstring(render(dot_source(history)))  # noqa: S314 - drawn here


class Wrap(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x).abs()


class WrapsInForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return Wrap(self.layer)(x)


def test_a_module_made_in_forward_has_no_empty_line_in_its_box(tmp_path):
    """Graphviz refuses an empty font."""
    path = tmp_path / "model.dot"
    log_forward_pass(WrapsInForward(), torch.ones(1, 2)).draw(path)
    assert '<FONT POINT-SIZE="10"></FONT>' not in path.read_text()
    log_forward_pass(WrapsInForward(), torch.ones(1, 2)).draw(tmp_path / "model.svg")
