"""A history saved to disk and loaded again."""

from __future__ import annotations

import re

import pytest
import torch
from safetensors import safe_open
from torch import nn

import pytest_torchlens as tl
from pytest_torchlens.capture import fingerprint
from tests.history.test_table import EXPECTED_OF_MODEL
from tests.history.test_table import OF_TIME
from tests.history.test_table import OPERATION_SIDE
from tests.models import Function

ONLY_LIVE = {"creation_args", "creation_kwargs", "func_applied", "func_rng_states", "tensor_contents"}


def test_all_fields_come_back(history, folder):
    loaded = tl.load(folder)
    assert loaded.record() == history.record()
    assert str(loaded) == str(history)
    for name in {*EXPECTED_OF_MODEL, *OF_TIME, "layer_labels"}:
        assert list_or_value(getattr(loaded, name)) == list_or_value(getattr(history, name)), name
    for op, same in zip(loaded.operations, history.operations, strict=True):
        assert str(op) == str(same)
        assert op.func_call_stack == same.func_call_stack
        for name in {*OPERATION_SIDE} - ONLY_LIVE:
            assert getattr(op, name) == getattr(same, name), (op.label, name)
    for name in ("escapes", "truth_tests", "lines_taken", "backward_passes", "rolled_edges"):
        assert getattr(loaded, name), name
        assert getattr(loaded, name) == getattr(history, name), name
    assert loaded.merge(history).only_first == ()


def list_or_value(value):
    return list(value) if isinstance(value, tuple) else value


def test_tensors_and_gradients_come_back(history, folder):
    loaded = tl.load(folder)
    for op, same in zip(loaded.operations, history.operations, strict=True):
        assert torch.equal(op.tensor_contents, same.tensor_contents), op.label
        assert list(op.gradients) == list(same.gradients)
        assert all(torch.equal(op.gradients[number], same.gradients[number]) for number in op.gradients)
    assert list(loaded["linear_1"].gradients) == [1, 2]


@pytest.mark.parametrize("key", ["linear_1_1", "linear_1", "linear_1:1", "linear_1_1:1", "inner", "inner.fc:1", 1, -10])
def test_a_loaded_history_has_the_same_keys(folder, key):
    loaded = tl.load(folder)
    assert loaded[key].label == "linear_1_1"
    assert key in loaded


def test_unknown_keys_of_a_loaded_history(folder):
    loaded = tl.load(folder)
    with pytest.raises(tl.LookupKeyError, match="no layer 'linear_9'; did you mean 'linear_1'"):
        loaded["linear_9"]
    with pytest.raises(IndexError, match="layer 11 is out of range: 11 layers are saved"):
        loaded[11]
    assert 11 not in loaded


def test_a_loaded_history_can_be_asked_and_saved_again(history, folder, tmp_path):
    loaded = tl.load(folder)
    assert [op.label for op in loaded.find("unbind", followed_by="add")] == ["unbind_1_2"]
    assert loaded.ancestors("add_1") == history.ancestors("add_1")
    loaded.save(tmp_path / "again")
    assert tl.load(tmp_path / "again").record() == history.record()


def test_layers_with_several_passes_come_back(tmp_path):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x):
            return self.fc(self.fc(x))

    history = tl.log_forward_pass(Twice(), torch.ones(1, 2))
    history.save(tmp_path / "h")
    loaded = tl.load(tmp_path / "h")
    for key in ("linear_1_1", "linear_1", "fc"):
        assert str(loaded[key]) == str(history[key])
    assert loaded["fc:2"].label == history["fc:2"].label == "linear_1_1:2"


def test_what_the_format_has_no_place_for_is_said(tmp_path):
    history = tl.log_forward_pass(Function(lambda x: x.to_sparse().to_dense() + 1j), torch.eye(2))
    with pytest.warns(UserWarning, match=r"cannot store tosparse_1_1 \(torch.sparse_coo\); the rest .* is saved"):
        history.save(tmp_path / "h")
    loaded = tl.load(tmp_path / "h")
    assert loaded.left_out == {"tosparse_1_1": "torch.sparse_coo"}
    assert loaded["tosparse_1"].tensor_contents is None
    assert torch.equal(loaded["add_1"].tensor_contents, torch.eye(2) + 1j)


DTYPES = """bool uint8 int8 int16 int32 int64 uint16 uint32 float16 bfloat16 float32 float64 float8_e4m3fn float8_e5m2
complex32 complex64 complex128""".split()


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)], ids=str)
def test_every_dtype_comes_back(tmp_path, name, shape):
    x = torch.rand(shape).mul(3).to(getattr(torch, name))
    if x.is_floating_point() and x.dim() and x.itemsize > 1:
        x[..., :1] = float("nan")
    history = tl.log_forward_pass(Function(lambda x: x.clone().t() if x.dim() else x.clone()), x)
    history.save(tmp_path / "h")
    for op, same in zip(tl.load(tmp_path / "h").operations, history.operations, strict=True):
        got, wanted = op.tensor_contents, same.tensor_contents
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        assert fingerprint(got) == fingerprint(wanted), op.label


