"""Limits of a validation on both sides, and what only one of its looks can see."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchlens.capture import record
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import Failure
from pytest_torchlens.records import Status
from pytest_torchlens.replay import Player
from pytest_torchlens.validate import check_recording
from pytest_torchlens.validate import validate
from pytest_torchlens.validate.score import Score
from pytest_torchlens.validate.single import Bounds
from pytest_torchlens.validate.single import validate_once
from pytest_torchlens.validate.trial import Trial
from pytest_torchlens.validate.trial import is_close
from pytest_torchlens.validate.trial import same
from tests.models import Function
from tests.models import failures

X = torch.tensor([0.75, 1.25, 2.0])


@pytest.mark.parametrize(("differs_at", "steady"), [(1, False), (2, False), (3, False), (4, True)])
def test_a_call_repeats_itself_where_three_further_runs_give_the_same(
    differs_at: int, steady: bool, monkeypatch: pytest.MonkeyPatch
):
    def runs() -> Iterator[list[torch.Tensor]]:
        for number in range(1, 9):
            yield [X + (number == differs_at)]

    recording = record(Function(torch.sin), (X,))
    with Player(recording) as player:
        trial = Trial(player, recording.calls[0], [X], [X])
        outcomes = runs()
        monkeypatch.setattr(Trial, "outcome", lambda self, changed: next(outcomes))
        assert trial.repeats_itself() is steady


def test_outcomes_of_the_same_bytes_differ_in_dtype_and_shape():
    assert same([X], [X.clone()])
    assert not same([X], [X.view(1, 3)])
    assert not same([X], [X.view(torch.int32)])
    assert not same([X], [X, X])


def test_not_a_number_is_close_to_itself_alone():
    nan = torch.tensor([1.0, float("nan")])
    assert is_close(nan, nan.clone())
    assert not is_close(nan, torch.ones(2))


@pytest.mark.parametrize("count", [119, 120, 121, 130, 260])
def test_so_many_small_integers_are_told_apart_in_one_list(count: int):
    model = Function(lambda x: torch.cat([x + number for number in range(count)]))
    part = validate(model, (torch.ones(2, dtype=torch.int8),), parts=["perturbation"]).verdict.part("perturbation")
    assert (part.status, part.checked, part.exempt) == (Status.PASSED, 2 * count, {})


def test_zero_is_a_value_that_an_edge_may_hang_on():
    part = validate(Function(torch.logical_not), (X,), parts=["perturbation"]).verdict.part("perturbation")
    assert (part.status, part.exempt) == (Status.PASSED, {"comparison": 1})


@pytest.mark.parametrize(("count", "stored"), [(9, 9), (10, 10), (11, 10)])
def test_ten_failures_are_stored_and_all_are_counted(count: int, stored: int):
    score = Score("replay", "activations")
    for number in range(count):
        score.fail(Failure(message=str(number)))
    verdict = score.verdict()
    assert (len(verdict.failures), verdict.num_failures) == (stored, count)
    assert [failure.message for failure in verdict.failures] == [str(number) for number in range(stored)]


def test_an_operation_that_is_its_own_parent_is_found():
    recording = record(Function(lambda x: (x + 1) * 2), (X,), keep="all")
    history = ModelHistory(recording)
    node = next(node for node in history.nodes if node.layer_label == "mul_1_2")
    node.parents.append((node, "1", True))
    node.children.append(node)
    (part,) = (part for part in check_recording(recording, history, ["invariants"]) if part.name == "invariants")
    assert ("mul_1_2", "its parent mul_1_2 comes after it") in [(one.operation, one.message) for one in part.failures]


def test_a_generator_of_the_models_own_is_put_back_by_a_replay():
    generator = torch.Generator().manual_seed(3)
    recording = record(Function(lambda x: x + torch.rand(3, generator=generator)), (X,))
    torch.rand(1, generator=generator)  # the replay would leave it where the recorded pass left it
    before = generator.get_state()
    with Player(recording) as player:
        for number, call in enumerate(recording.calls):
            player.store(number, call, player.play(number, call, player.arguments(call))[0])
        assert not torch.equal(generator.get_state(), before)
    assert torch.equal(generator.get_state(), before)


def past_the_recorder(x: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        y = torch.cos(x)
    return y * 2


def test_what_was_missed_explains_the_tensors_that_it_made():
    assert failures(validate(Function(past_the_recorder), (X,)).verdict) == [
        (
            "completeness",
            "aten::cos",
            "aten::cos ran before the first operation, in the model's own forward, but no recorded operation did it",
        )
    ]


STORED: list[torch.Tensor] = []


@torch.library.custom_op("lens_thresholds::store", mutates_args=())
def store(x: torch.Tensor) -> torch.Tensor:
    STORED.append(x * 2)
    return x.clone()


def reads_what_a_missed_operator_stored(x: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        store(x)
    return x + STORED.pop()


def test_what_was_missed_explains_the_tensors_that_it_stored():
    part = validate(Function(reads_what_a_missed_operator_stored), (X,)).verdict.part("completeness")
    assert [failure.operation for failure in part.failures] == ["lens_thresholds::store"]


@pytest.mark.parametrize(("until", "status"), [(0.0, Status.NOT_RUN), (math.inf, Status.PASSED)])
def test_a_replay_ends_where_the_time_is_up(until: float, status: Status):
    history = ModelHistory(record(Function(torch.sin), (X,), keep="all"))
    found = validate_once(history, Bounds(until=until, nbytes=1000))
    assert [found.verdict.part(name).status for name in ("replay", "perturbation")] == [status] * 2
    assert found.cut_short is (status is Status.NOT_RUN)


def test_a_fact_that_differs_in_kind_alone_fails():
    recording = record(Function(torch.sin), (X,), keep="all")
    recording.calls[0].outputs[0].device = "cpu"
    part = validate_once(ModelHistory(recording), Bounds(until=math.inf, nbytes=1000)).verdict.part("replay")
    assert [failure.message for failure in part.failures] == ["the replay gave device cpu where cpu was recorded"]


EXCUSES = {
    "two elements, weight zero": (
        lambda x: F.instance_norm(x[None, None, :2], weight=torch.zeros(1)) + x.sum(),
        {"multiplied by zero": 1},
    ),
    "one element": (lambda x: F.layer_norm(x[:, None], (1,)) + x[:, None], {"single element": 1}),
    "factor zero": (lambda x: torch.add(torch.ones(3), x, alpha=0), {"multiplied by zero": 1}),
    "whole numbers": (lambda x: x.long() // 10**9 + x, {"integer quantised": 1}),
    "clamped": (lambda x: x.clamp(max=-1e6) + x, {"saturated": 1}),
    "compared": (lambda x: (x < 1e9) * x, {"comparison": 1}),
}


@pytest.mark.parametrize("what", EXCUSES)
def test_an_edge_without_effect_is_excused_by_its_own_reason_and_no_other(what: str):
    forward, exempt = EXCUSES[what]
    part = validate(Function(forward), (X,), parts=["perturbation"]).verdict.part("perturbation")
    assert (part.status, part.exempt) == (Status.PASSED, exempt)


class Pooled(nn.Module):
    """Fractional pooling to some windows; with two, their places are fixed, whatever is drawn."""

    def __init__(self, size: int, samples: torch.Tensor) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("samples", samples)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.fractional_max_pool2d(x, 2, output_size=self.size, _random_samples=self.samples)


@pytest.mark.parametrize(("size", "exempt"), [(2, {"shape only": 1}), (3, {"hidden by another argument": 1})])
def test_samples_of_fractional_pooling_move_the_windows_between_the_outer_two(size: int, exempt: dict[str, int]):
    model = Pooled(size, torch.full((1, 1, 2), 0.5))
    part = validate(model, (torch.ones(1, 1, 9, 9),), parts=["perturbation"]).verdict.part("perturbation")
    assert (part.status, part.exempt) == (Status.PASSED, exempt)
