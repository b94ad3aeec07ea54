"""The HTML for notebooks has the same facts as the text, is well-formed, and escapes names from models."""

from __future__ import annotations

from collections import OrderedDict
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import pytest_torchlens as tl
from tests.models import Function
from tests.models import RecurrentNetwork

VOID = {"br", "hr", "img"}


class Reader(HTMLParser):
    """Rows of all tables, tags, and a check that every tag is closed in turn."""

    def __init__(self, page):
        super().__init__()
        self.rows, self.tags, self.open = [], set(), []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def history():
    return tl.log_forward_pass(RecurrentNetwork(), torch.rand(5, 5))


def test_history(history):
    page = history._repr_html_()
    reader = Reader(page)
    assert len(reader.rows) == 12
    assert reader.rows[5][:4] == ["4", "linear_1_1:2", "5×5", "float32"]
    assert "<li>fc: Linear, called 3 times</li>" in page
    assert not reader.tags & {"script", "style", "img", "link"}


def test_a_notebook_shows_the_rolled_graph_above_the_table(history):
    shown = history._repr_mimebundle_(include=None, exclude=None)
    assert set(shown) == {"text/plain", "text/html", "image/svg+xml"}
    assert "linear_1_1 (x3)" in shown["image/svg+xml"]
    assert "<svg" in shown["text/html"]
    assert "<li>fc: Linear, called 3 times</li>" in shown["text/html"]
    assert "<svg" not in history._repr_html_()


def test_a_notebook_shows_the_table_alone_without_graphviz(history, monkeypatch):
    monkeypatch.setenv("PYTEST_LENS_DOT", "/no/such/program")
    assert set(history._repr_mimebundle_()) == {"text/plain", "text/html"}


def test_a_notebook_completes_keys(history):
    keys = history._ipython_key_completions_()
    assert {"linear_1_1:2", "linear_1_1", "fc", "input_1_0"} <= set(keys)
    assert len(keys) == len(set(keys))
    assert all(history[key] is not None for key in keys)


def test_operation(history):
    op = history["linear_1_1:2"]
    page = op._repr_html_()
    facts = dict(Reader(page).rows)
    printed = [line[1:].partition(": ") for line in str(op).splitlines()[1:] if not line.startswith("\t\t")]
    assert {name: text for name, colon, text in printed if colon}.items() <= facts.items()
    assert facts["Source"] == op.source_line
    assert "<pre>tensor([[" in page


def test_layer(history):
    reader = Reader(history["linear_1_1"]._repr_html_())
    assert ["Passes", "linear_1_1:1, linear_1_1:2, linear_1_1:3"] in reader.rows
    assert [row[1] for row in reader.rows if len(row) > 2] == [
        "Layer", "linear_1_1:1", "linear_1_1:2", "linear_1_1:3",
    ]  # fmt: skip


def test_names_from_models_are_escaped():
    fc = nn.Linear(2, 2)
    model = nn.Sequential(OrderedDict({"<b>fc</b>": nn.Sequential(fc, fc)}))
    history = tl.log_forward_pass(model, torch.ones(1, 2))
    for page in (history._repr_html_(), history[1]._repr_html_(), history["linear_1_1"]._repr_html_()):
        assert "&lt;b&gt;fc&lt;/b&gt;" in page
        assert "b" not in Reader(page).tags


def test_long_tables_are_folded_and_cut_with_a_note():
    def forward(x):
        for _ in range(600):
            x = x + 1
        return x

    page = tl.log_forward_pass(Function(forward), torch.ones(2))._repr_html_()
    assert len(Reader(page).rows) == 501
    assert "<details><summary>Layers (602)" in page
    assert "and 102 more: <code>history.to_pandas()</code> has all" in page