@pytest.mark.filterwarnings("ignore:.*(deprecated|prototype stage|beta state)")
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "torch.qint8"),
        (lambda x: x.to_sparse_csr(), "torch.sparse_csr"),
        (lambda x: torch.nested.as_nested_tensor(list(x.unbind())), "nested"),
        (lambda x: x.to("meta"), "without values, on the meta device"),
        (lambda x: x.to(torch.float8_e8m0fnu), "torch.float8_e8m0fnu"),
    ],
    ids=["quantized", "csr", "nested", "meta", "float8_e8m0fnu"],
)
def test_what_cannot_be_saved_is_said_with_the_reason(tmp_path, make, why):
    history = tl.log_forward_pass(Function(make), torch.rand(2, 3))
    with pytest.warns(UserWarning, match=rf"cannot store .*_1_\d \({re.escape(why)}\)"):
        history.save(tmp_path / "h")
    loaded = tl.load(tmp_path / "h")
    assert set(loaded.left_out.values()) == {why}
    assert loaded[-1].tensor_contents is None
    assert torch.equal(loaded[0].tensor_contents, history[0].tensor_contents)
    assert loaded.record() == history.record()


def test_sparse_gradients_are_said_to_be_left_out(tmp_path):
    model = nn.Embedding(5, 2, sparse=True)
    history = tl.log_forward_pass(Function(lambda w: nn.functional.embedding(torch.tensor([1]), w, sparse=True)),
                                  model.weight.detach().requires_grad_(), save_gradients=True)  # fmt: skip
    history.recording.output.sum().backward()
    with pytest.warns(UserWarning, match=r"gradient 1 input_1_0 \(torch.sparse_coo\)"):
        history.save(tmp_path / "h")
    assert tl.load(tmp_path / "h").left_out == {"gradient 1 input_1_0": "torch.sparse_coo"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 2**63 - 1])
def test_values_that_json_has_no_number_for(tmp_path, value):
    history = tl.log_forward_pass(Function(lambda x: x * (1 if x.item() else 2)), torch.tensor([value]))
    history.save(tmp_path / "h")
    assert repr(tl.load(tmp_path / "h").escapes[0].value) == repr(value)


def test_names_that_are_no_text_elsewhere(tmp_path):
    code = compile("def forward(x):\n    return x + 1\n", "odd \udc80 \n name.py", "exec")
    scope = {}
    exec(code, scope)  # noqa: S102 - our own text
    history = tl.log_forward_pass(Function(scope["forward"]), torch.ones(1))
    history.save(tmp_path / "h")
    assert tl.load(tmp_path / "h").record() == history.record()


def test_reading_all_tensors_opens_each_file_once(history, folder, monkeypatch):
    opened = []
    whole = "pytest_torchlens.capture.tensor_files.safe_open"
    monkeypatch.setattr(whole, lambda file, **options: opened.append(file) or safe_open(file, **options))
    loaded = tl.load(folder)
    for _ in range(3):
        assert all(op.tensor_contents is not None for op in loaded.operations)
    assert len(opened) == 2  # for the names, and for the tensors


def test_a_folder_in_use_is_not_written_over(history, folder):
    with pytest.raises(tl.HistoryFileError, match="expected a new or empty folder, got"):
        history.save(folder)


def test_a_save_that_failed_can_be_tried_again(history, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("pytest_torchlens.history.store.json.dumps", full)
        with pytest.raises(tl.HistoryFileError, match="cannot be written: No space left on device"):
            history.save(tmp_path / "h")
    history.save(tmp_path / "h")
    assert list(tl.load(tmp_path / "h").layer_list) == history.layer_list


def test_files_taken_away_are_said_to_be(tmp_path):
    model = Function(lambda x: torch.complex(x, x) * 2)
    history = tl.log_forward_pass(model, torch.ones(3), save_options=tl.SaveOptions(stream_to=tmp_path / "s"))
    for file in (tmp_path / "s").iterdir():
        file.unlink()
    with pytest.raises(ValueError, match=r"has no tensor .*: a file was removed"):
        assert history["mul_1"].tensor_contents is None  # it raises


class Killed(BaseException):
    """What ends a process is no exception that anybody catches."""


def test_a_save_that_was_killed_can_be_repeated(tmp_path, monkeypatch):
    history = tl.log_forward_pass(nn.Linear(2, 2), torch.ones(1, 2))
    folder = tmp_path / "saved"

    def killed(*_, **__):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("pytest_torchlens.history.store.write_atomically", killed)
        with pytest.raises(Killed):
            history.save(folder)
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(tl.HistoryFileError, match="not a saved history"):
        tl.load(folder)
    with pytest.raises(tl.HistoryFileError, match="expected a new or empty folder"):
        history.save(folder)
    assert [file.name for file in folder.iterdir()] == ["mine.txt"]
    (folder / "mine.txt").unlink()
    history.save(folder)
    assert tl.load(folder).record() == history.record()
    assert {file.name for file in folder.iterdir()} == {"history.json", "activations-00000.safetensors"}


@pytest.mark.parametrize("name", ["", "activations-00000.safetensors"])
def test_what_may_not_be_read_is_said_to_be(folder, monkeypatch, name):
    def forbidden(path, *args, **kwargs):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.open" if name else "pathlib.Path.iterdir", forbidden)
    monkeypatch.setattr("pathlib.Path.read_text", lambda path, **_: open(path, encoding="utf-8").read())  # noqa: PTH123, SIM115
    with pytest.raises(tl.HistoryFileError, match=rf"{name or folder.name} cannot be read \(Permission denied\)"):
        tl.load(folder)
