"""The graph as text."""

from __future__ import annotations

import textwrap

import torch
from torch import nn

import pytest_torchlens as tl
from tests.models import Function


class Block(nn.Module):
    """A residual block, a buffer of its own, one of the model's, and a cell in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.cell = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x):
        x = torch.relu(self.body(x) + x)
        for _ in range(2):
            x = torch.tanh(self.cell(x))
        return x * self.scale


def history():
    return tl.log_forward_pass(Block().eval(), torch.rand(2, 4))


def test_each_operation_stands_inside_its_modules_with_what_it_reads():
    assert history().to_text() + "\n" == textwrap.dedent("""\
        input_1_0          2x4
        body (Sequential)
          body.0 (Linear)
            linear_1_1     2x4
          body.1 (BatchNorm1d)
            batchnorm_1_2  2x4
        add_1_3            2x4       <- batchnorm_1_2, input_1_0
        relu_1_4           2x4
        cell:1 (Linear)
          linear_2_5:1     2x4
        tanh_1_6:1         2x4
        cell:2 (Linear)
          linear_2_5:2     2x4
        tanh_1_6:2         2x4
        buffer_3           x4 scale
        mul_1_7            2x4       <- tanh_1_6:2, buffer_3
        output_1_8         2x4
    """)


def test_passes_of_a_layer_share_a_line_when_rolled():
    assert history().to_text(rolled=True) + "\n" == textwrap.dedent("""\
        input_1_0          2x4
        body (Sequential)
          body.0 (Linear)
            linear_1_1     2x4
          body.1 (BatchNorm1d)
            batchnorm_1_2  2x4
        add_1_3            2x4       <- batchnorm_1_2, input_1_0
        relu_1_4           2x4
        cell (Linear)
          linear_2_5 x2    2x4       <- relu_1_4 (In 1), tanh_1_6 (Out 1, In 2)
        tanh_1_6 x2        2x4       <- linear_2_5
        buffer_3           x4 scale
        mul_1_7            2x4       <- tanh_1_6 (Out 2), buffer_3
        output_1_8         2x4
    """)


def test_a_module_that_forward_makes_is_named_by_its_class_alone():
    model = Function(lambda x: nn.ReLU()(x).sin())
    assert "<ReLU>\n  relu_1_1" in tl.log_forward_pass(model, torch.rand(2, 4)).to_text()


def test_a_history_from_disk_has_the_same_text(tmp_path):
    before = history()
    before.save(tmp_path / "pass.lens")
    for rolled in (False, True):
        assert tl.load(tmp_path / "pass.lens").to_text(rolled=rolled) == before.to_text(rolled=rolled)
