"""The options for saving activations and their gradients."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from safetensors import safe_open

import pytest_torchlens as tl
from tests.models import Function
from tests.models import Overwriting
from tests.models import SmallConvNet


def trace(**options):
    torch.manual_seed(1)
    model = Overwriting()
    x = torch.rand(1, 1, 5, 5, requires_grad=True)
    return tl.log_forward_pass(model, x, save_options=tl.SaveOptions(**options))


PLAIN = {"conv2d_1", "relu_1", "flatten_1", "argmax_1", "output_1", "output_2", "input_1"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, lambda t: t, id="nothing"),
        pytest.param({"detach": True}, lambda t: t.detach(), id="detach"),
        pytest.param({"dtype": torch.float64}, lambda t: t.double() if t.is_floating_point() else t, id="dtype"),
        pytest.param({"transform": lambda t: t[:, :1] if t.dim() > 1 else t}, lambda t: t[:, :1] if t.dim() > 1 else t,
                     id="transform-to-a-view"),
        pytest.param({"transform": torch.neg, "dtype": torch.bfloat16, "detach": True},
                     lambda t: -t.detach().bfloat16() if t.is_floating_point() else -t, id="all"),
        pytest.param({"device": "meta"}, lambda t: t.to("meta"), id="device"),
    ],
)  # fmt: skip
def test_options(options, expected):
    plain, history = trace(), trace(**options)
    for key in PLAIN:
        got, wanted = history[key].tensor_contents, expected(plain[key].tensor_contents)
        assert got.requires_grad == wanted.requires_grad, key
        assert (got.dtype, got.shape, got.device) == (wanted.dtype, wanted.shape, wanted.device)
        assert got.is_meta or torch.equal(got, wanted), key


def test_metadata_are_those_of_the_model_whatever_is_saved():
    plain, history = trace(), trace(transform=lambda t: t.sum(), dtype=torch.float16)
    assert [op.fingerprint for op in history] == [op.fingerprint for op in plain]
    assert history.layer_list == plain.layer_list
    assert history["conv2d_1"].tensor_shape == (1, 2, 3, 3)


def test_the_transform_is_no_part_of_the_model():
    seen = []
    history = trace(transform=lambda t: seen.append(t.shape) or t * 2 + 1)
    assert history.layer_list == trace().layer_list
    assert len(seen) == 4


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        pytest.param(lambda t: t.reshape(7, 7), r"output of conv2d \(call 0, .*RuntimeError: shape", id="raises"),
        pytest.param(lambda t: t.tolist(), "the transform: expected a tensor as its result, got list", id="no-tensor"),
    ],
)
def test_a_transform_that_fails_is_named_with_the_operation(transform, message):
    with pytest.raises(tl.SavingError, match=message):
        trace(transform=transform)


# -- streaming ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 64 << 20], ids=["a-file-each", "one-file"])
def test_streaming_gives_the_same_tensors(tmp_path, monkeypatch, limit):
    monkeypatch.setattr("pytest_torchlens.capture.tensor_files._LIMIT", limit)
    plain, history = trace(), trace(stream_to=tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) == (4 if limit == 1 else 1)
    for key in PLAIN:
        assert torch.equal(history[key].tensor_contents, plain[key].tensor_contents), key
    assert history.num_tensors_saved == len(history)


def test_streamed_activations_are_let_go(tmp_path):
    refs = []

    def step(x):
        y = x * 2
        refs.append(weakref.ref(y))
        return y + 1

    history = tl.log_forward_pass(
        Function(step), torch.rand(3), save_options=tl.SaveOptions(stream_to=tmp_path / "new" / "folder")
    )
    gc.collect()
    assert refs[0]() is None
    assert history["mul_1"].tensor_contents.shape == (3,)


def test_streaming_takes_dtypes_and_layouts_that_the_format_lacks(tmp_path):
    def odd(x):
        complex_ = torch.complex(x, x).conj()
        return complex_.real.sum() + x.to_sparse().coalesce().values().sum() + x.t().sum()

    x = torch.rand(2, 3)
    history = tl.log_forward_pass(Function(odd), x, save_options=tl.SaveOptions(stream_to=tmp_path))
    plain = tl.log_forward_pass(Function(odd), x)
    for op, same in zip(history, plain, strict=True):
        got, wanted = op.tensor_contents, same.tensor_contents
        assert got.layout == wanted.layout, op.label
        assert torch.equal(got.to_dense() if got.is_sparse else got, wanted.to_dense() if got.is_sparse else wanted)


def test_streaming_with_a_selection(tmp_path):
    history = tl.log_forward_pass(
        SmallConvNet(), torch.rand(2, 3, 8, 8), layers_to_save="conv", save_options=tl.SaveOptions(stream_to=tmp_path)
    )
    assert [op.label for op in history.operations if op.tensor_contents is not None] == ["conv2d_1_1"]


@pytest.mark.parametrize("limit", [1, 600, 64 << 20], ids=["a-file-each", "some", "one-file"])
def test_what_is_not_selected_does_not_stay_on_disk(tmp_path, monkeypatch, limit):
    monkeypatch.setattr("pytest_torchlens.capture.tensor_files._LIMIT", limit)
    model, x = SmallConvNet().eval(), torch.rand(2, 3, 8, 8)
    whole = tl.log_forward_pass(model, x)
    wanted = ["conv", "relu", lambda op: op.computed_with_params]
    history = tl.log_forward_pass(
        model, x, layers_to_save=wanted, save_options=tl.SaveOptions(stream_to=tmp_path / "run")
    )
    kept = [op for op in history.operations if op.tensor_contents is not None]
    assert [op.layer_type for op in kept] == ["conv2d", "batchnorm", "relu", "linear"]
    assert all(torch.equal(op.tensor_contents, whole[op.label].tensor_contents) for op in kept)
    on_disk = [name for file in sorted((tmp_path / "run").iterdir()) for name in safe_open(file, "pt").keys()]  # noqa: SIM118
    assert len(on_disk) == len(kept)
    assert {file.suffix for file in (tmp_path / "run").iterdir()} == {".safetensors"}


def test_nothing_selected_of_what_is_streamed(tmp_path):
    history = tl.log_forward_pass(
        SmallConvNet(), torch.rand(2, 3, 8, 8), layers_to_save=0, save_options=tl.SaveOptions(stream_to=tmp_path)
    )
    assert list(tmp_path.iterdir()) == []
    assert history.num_tensors_saved == 1


def test_a_folder_with_activations_is_not_written_over(tmp_path):
    trace(stream_to=tmp_path)
    with pytest.raises(ValueError, match="has activations of another run; name a new folder"):
        trace(stream_to=tmp_path)


def test_streamed_files_are_plain_safetensors(tmp_path):
    history = trace(stream_to=tmp_path)
    with safe_open(tmp_path / "activations-00000.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("0.0"), history["conv2d_1"].tensor_contents)
