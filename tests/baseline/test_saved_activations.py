from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from pytest_torchlens import log_forward_pass
from pytest_torchlens.baseline.judge import Suspects
from pytest_torchlens.baseline.rerun_operations import Repeater
from pytest_torchlens.baseline.saved_activations import SavedActivations
from pytest_torchlens.baseline.saved_activations import save_activations
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.take_snapshot import take
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import RerunResult
from pytest_torchlens.run import find_environment
from tests.baseline.samples import an_input
from tests.baseline.samples import filled


class Views(nn.Module):
    """Slices, a transposed and an expanded tensor, writes through views, a list of tensors, several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(7, 5, batch_first=True)
        self.register_buffer("count", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = x[:, 1:].t()
        wide = part[:, :1].expand(7, 8)
        made = torch.sigmoid(part) + wide
        made[2:4].mul_(0.5)
        self.count[1:3] += made[0, :2]
        out, (hidden, _) = self.lstm(torch.cat([made.t(), made.t()])[None])
        return torch.tanh(out).sum((1, 2)) + hidden.sum() + (self.count * 2).sum()


def kept_pass(folder: Path, model: nn.Module, x: torch.Tensor) -> tuple[ModelHistory, Snapshot]:
    history = log_forward_pass(model, x, layers_to_save="all", random_seed=0)
    snapshot = take(history, find_environment())
    save_activations(folder, history, snapshot)
    return history, snapshot


def run_alone(folder: Path, history: ModelHistory, snapshot: Snapshot) -> dict[str, RerunResult]:
    """Run every operation by itself on what was kept of the same pass."""
    (block,) = snapshot.measured.values()
    steps = [step.id for step in snapshot.steps if step.function not in ("input", "output", "constant")]
    names = {step.id: step.id for step in snapshot.steps}
    return Repeater(folder, history, snapshot)(Suspects(dict.fromkeys(steps, 0.0), names, block.numbers))


def test_activations_are_had_again_as_they_lay_in_memory(tmp_path: Path):
    history, snapshot = kept_pass(tmp_path, filled(Views()), an_input(8, 8))
    (folder,) = tmp_path.iterdir()
    kept = SavedActivations(folder)
    operations = [op for op in history.operations if op.layer_type not in ("buffer", "output")]
    for step, operation in zip(snapshot.steps, operations, strict=False):
        tensor = kept.tensor(step.id, torch.device("cpu"))
        assert operation.tensor_contents is not None
        assert torch.equal(tensor, operation.tensor_contents), step.id
        assert tensor.stride() == operation.tensor_contents.stride(), step.id
    part = kept.tensor("/getitem", torch.device("cpu"))
    assert part.data_ptr() % 64 == 4  # the second of four-byte elements


def test_each_operation_by_itself_gives_what_it_gave(tmp_path: Path):
    found = run_alone(tmp_path, *kept_pass(tmp_path, filled(Views()), an_input(8, 8)))
    assert len(found) > 20
    assert {name: alone for name, alone in found.items() if not alone.same} == {}


def test_the_model_and_the_generator_are_left_as_they_were(tmp_path: Path):
    model = filled(Views())
    model.lstm.dropout = 0.5
    history, snapshot = kept_pass(tmp_path, model, an_input(8, 8))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    run_alone(tmp_path, history, snapshot)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


class GradientInForward(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = x * 2
        with torch.enable_grad():
            leaf = scaled.clone().requires_grad_()
            (gradient,) = torch.autograd.grad((leaf * leaf).sum(), leaf)
        return gradient + 1


def test_a_model_that_takes_gradients_is_kept_in_a_run_without(tmp_path: Path):
    with torch.no_grad():
        kept_pass(tmp_path, GradientInForward(), an_input(3))
        assert not torch.is_grad_enabled()
    (folder,) = tmp_path.iterdir()
    assert SavedActivations(folder).in_float64("/mul", torch.device("cpu")) is not None
