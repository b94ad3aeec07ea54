"""How often a run with `--lens-validate` calls a model, and replays it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pytest_torchlens.baseline.policy import Policy
from pytest_torchlens.measure import FORMULAS
from pytest_torchlens.measure.flops import FlopCounts
from pytest_torchlens.measure.flops import flops_of
from pytest_torchlens.measure.memory import ByteCounts
from pytest_torchlens.measure.memory import needed_and_moved
from pytest_torchlens.records import Outcome
from pytest_torchlens.replay import NotReplayableError
from pytest_torchlens.replay import Player
from pytest_torchlens.replay.calls import Listeners
from pytest_torchlens.replay.calls import replay_calls
from pytest_torchlens.run import RunOptions
from pytest_torchlens.run import run_case
from pytest_torchlens.run.activation_statistics import ValueStatistics
from pytest_torchlens.run.activation_statistics import activation_statistics
from pytest_torchlens.run.job import MOST_RUNS
from pytest_torchlens.run.job import RUNS
from pytest_torchlens.validate import validate
from pytest_torchlens.zoo import Inputs
from tests.models import Function
from tests.models import SmallConvNet
from tests.run.test_run_case import case

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5)

    def forward(self, x):
        return self.lstm(x)[0] @ torch.ones(5, 3)


def encoder():
    layer = nn.TransformerEncoderLayer(4, 2, 8)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


MODELS = {
    "linear": (lambda: nn.Linear(4, 3), X),
    "convolution": (SmallConvNet, torch.ones(2, 3, 8, 8)),
    "recurrent": (Recurrent, X),
    "encoder": (encoder, X),
    "views": (lambda: Function(writes_through_a_view), X),
}


def writes_through_a_view(x):
    y = x * 2
    y[0].zero_()
    largest, places = y.max(dim=1)
    return y.cos() + largest[:, None], places


def former_way(recording):
    """Count over a whole replay under one counter."""
    counts, before = [], 0
    with FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
        for _ in replay_calls(recording):
            now = counter.get_total_flops()
            counts.append(now - before)
            before = now
    return tuple(counts)


@pytest.mark.parametrize("grad", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", ["linear", "convolution", "recurrent", "encoder"])
def test_a_listener_counts_what_a_replay_of_its_own_counts(name, grad):
    build, x = MODELS[name]
    model = build().eval()
    with grad():
        validation = validate(model, (x,), listen=lambda _: Listeners(FlopCounts()))
        counts = validation.listener.of(FlopCounts).by_call
        assert validation
        assert sum(counts)
        assert counts == former_way(validation.history.recording) == flops_of(validation.history.recording)


@pytest.mark.parametrize("name", MODELS)
def test_listeners_find_what_passes_of_their_own_find(name):
    build, x = MODELS[name]
    torch.manual_seed(0)
    model = build().eval()
    validation = validate(
        model, (x,), seed=0, listen=lambda history: Listeners(ByteCounts(history.recording), ValueStatistics())
    )
    history, heard = validation.history, validation.listener
    assert heard.of(ByteCounts).needed_and_moved == needed_and_moved(history.recording)
    assert heard.of(ValueStatistics).of(history) == activation_statistics(model, Inputs((x,), {}), 0)


@pytest.mark.parametrize("parts", [("replay",), ("observer", "replay", "perturbation")])
def test_no_mode_is_entered_where_no_second_look_would_tell_it_apart(parts):
    validation = validate(nn.Linear(4, 3), (X,), parts=parts, listen=lambda _: Listeners(FlopCounts()))
    assert validation
    assert validation.listener.of(FlopCounts) is None


class Singular(nn.Module):
    """Its kernel computes singular values in another way under any dispatch mode."""

    def forward(self, x):
        return torch.linalg.svdvals(x @ x.T)


def test_a_function_that_computes_otherwise_under_a_mode_does_not_fail_because_of_it():
    torch.manual_seed(0)
    x = torch.rand(12, 9, requires_grad=True)
    with torch.no_grad():
        validation = validate(Singular(), (x,), listen=lambda _: Listeners(FlopCounts()))
    assert validation


def test_a_formula_that_fits_no_call_is_not_the_failure_of_the_call(monkeypatch):
    def unfit(*_, **__):
        raise ValueError("no such shape")

    monkeypatch.setitem(FORMULAS, torch.ops.aten.addmm, unfit)
    validation = validate(nn.Linear(4, 3), (X,), listen=lambda _: Listeners(FlopCounts()))
    assert validation
    assert validation.listener.of(FlopCounts) is None
    with pytest.raises(NotReplayableError, match=r"no formula fits call 0 \(linear\): no such shape"):
        flops_of(validation.history.recording)


@pytest.fixture
def counted(monkeypatch):
    """Return a function that returns how often a forward pass and a replay began."""
    begun: list[str] = []
    forward, enter = nn.Linear.forward, Player.__enter__
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: (begun.append("forwards"), forward(self, x))[1])
    monkeypatch.setattr(Player, "__enter__", lambda self: (begun.append("replays"), enter(self))[1])
    return lambda: Counter(begun)


TIMED = 1 + MOST_RUNS
RECORDED = OBSERVED = 1
LOOKS_FOR_DETOURS = 1
"""A small model is recorded once more, with slightly other inputs."""


def run(tmp_path: Path, *, report: bool = False, baseline: bool = False):
    folders = {name: str(tmp_path / name) for name in ("folder", "pending", "activations")}
    return run_case(
        case(lambda: nn.Linear(4, 3)),
        RunOptions(
            validate=True,
            folder=tmp_path / "report" if report else None,
            baseline=Policy(**folders, root=str(tmp_path)) if baseline else None,
        ),
    ).report


@pytest.fixture
def _all_timed_runs(monkeypatch):
    monkeypatch.setattr("pytest_torchlens.run.job.BUDGET", 1e9)


@pytest.mark.usefixtures("_all_timed_runs")
@pytest.mark.parametrize("baseline", [False, True])
def test_a_validation_replays_once(counted, tmp_path: Path, baseline):
    result = run(tmp_path, baseline=baseline)
    assert (result.outcome, result.notes) == (Outcome.PASSED, ())
    assert counted() == {"forwards": TIMED + RECORDED + OBSERVED + LOOKS_FOR_DETOURS, "replays": 1}
    assert result.flops == (48 if baseline else None)


MEASURED = 10 + 23 * RUNS
"""What `measure_forward_pass` takes at most."""


@pytest.mark.usefixtures("_all_timed_runs")
def test_a_report_takes_no_replay_more(counted, tmp_path: Path):
    result = run(tmp_path, report=True, baseline=True)
    assert (result.outcome, result.notes) == (Outcome.PASSED, ())
    assert result.measurements.flops == result.flops == 48
    assert counted()["replays"] == 1
    assert counted()["forwards"] <= TIMED + RECORDED + OBSERVED + LOOKS_FOR_DETOURS + MEASURED
