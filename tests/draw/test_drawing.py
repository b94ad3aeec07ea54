"""Histories of real models, drawn into files."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
import torch
from torch import nn

import pytest_torchlens as tl
from pytest_torchlens.draw import DrawOptions
from pytest_torchlens.draw import dot_source
from pytest_torchlens.draw import drawing
from pytest_torchlens.draw import render
from tests.draw.parsed import read_back
from tests.draw.samples import transformer
from tests.models import DemoNetwork

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def history():
    made = tl.log_forward_pass(DemoNetwork(), torch.rand(5, 5, requires_grad=True), save_gradients=True)
    made["output_1"].tensor_contents.sum().backward()
    return made


@pytest.mark.parametrize(("ending", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("dot", b"digraph")])
def test_the_ending_is_the_format(history, tmp_path, ending, start):
    path = history.draw(tmp_path / f"net.{ending}")
    assert path == tmp_path / f"net.{ending}"
    assert path.read_bytes().startswith(start)


def test_without_an_ending_it_is_svg(history, tmp_path):
    assert history.draw(tmp_path / "net") == tmp_path / "net.svg"


def test_an_unknown_ending_names_those_there_are(history, tmp_path):
    with pytest.raises(tl.OptionError, match=r"expected the ending of a format, got .*net\.jpg'; did you mean '\.png'"):
        history.draw(tmp_path / "net.jpg")


@pytest.mark.parametrize("name", ["a\0.svg", "x" * 300 + ".svg", "\ud800.svg"])
def test_names_that_no_file_can_have(history, tmp_path, name):
    with pytest.raises(tl.OptionError, match="cannot name a file"):
        history.draw(str(tmp_path / name))


def test_a_difference_from_what_is_no_history(history):
    with pytest.raises(TypeError, match=r"before: expected a history .*draw_difference\(before, .*got 'd\.svg'"):
        history.draw_difference("d.svg")


def test_without_graphviz_drawing_says_what_to_do(history, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_LENS_DOT", "/nowhere/dot")
    with pytest.raises(tl.DrawingUnavailable, match="no drawing: /nowhere/dot does not start"):
        history.draw(tmp_path / "net.svg")
    assert history.draw(tmp_path / "net.dot").exists()


def test_functions_of_an_operation_see_its_tensor(history, tmp_path):
    def mean(op):
        return float(op.tensor_contents.mean())

    drawn = read_back(history.draw(tmp_path / "net.dot", color_by=mean, node_text=lambda op: op.layer_type).read_text())
    assert drawn.lines("op-linear_1_3")[0] == "linear"
    assert drawn.lines("op-linear_1_3")[1].startswith("mean: ")
    assert "mean" in drawn.title


def test_gradients(history, tmp_path):
    path = history.draw(tmp_path / "net.dot", gradients=True, color_by="gradient_norm")
    drawn = read_back(path.read_text())
    assert drawn.edges["op-linear_1_3", "op-relu_1_2"]["class"] == "gradient"
    assert ("op-add_2_6", "op-randn_1_5") not in drawn.edges
    assert any(line.startswith("gradient norm: ") for line in drawn.lines("op-linear_1_3"))


def test_gradients_that_are_not_there_are_asked_for(tmp_path):
    history = tl.log_forward_pass(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(tl.OptionError, match="expected saved gradients, got none: record with save_gradients=True"):
        history.draw(tmp_path / "net.svg", gradients=True)


def test_a_difference_of_gradients_is_refused(history, tmp_path):
    with pytest.raises(
        tl.OptionError, match="gradients: expected False for a difference, got True; draw each pass: history"
    ):
        history.draw_difference(history, tmp_path / "net.svg", gradients=True)


@pytest.mark.parametrize("name", ["draw", "draw_difference"])
def test_no_drawing_is_made_where_none_is_asked_for(history, tmp_path, name):
    before = [history] if name == "draw_difference" else []
    with pytest.raises(tl.OptionError, match="vis_opt: expected 'unrolled' or 'rolled' to draw a picture"):
        getattr(history, name)(*before, tmp_path / "net.svg", vis_opt="none")
    tl.show_model_graph(DemoNetwork(), torch.rand(5, 5), vis_opt="none", vis_outpath=tmp_path / "net.svg")
    assert list(tmp_path.iterdir()) == []


def test_without_a_path_a_notebook_shows_the_drawing(history, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    drawings = [history.draw(vis_opt="rolled"), history.draw_difference(history)]
    drawings.append(tl.show_model_graph(DemoNetwork(), torch.rand(5, 5)))
    assert list(tmp_path.iterdir()) == []
    for shown in drawings:
        assert shown._repr_svg_().rstrip().endswith("</svg>")
        assert repr(shown) == "<Drawing: a notebook shows it; drawing.save('graph.svg') writes it>"
        assert shown.save("graph.svg").read_text(encoding="utf-8") == shown.svg
    with pytest.raises(tl.OptionError, match="expected the ending of a format"):
        drawings[0].save("graph.txt")


def test_operations_left_out_are_a_warning_of_the_line_that_asked(history, tmp_path):
    with pytest.warns(UserWarning, match=r"the last \d operations are not drawn: max_nodes is 4, .*focus") as caught:
        history.draw(tmp_path / "net.dot", max_nodes=4)
    assert [warning.filename for warning in caught] == [__file__]
    for path in (tmp_path / "net.dot", None):
        with pytest.warns(UserWarning, match="are not drawn") as caught:
            history.draw_difference(history, path, max_nodes=4)
        assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match="are not drawn") as caught:
        history.draw(max_nodes=4)
    assert [warning.filename for warning in caught] == [__file__]


def test_measured_flops_are_numbers_to_draw(tmp_path):
    model, x = nn.Linear(2, 3), torch.ones(1, 2)
    history = tl.log_forward_pass(model, x)
    measured = tl.measure_forward_pass(model, x, history=history, passes=1)
    assert history.measurements is measured
    drawn = read_back(history.draw(tmp_path / "net.dot", color_by="flops").read_text())
    assert drawn.lines("op-linear_1_1")[-1] == "flops: 12"
    flops = dict(zip(measured.operations, measured.operation_flops, strict=True))
    drawn = read_back(history.draw(tmp_path / "net.dot", color_by=flops).read_text())
    assert drawn.lines("op-linear_1_1")[-1] == "value: 12"


def test_flops_of_a_call_with_several_tensors_count_once_in_its_module(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.LSTM(2, 3)

        def forward(self, x):
            output, (h, c) = self.cell(x)
            return output + h + c

    model, x = Net(), torch.ones(1, 2)
    history = tl.log_forward_pass(model, x)
    flops = tl.measure_forward_pass(model, x, history=history, passes=1).flops
    path = history.draw(tmp_path / "net.dot", color_by="flops", vis_nesting_depth=1)
    assert flops > 0
    assert read_back(path.read_text()).lines("module-cell")[-1] == f"flops: {flops:,}"


def test_a_loaded_history_draws_the_same(history, tmp_path):
    history.save(tmp_path / "run")
    paths = [made.draw(tmp_path / f"{place}.dot") for place, made in enumerate((history, tl.load(tmp_path / "run")))]
    assert paths[0].read_text() == paths[1].read_text()


def test_show_model_graph_takes_all_options(tmp_path):
    path = tmp_path / "net.dot"
    tl.show_model_graph(DemoNetwork(), torch.rand(5, 5), vis_outpath=path, direction="right", legend=True)
    drawn = read_back(path.read_text())
    assert drawn.graph["rankdir"] == "LR"
    assert "legend" in drawn.nodes


def test_show_model_graph_refuses_before_the_model_runs(tmp_path):
    with pytest.raises(tl.OptionError, match="unknown option 'nesting'"):
        tl.show_model_graph(Raises(), torch.rand(5, 5), nesting=2)
    with pytest.raises(tl.OptionError, match="expected the ending of a format"):
        tl.show_model_graph(Raises(), torch.rand(5, 5), vis_outpath=tmp_path / "net.txt")


class Raises(nn.Module):
    def forward(self, x):
        raise AssertionError("it ran")


def programs():
    found = dict.fromkeys([drawing.shutil.which("dot"), drawing._from_wheel(), drawing.shutil.which("graphviz-pure")])
    return [program for program in found if program]


@pytest.mark.parametrize("program", programs())
@pytest.mark.parametrize(
    "options",
    [
        {"legend": True},
        {"vis_opt": "rolled", "direction": "right", "theme": "dark", "color_by": "time"},
        {"focus": "fc", "gradients": True},
    ],
)
def test_svg_of_each_engine_parses(history, tmp_path, monkeypatch, program, options):
    monkeypatch.setenv("PYTEST_LENS_DOT", program)
    root = ET.parse(history.draw(tmp_path / "net.svg", **options)).getroot()  # noqa: S314 - drawn here
    ids = [group.get("id") for group in root.iter(f"{SVG}g")]
    assert len(set(ids)) == len(ids)
    assert "op-linear_1_3" in ids
    hints = [link.get("{http://www.w3.org/1999/xlink}title") or "" for link in root.iter(f"{SVG}a")]
    hint = next(hint for hint in hints if hint.startswith("linear_1_3"))
    for said in ("5x5 torch.float32 on cpu, 100 B", "params: fc.weight 5x5, fc.bias x5", "module: fc"):
        assert said in hint
    assert re.search(r"models\.py:\d+, in forward", hint)


@pytest.mark.slow
@pytest.mark.parametrize("program", programs())
def test_three_thousand_operations_are_drawn(monkeypatch, program):
    monkeypatch.setenv("PYTEST_LENS_DOT", program)
    record = transformer(167)
    svg = render(dot_source(record, DrawOptions(max_nodes=None)), timeout=600)
    nodes = [group for group in ET.fromstring(svg).iter(f"{SVG}g") if group.get("class", "").startswith("node")]  # noqa: S314
    assert len(nodes) == len(record.operations) > 3000
