"""Parts of tensors: what an index or names of dimensions say, and that another pass's activation is cut by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pytest_torchlens as tl
from pytest_torchlens import Part
from pytest_torchlens import edit
from tests.models import Function

torch.manual_seed(0)
NET = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
FOUR = Function(lambda x: x.sin().cos())
X = torch.linspace(-1, 1, 2 * 3 * 4 * 5).reshape(2, 3, 4, 5)


@pytest.fixture
def history() -> tl.ModelHistory:
    return tl.log_forward_pass(NET, torch.linspace(-1, 1, 16).reshape(4, 4))


@pytest.fixture
def other() -> tl.ModelHistory:
    return tl.log_forward_pass(NET, torch.linspace(2, -1, 16).reshape(4, 4))


def edited(history: tl.ModelHistory, key: Any, change: Any = 7.0) -> torch.Tensor:
    return history.edit({key: change})["sin_1" if "sin_1" in history else "linear_1"].tensor_contents


# -- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "index"),
    [
        ({"position": [0, 1], "feature": [2, 3]}, np.ix_(range(2), range(3), [0, 1], [2, 3])),
        ({"position": [3, 0, 1], "feature": torch.tensor([4, 2])}, np.ix_(range(2), range(3), [3, 0, 1], [4, 2])),
        ({"example": [1], "feature": [0, 4]}, np.ix_([1], range(3), range(4), [0, 4])),
        ({"channel": [True, False, True], "position": range(2)}, np.ix_(range(2), [0, 2], [0, 1], range(5))),
        ({"channel": np.array([2, 0]), "head": (1, 5)}, np.ix_(range(2), [2, 0], range(4), [1])),
        ({"example": 1, "position": [0, 2]}, (1, slice(None), [0, 2])),
        ({"channel": -1, "feature": slice(1, None, 2)}, (slice(None), -1, slice(None), slice(1, None, 2))),
    ],
)
def test_names_say_all_combinations(names: dict[str, Any], index: Any):
    history = tl.log_forward_pass(FOUR, X)
    expected = X.sin().numpy().copy()
    expected[index] = 7
    assert np.array_equal(edited(history, Part("sin_1", **names)).numpy(), expected)
    assert np.array_equal(history.edit({"sin_1": 7.0}, at=names)["sin_1"].tensor_contents.numpy(), expected)


def test_a_function_gets_the_dimensions_of_a_part_in_order():
    history, seen = tl.log_forward_pass(FOUR, X), []
    part = Part("sin_1", example=1, position=[0, 2])
    edited(history, part, lambda tensor: (seen.append(tensor), tensor)[1])
    assert torch.equal(seen[0], X.sin()[1][:, [0, 2]])
    assert str(history.edit({part: 0.0}).edits[0]) == "sin_1_1 [1, 0:3, [0, 2], 0:5] ← 0.0"


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (Part("linear_1", mask=[[1, 0, 0, 0, 0, 0]] * 4), TypeError, "expected a mask of booleans.* got torch.int64"),
        (Part("linear_1", mask=torch.ones(4, 6).byte()), TypeError, "expected a mask of booleans.* got torch.uint8"),
        (Part("linear_1")[torch.ones(4).byte()], TypeError, r"index of uint8 .* \.bool\(\) of it for a mask"),
        (Part("linear_1")[:, np.ones(6, dtype=np.uint8)], TypeError, "index of uint8"),
        (Part("linear_1")[True], TypeError, "expected a number, a slice, numbers or a mask in the index, got True"),
        (Part("linear_1", channel=True), TypeError, "channel: expected a number, a slice or several numbers, got True"),
        (Part("linear_1", channel="1"), TypeError, "channel: expected a number"),
        (Part("linear_1", channel=[True]), ValueError, r"channel: expected numbers, or 6 booleans, got .* \[1\]"),
        (Part("linear_1", channel=[[1, 2]]), ValueError, r"channel: expected numbers, .* of shape \[1, 2\]"),
        (Part("linear_1", head=(0, 0)), ValueError, r"head: expected \(number, of\), such as \(0, 8\), got \(0, 0\)"),
        (Part("linear_1", head=(0, 1, 2)), ValueError, r"head: expected \(number, of\)"),
        (Part("linear_1", head=(0, 4)), ValueError, "6 features are not 4 heads of equal size"),
        (Part("linear_1")[[0, 0]], ValueError, r"linear_1_1 \[\[0, 0\]\] names an element twice"),
        (Part("linear_1", example=[1, 1], feature=[0, 2]), ValueError, "names an element twice"),
    ],
)
def test_parts_that_are_not_clear_are_refused(history: tl.ModelHistory, key: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        history.edit({key: torch.rand(2, 6)})


def test_a_part_has_one_index():
    for part in (Part("x", channel=3), Part("x")[0]):
        with pytest.raises(ValueError, match=r"names a part already"):
            part[1]


class Growing(nn.Module):
    def forward(self, x):
        count = 0
        while count < 3 and x.sum() < 30:
            x, count = torch.relu(torch.cat([x, x]) + 1), count + 1
        return x


def test_a_part_of_a_pass_with_another_shape_is_named():
    model = Growing()
    history = tl.log_forward_pass(model, torch.full((4, 4), 0.5))
    assert history["relu_1"].layer_passes_total == 1
    key = Part("relu_1", mask=torch.ones(8, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"\[a mask of 32\].* does not fit shape"):
        history.edit({key: 0.0}, live=True)


# -- activations of another pass -----------------------------------------------------------------------------------


REVERSED = Part("linear_1")[[3, 2, 1, 0]]


def test_the_part_of_an_activation_is_that_of_its_own_place(history: tl.ModelHistory, other: tl.ModelHistory):
    theirs = other["linear_1"].tensor_contents
    assert torch.equal(edited(history, REVERSED, other["linear_1"]), theirs)
    assert torch.equal(history.edit(edit.patch_from(other, REVERSED))["linear_1"].tensor_contents, theirs)
    through = edit.path_patch(history, other, "input_1", REVERSED)
    assert torch.equal(history.edit(through)["linear_1"].tensor_contents, theirs)
    sweep = history.sweep([REVERSED, Part("linear_1")[:]], clean=other, metric=lambda output: output[:, 0])
    assert torch.equal(*sweep.measured["metric"])
    assert torch.equal(edited(history, REVERSED, theirs), theirs.flip(0))  # a tensor of the part's shape is the part
    assert torch.equal(edited(history, Part("linear_1")[1:3], theirs)[1:3], theirs[1:3])


def test_a_transformed_activation_is_not_patched_in(history: tl.ModelHistory):
    inputs = torch.rand(4, 4)
    for options in ({"transform": lambda tensor: tensor * 100}, {"dtype": torch.float64}):
        other = tl.log_forward_pass(NET, inputs, save_options=tl.SaveOptions(**options))
        with pytest.raises(ValueError, match=r"linear_1_1 is not the activation: .* patch_from\(other, key\)"):
            history.edit({"linear_1": other["linear_1"]})
        patched = history.edit(edit.patch_from(other, "linear_1"))
        assert torch.equal(patched["linear_1"].tensor_contents, NET[0](inputs))


class Repeating(nn.Module):
    def __init__(self, times: int) -> None:
        super().__init__()
        self.step, self.times = nn.Linear(4, 4), times

    def forward(self, x):
        for _ in range(self.times):
            x = self.step(x)
        return x


def test_another_number_of_passes_or_shape_is_refused(history: tl.ModelHistory):
    once, often = Repeating(1), Repeating(3)
    one, several = tl.log_forward_pass(once, torch.rand(4, 4)), tl.log_forward_pass(often, torch.rand(4, 4))
    small = tl.log_forward_pass(NET, torch.rand(1, 4))
    calls = [
        (lambda: one.sweep(["linear_1"], clean=several, metric=torch.sum), "1 pass, and 3 in the other pass"),
        (lambda: edit.attribution_patch(one, several, ["linear_1"], torch.sum), "1 pass, and 3 in the other pass"),
        (lambda: history.sweep(["linear_1"], clean=small, metric=torch.sum), r"\[4, 6\], and \[1, 6\] in the other"),
        (lambda: edit.attribution_patch(history, small, ["linear_1"], torch.sum), r"\[4, 6\], and \[1, 6\] in the"),
    ]
    for call, message in calls:
        with pytest.raises(ValueError, match=message):
            call()
