"""What a user's mistake is told: what was given, why it does not fit, and what to do."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import pytest_torchlens as tl
from pytest_torchlens import edit

X = torch.linspace(-1.0, 2.0, 8).reshape(2, 4)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).eval()


@pytest.fixture(scope="module")
def history(model):
    return tl.log_forward_pass(model, X)


TAKE_A_HISTORY = {
    "patch_from": lambda history, model: edit.patch_from(model, "relu_1"),
    "path_patch": lambda history, model: edit.path_patch(history, model, "linear_1", "linear_2"),
    "attribution_patch": lambda history, model: edit.attribution_patch(history, model, ["relu_1"], torch.sum),
    "logit_lens": lambda history, model: edit.logit_lens(model, ["relu_1"], "linear_2"),
}


@pytest.mark.parametrize("call", TAKE_A_HISTORY.values(), ids=TAKE_A_HISTORY)
def test_a_model_in_the_place_of_a_history(history, model, call):
    with pytest.raises(
        TypeError, match=r"expected a history, got Sequential: log_forward_pass\(model, x\) records one"
    ):
        call(history, model)


CHANGES = {
    "a huge number": (10**400, TypeError, "does not fit .*: its values go from"),
    "an axis twice": (edit.mean_ablate((0, -2)), ValueError, "names a dimension twice"),
    "no examples": (edit.resample(0, of=torch.rand(0, 4)), ValueError, "there are no examples in shape"),
    "complex steering": (edit.steer(torch.ones(4) * 1j), TypeError, "complex numbers do not fit an activation"),
    "a sparse tensor": (
        torch.rand(X.shape).to_sparse(),
        ValueError,
        r"got a sparse_coo one; .to_dense\(\) makes it fit",
    ),
    "a function to sparse": (lambda tensor: tensor.to_sparse(), ValueError, "expected a dense tensor"),
    "complex means": (edit.mean_ablate(0, of=X * 1j), TypeError, "complex numbers do not fit an activation"),
}


@pytest.mark.parametrize(("change", "error", "text"), CHANGES.values(), ids=CHANGES)
def test_changes_that_do_not_fit(history, change, error, text):
    with pytest.raises(error, match=text):
        history.edit({"relu_1": change})


def test_a_dense_tensor_in_the_place_of_a_sparse_one():
    class Sparse(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x.to_sparse() * 2).to_dense()

    history = tl.log_forward_pass(Sparse(), torch.eye(3))
    with pytest.raises(ValueError, match="in the place of a sparse or nested one, got a dense one"):
        history.edit({"mul_1": torch.eye(3)})
    assert history.edit({"mul_1": torch.eye(3).to_sparse()})["output_1"].tensor_contents.equal(torch.eye(3))


def test_an_empty_part_names_nothing(history):
    with pytest.raises(ValueError, match="at names no part: leave it out"):
        history.edit({"relu_1": 0.0}, at={})


def test_a_tensor_in_the_place_of_batches(model, tmp_path):
    with pytest.raises(TypeError, match=r"loader: expected batches, got a tensor: give \[tensor\], or tensor.split"):
        tl.extract(model, X, ["1"], tmp_path / "acts")


def test_a_scale_is_a_number():
    with pytest.raises(TypeError, match="steer: scale: expected a number, got 'a'"):
        edit.steer(torch.ones(4), scale="a")


def test_means_and_directions_of_whole_numbers(history):
    whole = tl.log_forward_pass(nn.Identity(), torch.arange(4))
    for change in (edit.mean_ablate(0), edit.project_off(torch.ones(4))):
        with pytest.raises(
            TypeError, match=r"expected an activation of floating-point numbers, got one of torch\.int64"
        ):
            whole.edit({"input_1": change})


def test_a_metric_of_no_output_has_no_attribution(history):
    with pytest.raises(tl.NotReplayableError, match="the metric depends on none of the keys"):
        edit.attribution_patch(
            history, history, ["relu_1"], metric=lambda output: torch.ones((), requires_grad=True) * 2
        )


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have no notes")
def test_a_metric_that_raises_is_named_with_its_edit(history):
    with pytest.raises(ZeroDivisionError) as caught:
        history.sweep({"none": {"linear_2": 0.0}}, metric={"odd": lambda output: 1 / int(output.any())})
    notes = "\n".join(caught.value.__notes__)
    assert "the metric 'odd' of a sweep raised this" in notes
    assert "sweep: edit 'none'" in notes
    with pytest.raises(TypeError, match=r"assert_effect: metric: .*ZeroDivisionError"):
        tl.assert_effect(history, {"relu_1": 0.0}, at_least=1, metric=lambda output: 1 / 0)


def test_a_complex_direction_is_taken_out():
    torch.manual_seed(0)
    model, direction = nn.Linear(4, 4, dtype=torch.complex64), torch.tensor([1, 1j, 0, 0])
    history = tl.log_forward_pass(model, torch.randn(3, 4, dtype=torch.complex64))
    left = history.edit({"linear_1": edit.project_off(direction)})["linear_1"].tensor_contents
    assert (left @ direction.conj()).abs().max() < 1e-6
    assert (history["linear_1"].tensor_contents @ direction.conj()).abs().max() > 0.1
