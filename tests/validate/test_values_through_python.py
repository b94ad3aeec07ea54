"""Numbers that go to Python and come back, runs that differ once, and values that are put in place of others."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_torchlens.capture import record
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import PartVerdict
from pytest_torchlens.records import Status
from pytest_torchlens.validate import validate
from pytest_torchlens.validate.second_recording import nudged
from pytest_torchlens.validate.validation import verdict_on
from tests.models import Function
from tests.validate.fooling import KEPT

X = torch.tensor([0.75, 1.25, 2.5])


def unproven(forward) -> list[tuple[str, str]]:
    return [(one.operation, one.message) for one in validate(Function(forward), (X,)).verdict.unproven]


def at_once(x):
    return x * x.sum().item()


def later(x):
    number = x.sum().item()
    return (x + 1) * number


def before(x):
    y = x * 4.5
    assert x.sum().item() == 4.5
    return y


def constant_at_once(x):
    return x + torch.tensor(x.tolist())


def constant_later(x):
    numbers = x.tolist()
    y = x + 1
    return y + torch.tensor(numbers)


def constant_before(x):
    y = torch.tensor([1.0, 2.0, 3.0])
    x.tolist()
    return x + y


CONSTANT_OF_OLD = torch.ones(3)


def constant_from_before_the_pass(x):
    x.tolist()
    return x + CONSTANT_OF_OLD.view(3)


NUMBER = "it takes the number 4.5, which item handed to Python: where it comes from is not in the graph"
CONSTANT = (
    "it uses a constant made after tolist handed an input's values to Python: "
    "what the constant depends on is not in the graph"
)


@pytest.mark.parametrize(
    ("forward", "expected"),
    [
        (at_once, [("mul_1_2", NUMBER)]),
        (later, [("mul_1_3", NUMBER)]),
        (before, []),
        (constant_at_once, [("tensor_1_1", CONSTANT)]),
        (constant_later, [("tensor_1_2", CONSTANT)]),
        (constant_before, []),
        (constant_from_before_the_pass, []),
    ],
)
def test_what_came_from_python_after_it_had_gone_there(forward, expected: list[tuple[str, str]]):
    assert unproven(forward) == expected


def unsteady(name: str, step: float):
    """Return an operator that doubles, a little more each time that it is called."""
    counter = itertools.count()
    return torch.library.custom_op(
        f"lens_through::{name}",
        lambda x: x * (2 * (1 + step * next(counter))),
        mutates_args=(),
        schema="(Tensor x) -> Tensor",
    )


def test_what_follows_a_value_within_tolerance_is_replayed_from_the_recorded_one():
    double = unsteady("little", 2e-7)
    part = validate(Function(lambda x: double(x) * 3), (X,), parts=["replay"]).verdict.part("replay")
    assert (part.tolerated, part.num_failures) == (1, 0)


def test_all_results_of_an_operation_must_be_within_tolerance():
    counter = itertools.count()

    def halves(x: torch.Tensor) -> list[torch.Tensor]:
        number = next(counter)
        return [x * (1 + 2e-7 * number), x * (1 + 1e-2 * number)]

    both = torch.library.custom_op("lens_through::halves", halves, mutates_args=(), schema="(Tensor x) -> Tensor[]")
    part = validate(Function(lambda x: sum(both(x))), (X,), parts=["replay"]).verdict.part("replay")
    assert part.status is Status.FAILED
    assert part.failures[0].operation.startswith("halves")


def failed_in(*bad: int) -> tuple[Status, set[str]]:
    """Return the verdict on a model that computes something else in some of its runs, and what its failures say."""
    runs = itertools.count()

    def forward(x):
        return x * (1.5 if next(runs) in bad else 3.5)

    verdict = validate(Function(forward), (X,)).verdict
    return verdict.status, {(one.message, one.cause) for part in verdict.parts for one in part.failures}


ONCE = "in the first of three runs only"


def test_a_failure_of_the_first_run_alone_stands_and_says_so():
    message = f"output differs between the recorded and the plain run, {ONCE}"
    assert failed_in(0) == (Status.FAILED, {(message, "")})
    assert failed_in() == (Status.PASSED, set())


class Doubling(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {})) * 2


def test_a_failure_of_the_first_run_alone_keeps_its_cause():
    runs = itertools.count()

    def forward(x):
        with Doubling() if next(runs) < 3 else contextlib.nullcontext():
            return x.sin()

    failure = validate(Function(forward), (X,)).verdict.part("replay").failures[0]
    assert failure.message.endswith(ONCE)
    assert failure.cause == "it ran under the mode Doubling, and gives something else without it"


def failing_in_turn():
    """Return a function whose first run differs from the others, and that from the fourth on writes past PyTorch."""
    runs = itertools.count()

    def forward(x: torch.Tensor) -> torch.Tensor:
        run = next(runs)
        y = x * (1.5 if run == 0 else 3.5)
        if run >= 3:
            ctypes.memset(y.data_ptr(), 0, 4)
        return y + 1

    return forward


def test_what_failed_in_either_look_has_failed():
    verdict = validate(Function(failing_in_turn()), (X,)).verdict
    failed = {part.name for part in verdict.parts if part.status is Status.FAILED}
    assert failed == {"observer", "replay"}


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (Status.NOT_RUN, ["replay: the reason"]),
        (Status.NOT_APPLICABLE, ["replay: the reason"]),
        (Status.UNPROVEN, ["replay: the reason"]),
        (Status.PASSED, []),
        (Status.PASSED_WITH_TOLERANCE, []),
    ],
)
def test_a_part_that_was_not_judged_leaves_the_verdict_unproven(status: Status, said: list[str]):
    recording = record(Function(torch.sin), (X,))
    parts = [PartVerdict(name="replay", status=status, reason="the reason")]
    verdict = verdict_on(parts, 0.0, ModelHistory(recording))
    assert [one.message for one in verdict.unproven] == said
    assert (verdict.status is Status.UNPROVEN) is bool(said)


def spread(x):
    return x.float() * (x.float().std().item() * 1.1)


def wave(x):
    return x * (math.cos(x.real.max().item()) * 1.7)


def angle(x):
    return x.clamp(-1, 1) * (math.atan(x.max().item()) * 1.1)


def complex_of_numpy(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return x * np.complex64(x.numpy().sum() * 1.3)


@pytest.mark.parametrize(
    ("forward", "x"),
    [
        (spread, torch.tensor([1, 5, 9], dtype=torch.uint8)),
        (spread, torch.tensor([[9, 5], [-1, 9]])),
        (wave, torch.zeros(3)),
        (wave, torch.tensor([0.0, -torch.inf])),
        (wave, torch.ones(2, dtype=torch.complex64)),
        (complex_of_numpy, X),
        (angle, torch.full((3,), torch.inf)),
        (angle, torch.tensor([torch.inf, torch.nan])),
    ],
)
def test_numbers_are_followed_from_inputs_of_any_kind(forward, x: torch.Tensor):
    before = x.clone()
    verdict = validate(Function(forward), (x,)).verdict
    assert "with slightly other inputs" in verdict.words, verdict.words
    assert torch.equal(x.nan_to_num(), before.nan_to_num())


@pytest.mark.parametrize("values", [[0, 1, 2, 5], [5, 5, 3, 0], [2, 2, 7, 9, 9]])
def test_other_integers_stay_in_range_and_sorted(values: list[int]):
    x = torch.tensor(values)
    with nudged([x]) as differ:
        assert differ
        assert set(x.tolist()) < set(values)
        assert x.tolist() in (sorted(x.tolist()), sorted(x.tolist(), reverse=True))
    assert x.tolist() == values


@pytest.mark.parametrize("values", [[0, 1, 1], [7, 7], [True, False]])
def test_integers_that_may_be_truth_values_are_not_varied(values: list[int]):
    with nudged([torch.tensor(values)]) as differ:
        assert not differ


def test_integers_beside_inputs_with_fractions_keep_their_values():
    indices = torch.tensor([0, 2, 5])
    with nudged([indices, torch.ones(2), indices.clone()]) as differ:
        assert differ
        assert indices.tolist() == [0, 2, 5]


def test_a_model_that_takes_no_other_inputs_still_shows_what_it_keeps():
    KEPT.clear()

    def forward(x):
        if x[0] != 0.75:
            raise ValueError
        KEPT.append(x * 2)
        return x + KEPT[0]

    assert "a second run reads what the first one computed" in validate(Function(forward), (X,)).verdict.words


PUT_ASIDE: list[torch.Tensor] = []


class Items:
    """A sequence of what a tensor holds that forward has put aside."""

    def __len__(self):
        return 3

    def __getitem__(self, place):
        if place >= len(self):
            raise IndexError
        return (PUT_ASIDE[-1][place] * 2).item()


class Place:
    def __index__(self):
        return int((PUT_ASIDE[-1].sum() > 100).item())


ASKED = {
    "tensor": lambda x: x + torch.tensor(Items()),
    "tensor by name": lambda x: x + torch.tensor(data=Items()),
    "new_tensor": lambda x: x + x.new_tensor(Items()),
    "new": lambda x: x + x.new(Items()),
    "index": lambda x: x + x[Place()],
    "index in a tuple": lambda x: x + x[Place(), ...],
    "index in a slice": lambda x: x + x[Place() :].sum(),
    "narrow": lambda x: x + x.narrow(0, Place(), 1),
    "select": lambda x: x + x.select(0, Place()),
}


@pytest.mark.parametrize("use", ASKED.values(), ids=ASKED)
def test_an_object_that_reads_a_tensor_inside_a_call_has_no_edge_to_it(use):
    def forward(x):
        PUT_ASIDE.append(x.exp())
        return use(x)

    verdict = validate(Function(forward), (torch.rand(3),)).verdict
    PUT_ASIDE.clear()
    assert verdict.status is Status.UNPROVEN, verdict.words
    assert "it reads a recorded tensor that is not among its arguments" in verdict.words


class Held(Items):
    def __init__(self, tensor):
        self.tensor = tensor

    def __getitem__(self, place):
        if place >= len(self):
            raise IndexError
        return self.tensor[place].item()


def test_an_object_that_holds_the_tensor_it_reads_has_an_edge():
    found = validate(Function(lambda x: x + torch.tensor(Held(x * 2))), (torch.rand(3),))
    assert found.verdict.status is Status.PASSED, found.verdict.words
    assert "mul_1" in [label.rpartition("_")[0] for label in found.history["tensor_1"].parent_layers]
