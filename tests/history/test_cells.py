"""Models defined in a cell of IPython: they have no file, but `linecache` has their source."""

from __future__ import annotations

import linecache

import torch
from torch import nn

import pytest_torchlens as tl
from tests.models import Function

CELL = """
class Model(nn.Module):
    def forward(self, x):
        for _ in range(3):
            x = x * 2
            if x.sum() > 0:
                x = x + 1
        return x

def helper(x):
    return x + 1 if x.sum() > 0 else x
"""


def run_cell(name, monkeypatch, source=CELL):
    monkeypatch.setitem(linecache.cache, name, (len(source), None, source.splitlines(keepends=True), name))
    space = {"nn": nn}
    exec(compile(source, name, "exec"), space)  # noqa: S102 - as IPython does
    return space


def test_lines_loops_and_conditions_of_a_cell(monkeypatch):
    name = "<ipython-input-1-0a1b2c>"
    history = tl.log_forward_pass(run_cell(name, monkeypatch)["Model"](), torch.ones(2))
    assert history["mul_1:1"].source_line == f"{name}:5, in forward"
    (loop,) = history.loops
    assert (loop.source_line, loop.num_passes) == (f"{name}:4, in forward", 3)
    assert history.lines_taken == {name: [7]}
    assert {(test.statement, test.condition, test.branch) for test in history.truth_tests} == {
        ("if", "x.sum() > 0", "body")
    }


def test_a_helper_of_a_cell_called_by_a_file(monkeypatch):
    name = "<ipython-input-2-0a1b2c>"
    helper = run_cell(name, monkeypatch)["helper"]
    history = tl.log_forward_pass(Function(lambda x: helper(x) * 2), torch.ones(2))
    (test,) = history.truth_tests
    assert (test.source_line, test.statement) == (f"{name}:11, in helper", "conditional expression")
    assert history["add_1"].source_line == f"{name}:11, in helper"
