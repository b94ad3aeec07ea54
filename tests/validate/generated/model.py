"""The module that runs a generated program, with the state that its steps use."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.validate.generated.program import FORMS
from tests.validate.generated.program import Parts
from tests.validate.generated.program import Program
from tests.validate.generated.program import StepRunner
from tests.validate.generated.program import inputs_of


class Block(nn.Module):
    """Runs a function inside a module call of its own."""

    def forward(self, function: Any, *args: Any) -> Any:
        return function(*args)


class Traced(nn.Module):
    def forward(self, t: torch.Tensor) -> torch.Tensor:
        return torch.tanh(t) * 2 - t


class GeneratedModel(nn.Module):
    """Runs the steps of a program on its inputs; returns the last tensors, and those of seeded faults."""

    log: list[str] | None = None
    reports: list[torch.Tensor]

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        self.weight = nn.Parameter(torch.linspace(-0.9, 0.8, 16).view(4, 4))
        self.frozen = nn.Parameter(torch.linspace(0.3, 0.9, 4), requires_grad=False)
        self.register_buffer("mean", torch.tensor([0.1, 0.2, 0.3, -0.4]))
        self.register_buffer("steps_so_far", torch.tensor(0))
        self.table = torch.linspace(0.5, 2.0, 12).view(3, 4)
        self.scales = nn.ParameterList([torch.full((4,), 0.5), torch.full((1,), 1.5)])
        self.linear = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.linear.weight
        self.norm = nn.BatchNorm1d(4)
        self.layer_norm = nn.LayerNorm(4)
        self.dropout = nn.Dropout(0.5)
        self.embedding = nn.Embedding(7, 4)
        self.lstm = nn.LSTM(4, 4, num_layers=2, batch_first=True, dropout=0.25)
        self.cell = nn.GRUCell(4, 4)
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True)
        self.convolution = nn.Conv1d(1, 2, 3, padding=1)
        self.layers = nn.ModuleDict({"a": nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), "b": nn.Tanh()})
        self.spectral = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.hooked = nn.Linear(4, 4)
        self.hooked.register_forward_hook(_halved)
        self.encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.inner = Block()

    def forward(self, x: torch.Tensor, y: torch.Tensor, more: dict[str, torch.Tensor]) -> Any:
        live = [x, y, more["ids"]]
        self.reports = []
        StepRunner(self, self.log).run(self.program.steps, live)
        output = FORMS[self.program.form](live[-self.program.returned :])
        return (output, *self.reports) if self.reports else output


def _halved(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 0.5


def build(program: Program) -> Parts:
    """Return the model of a program, and fresh arguments."""
    torch.manual_seed(5)
    model = GeneratedModel(program).train(program.training)
    return model, *inputs_of(program)
