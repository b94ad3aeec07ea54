"""A model with calls of every kind that a reproduction prints, and what runs programs in this process."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field

import torch
from torch import nn
from torch.nn import functional as F

from pytest_torchlens import log_forward_pass
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.run.repro.program import Program
from pytest_torchlens.run.repro.runner import cut
from pytest_torchlens.run.repro.runner import run
from pytest_torchlens.run.repro.script import stored
from pytest_torchlens.run.repro.trials import Outcome
from pytest_torchlens.run.repro.trials import Trial
from pytest_torchlens.run.repro.trials import outcome_of


class Everything(nn.Module):
    """Functions, methods, operators, properties, indices; in place, random, complex, with lists and keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.lstm = nn.BatchNorm2d(6), nn.LSTM(8, 8)
        self.register_buffer("mask", torch.arange(64).view(8, 8) % 3 == 0)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x = x.clone()
        x.mul_(1.5)
        x[:, 1:3] = x[:, 1:3] + 1
        x += 0.25
        y = self.norm(torch.cat([x, x.flip(0)], dim=1))
        y = F.gelu(y.transpose(1, 3), approximate="tanh")
        y = F.relu(y.masked_fill(self.mask[:, :, None].expand(8, 8, 6)[None], float("-inf")), inplace=True)
        z = torch.fft.rfft(y, dim=-1, norm="ortho")
        z = z * torch.complex(torch.ones(()), torch.full((), 0.5))
        w = torch.fft.irfft(z, n=8, dim=-1).contiguous(memory_format=torch.channels_last)
        s = F.silu(w.to(torch.bfloat16).exp().float()).T
        top = s.topk(3, dim=-1)
        drop = F.dropout(w, 0.5, training=True)
        out, (h, c) = self.lstm(drop.flatten(0, 1))
        biggest = torch.ops.aten.amax.default(out, [0], True)
        parts = torch.linspace(-1, 1, 9).unfold(0, 3, 2) @ torch.ones(3)
        return [biggest, h, c, top.values, -(w**2), 1 / (1 + s), ~self.mask, 2 - s[..., None, 0], parts, s.real]


def history_of(model: nn.Module, *inputs: torch.Tensor) -> ModelHistory:
    """Return the history of a pass without gradients."""
    with torch.no_grad():
        return log_forward_pass(model.eval(), inputs, layers_to_save=None, random_seed=0)


Fault = Callable[[torch.Tensor, dict[str, torch.Tensor]], torch.Tensor]
"""Returns a wrong result in the place of a right one, given the inputs."""


@dataclass
class Here:
    """Takes the place of `Bench`: runs both sides in this process, one of them with a fault."""

    fault: Fault
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    trials: int = 0

    def keep(self, program: Program) -> None:
        self.tensors = {name: stored(tensor) for name, tensor in program.inputs.items()}

    def run(self, program: Program) -> Outcome:
        from pytest_torchlens.run.repro.script import program_text

        self.keep(program)
        return self.run_all([(program_text(program), {})])[0]

    def run_all(self, trials: Sequence[Trial]) -> list[Outcome]:
        self.trials += len(trials)
        return [self._outcome(*trial) for trial in trials]

    def _outcome(self, text: str, cuts: dict[str, Sequence[tuple[int, int, int]]]) -> Outcome:
        inputs = {name: cut(tensor, cuts.get(name, ())) for name, tensor in self.tensors.items()}
        expected = run(text, inputs)
        if isinstance(expected, str):
            return Outcome(error=expected)
        return outcome_of(expected, [self.fault(one, inputs) for one in expected])
