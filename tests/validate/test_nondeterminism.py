"""Operations that do not repeat themselves: found by repeating, compared by a tolerance, counted separately."""

from __future__ import annotations

import itertools
import traceback

import pytest
import torch
from torch import nn

from pytest_torchlens.capture import record
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import Status
from pytest_torchlens.records import Verdict
from pytest_torchlens.records import from_json
from pytest_torchlens.records import to_json
from pytest_torchlens.validate import check_recording
from pytest_torchlens.validate import validate
from tests.models import Function
from tests.models import failures

X = torch.tensor([0.75, 1.25, 2.0])


def unsteady(name, step, in_place=False):
    """Return an operator that doubles, a little more each time that it is called."""
    counter = itertools.count()
    if in_place:

        def double(x):
            x.mul_(2 * (1 + step * next(counter)))

        write = torch.library.custom_op(
            f"lens_unsteady::{name}",
            double,
            mutates_args=["x"],
            schema="(Tensor(a!) x) -> ()",
        )
        return lambda x: write(x) or x
    return torch.library.custom_op(
        f"lens_unsteady::{name}",
        lambda x: x * (2 * (1 + step * next(counter))),
        mutates_args=(),
        schema="(Tensor x) -> Tensor",
    )


class Unsteady(nn.Module):
    def __init__(self, double):
        super().__init__()
        self.double = double

    def forward(self, x):
        y = self.double(x + 1)
        return (y.view(3, 1) * 3).relu() - self.double(y)


@pytest.mark.parametrize("in_place", [False, True])
def test_an_operation_within_tolerance_is_counted_apart(in_place):
    verdict = validate(Unsteady(unsteady(f"little_{in_place}", 2e-7, in_place)), (X,)).verdict
    assert failures(verdict) == []
    assert verdict.status is Status.PASSED_WITH_TOLERANCE
    assert verdict.words == "passed-with-tolerance (2 operations)"
    assert verdict.part("replay").tolerated == 2
    assert verdict


def test_an_operation_beyond_tolerance_fails_with_both_values():
    verdict = validate(Unsteady(unsteady("much", 1e-2)), (X,)).verdict
    first = verdict.part("replay").failures[0]
    assert first.operation == "much_1_2"
    assert first.message == "the replayed values of float32[3] differ from the recorded ones"
    assert first.cause == "the kernel is not deterministic, and differs by more than the tolerance of torch.testing"
    assert first.values.startswith("at [0]: recorded [")
    assert first.values.endswith("3 of 3 elements differ")
    assert verdict.words == f"failed (much_1_2: {first.message})"


def test_an_operation_that_ignores_its_parent_is_found_though_it_does_not_repeat_itself():
    counter = itertools.count()
    ignore = torch.library.custom_op(
        "lens_unsteady::ignores",
        lambda x, y: x * (1 + 1e-7 * next(counter)),
        mutates_args=(),
        schema="(Tensor x, Tensor y) -> Tensor",
    )
    found = failures(validate(Function(lambda x: ignore(x, x + 1)), (X,)).verdict)
    assert found == [
        ("perturbation", "ignores_1_2", "other values for argument 1 of ignores leave its result unchanged")
    ]


@pytest.mark.parametrize(("odd_call", "status"), [(0, Status.UNPROVEN), (1, Status.UNPROVEN), (None, Status.PASSED)])
def test_an_operation_that_differs_in_one_replay_and_not_in_the_next_is_unproven(odd_call, status):
    counter = itertools.count()
    name = f"odd_{odd_call}".lower()
    double = torch.library.custom_op(
        f"lens_unsteady::{name}",
        lambda x: x * (3 if next(counter) == odd_call else 2),
        mutates_args=(),
        schema="(Tensor x) -> Tensor",
    )
    part = validate(Function(double), (X,), parts=["replay"]).verdict.part("replay")
    reason = f"{name} gave other values than recorded in one replay, and the recorded ones in another"
    assert (part.status, part.reason) == (status, "" if status is Status.PASSED else reason)


def recorded(forward, x=X):
    recording = record(Function(forward), (x,), keep="all")
    return recording, ModelHistory(recording)


def replay_failure(recording, history):
    return check_recording(recording, history, ["replay"])[0].failures[0]


def test_values_are_shown_around_the_first_that_differs():
    recording, history = recorded(lambda x: (x * 2).reshape(1, 3))
    recording.calls[0].args = (recording.calls[0].args[0], torch.tensor([2.0, 2.0, 3.0]))
    failure = replay_failure(recording, history)
    assert failure.values == "at [2]: recorded 2.5 [4.0], replayed 2.5 [6.0]; 1 of 3 elements differ"


def test_the_write_that_is_missing_from_an_edge_is_named():
    recording, history = recorded(lambda x: (x * 2).add_(1).pow(2))
    recording.calls[2].args = (recording.calls[0].outputs[0], 2)
    assert replay_failure(recording, history).cause == "it was overwritten in place by add_1_2"


TABLE = torch.ones(3)


def test_an_argument_of_unknown_origin_that_changed_is_named():
    recording, history = recorded(lambda x: x * 2 + TABLE)
    recording.sources[1].live.add_(1)
    try:
        cause = replay_failure(recording, history).cause
    finally:
        TABLE.fill_(1)
    assert cause == "argument 1 is a tensor of unknown origin, and holds other values now than when it was recorded"


def test_verdicts_survive_json():
    verdict = validate(Unsteady(unsteady("kept", 2e-7)), (X,)).verdict
    assert from_json(to_json(verdict), Verdict) == verdict


def test_a_verdict_that_does_not_apply_says_why():
    counter = itertools.count()
    verdict = validate(Function(lambda x: x + next(counter)), (X,), parts=["observer"]).verdict
    assert verdict.words == (
        "unproven (observer: two plain runs in a row differ, for what the model changes could not be put back: "
        "attribute 'function.counter' (count))"
    )


def scale_by_caller(x):
    """Scale by another number while the dispatcher is watched, as kernels do that take another path then."""
    names = {frame.name for frame in traceback.extract_stack()}
    return x * (2.5 if "__torch_dispatch__" in names else 2.25)


@pytest.mark.parametrize("place", [0, 1], ids=["returned", "dropped"])  # the observer sees only what is returned
def test_a_kernel_that_differs_under_the_watch_passes(place):
    op = torch.library.custom_op(
        f"lens_watched::scaled_{place}", scale_by_caller, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    verdict = validate(Function(lambda x: (op(x) + 1, x * 2)[place]), (X,)).verdict
    assert verdict.status is Status.PASSED, verdict.words
