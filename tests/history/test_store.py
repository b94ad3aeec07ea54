"""A history saved to disk and loaded again; files that are damaged, or made to do harm."""

from __future__ import annotations

import json
import pickle
import shutil

import pytest
import torch
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from torch import nn

import pytest_torchlens as tl
from tests.history.test_table import EXPECTED_OF_MODEL
from tests.history.test_table import OF_TIME
from tests.history.test_table import OPERATION_SIDE
from tests.history.test_table import TableModel
from tests.models import Function

ONLY_LIVE = {"creation_args", "creation_kwargs", "func_applied", "func_rng_states", "tensor_contents"}


@pytest.fixture(scope="module")
def history():
    history = tl.log_forward_pass(TableModel(), torch.ones(2, 2), random_seed=3, save_gradients=True)
    history["output_1"].tensor_contents.sum().backward(retain_graph=True)
    history["linear_1"].tensor_contents.sum().backward()
    return history


@pytest.fixture(scope="module")
def folder(history, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "history"
    history.save(folder)
    return folder


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


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
    history.save(tmp_path / "h")
    loaded = tl.load(tmp_path / "h")
    assert loaded.left_out == ("tosparse_1_1",)
    assert loaded["tosparse_1"].tensor_contents is None
    assert torch.equal(loaded["add_1"].tensor_contents, torch.eye(2) + 1j)


def test_a_folder_in_use_is_not_written_over(history, folder):
    with pytest.raises(tl.HistoryFileError, match="is there already; save into a new or empty folder"):
        history.save(folder)


# -- damage --------------------------------------------------------------------------------------------------------


def edited(folder, change):
    file = folder / "history.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    file.write_text(json.dumps(content), encoding="utf-8")


DAMAGE = {
    "newer": (lambda c: c.update(version=2), "version 2, and 1 is known here: update pytest-torchlens"),
    "odd-version": (lambda c: c.update(version="1"), "version '1'.*damaged"),
    "other-format": (lambda c: c.update(format="x"), "no saved history: its format"),
    "unknown-field": (lambda c: c["history"].update(__class__="os"), "unknown field '__class__'"),
    "wrong-type": (lambda c: c["history"].update(num_layers="9"), "num_layers: expected int, found str"),
    "no-name": (lambda c: c["history"].pop("model_name"), "model_name"),
    "no-history": (lambda c: c.pop("history"), "history"),
    "two-of-a-label": (lambda c: c["history"]["operations"].append(c["history"]["operations"][0]), "same label"),
    "cycle": (lambda c: c["history"]["operations"][0].update(parent_layers=["output_1_10"]), "does not come before"),
    "child": (lambda c: c["history"]["operations"][0].update(child_layers=["x"]), "read by 'x', which is not there or"),
    "frames": (lambda c: c["stacks"].update(linear_1_1=[999]), "call stack of 'linear_1_1' points nowhere"),
    "layer-list": (lambda c: c["history"]["layer_list"].append("y"), "layer_list has 'y'"),
    "modules": (lambda c: c["history"]["modules"][1].update(children=["inner"]), "'inner' cannot contain 'inner'"),
    "no-model": (lambda c: c["history"]["modules"].pop(0), "the model is not among its modules"),
    "huge": (lambda c: c["history"].update(num_layers=10**400), "a number has 401 digits"),
    "infinite": (lambda c: c["history"].update(elapsed_time_total=float("inf")), "Infinity is no number"),
    "renamed": (lambda c: c["history"]["operations"].pop(), "no operation|not there"),
}


@pytest.mark.parametrize("name", list(DAMAGE))
def test_damaged_json(copy, name):
    change, message = DAMAGE[name]
    edited(copy, change)
    with pytest.raises(tl.HistoryFileError, match=message):
        tl.load(copy)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("{", id="cut"),
        pytest.param("[]", id="list"),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param(
            '{"format": "pytest-torchlens history", "version": 1, "history": ' + '{"a":' * 5000, id="deep-cut"
        ),
        pytest.param("NaN", id="nan"),
    ],
)
def test_no_json(copy, text):
    (copy / "history.json").write_text(text, encoding="utf-8")
    with pytest.raises(tl.HistoryFileError, match=r"is damaged|no saved history"):
        tl.load(copy)


def test_bytes_that_are_no_text(copy):
    (copy / "history.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(tl.HistoryFileError, match="is damaged"):
        tl.load(copy)


def test_nothing_there(tmp_path):
    with pytest.raises(tl.HistoryFileError, match=r"is no saved history: history.json cannot be read"):
        tl.load(tmp_path / "nowhere")


def test_tensors_missing(copy):
    (copy / "activations-00000.safetensors").unlink()
    with pytest.raises(tl.HistoryFileError, match="the tensor of input_1_0 is missing"):
        tl.load(copy)


@pytest.mark.parametrize("keep", [0, 4, 100, -10])
def test_tensors_cut(copy, keep):
    file = copy / "activations-00000.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(tl.HistoryFileError, match="is damaged or no safetensors file"):
        tl.load(copy)


def test_a_pickle_is_not_run(copy, tmp_path):
    class Harm:
        def __reduce__(self):
            return (open, (str(tmp_path / "harm"), "w"))

    (copy / "activations-00000.safetensors").write_bytes(pickle.dumps(Harm()))
    with pytest.raises(tl.HistoryFileError, match="is damaged or no safetensors file"):
        tl.load(copy)
    assert not (tmp_path / "harm").exists()


def test_a_tensor_of_no_operation(copy, tmp_path):
    from safetensors.torch import save_file

    save_file({"stranger": torch.zeros(1)}, copy / "activations-00001.safetensors")
    with pytest.raises(tl.HistoryFileError, match="the tensor 'stranger' belongs to no operation"):
        tl.load(copy)


def test_a_tensor_twice(copy):
    shutil.copy(copy / "activations-00000.safetensors", copy / "activations-00001.safetensors")
    with pytest.raises(tl.HistoryFileError, match="both have a tensor"):
        tl.load(copy)


# -- again ---------------------------------------------------------------------------------------------------------


class Deciding(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        y = self.fc(x)
        return y.relu() if x.sum() > 0 else y.sigmoid().exp()


def test_rerun_on_another_input():
    model = Deciding()
    history = tl.log_forward_pass(model, torch.ones(1, 2), layers_to_save=["linear", "input"])
    again = history.rerun(torch.ones(3, 2) * 2)
    assert again.graph_differences == ()
    assert again.layer_labels == ["input_1_0", "linear_1_1"]
    assert torch.equal(again["linear_1"].tensor_contents, model.fc(torch.ones(3, 2) * 2))
    assert again["linear_1"].tensor_shape == (3, 2)


def test_rerun_says_where_the_graph_differs():
    model = Deciding()
    history = tl.log_forward_pass(model, torch.ones(1, 2))
    assert history.rerun(-torch.ones(1, 2)).graph_differences == ("sigmoid_1_4, exp_1_5 ran in place of relu_1_4",)


def test_rerun_keeps_every_option(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    saving = tl.SaveOptions(detach=True, transform=torch.neg, dtype=torch.float64, stream_to=tmp_path / "run")
    x = torch.ones(1, 2, requires_grad=True)
    history = tl.log_forward_pass(
        model, x, layers_to_save=["linear", 0], random_seed=5, save_options=saving, save_gradients=True
    )
    again, third = history.rerun(x), history.rerun(x)
    for run, folder in ((history, "run"), (again, "run-2"), (third, "run-3")):
        assert list((tmp_path / folder).glob("*.safetensors"))
        assert run.layer_labels == ["input_1_0", "linear_1_1"]
        assert run.random_seed_used == 5
        assert torch.equal(run["linear_1"].tensor_contents, -model[0](x).double())
        assert run["dropout_1"].fingerprint == history["dropout_1"].fingerprint
        run.recording.output.sum().backward()
        assert run["linear_1"].has_saved_grad


def test_rerun_with_other_options():
    model = Deciding()
    history = tl.log_forward_pass(model, torch.ones(1, 2), layers_to_save=None, random_seed=5)
    again = history.rerun(
        torch.ones(1, 2), random_seed=None, layers_to_save="linear", save_options=tl.SaveOptions(dtype=torch.float64),
        save_gradients=True,
    )  # fmt: skip
    assert again.random_seed_used is None
    assert again.layer_labels == ["linear_1_1"]
    assert again["linear_1"].tensor_contents.dtype == torch.float64
    again.recording.output.sum().backward()
    assert again["linear_1"].has_saved_grad
    assert not history.rerun(torch.ones(1, 2)).num_tensors_saved


def test_rerun_without_its_model():
    history = tl.log_forward_pass(Deciding(), torch.ones(1, 2))
    with pytest.raises(ReferenceError, match="Deciding is gone"):
        history.rerun(torch.ones(1, 2))


# -- anything at all -----------------------------------------------------------------------------------------------

ODD = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.lists(st.integers(), max_size=2))


def places(value, path=()):
    """Yield the way to every part of a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_part_may_be_wrong(folder, tmp_path_factory, data):
    content = json.loads((folder / "history.json").read_text(encoding="utf-8"))
    way = data.draw(st.sampled_from([way for way in places(content) if way]))
    target = content
    for key in way[:-1]:
        target = target[key]
    target[way[-1]] = data.draw(ODD)
    broken = tmp_path_factory.mktemp("broken")
    shutil.copy(folder / "activations-00000.safetensors", broken)
    (broken / "history.json").write_text(json.dumps(content), encoding="utf-8")
    try:
        loaded = tl.load(broken)
    except tl.HistoryFileError:
        return
    assert len(loaded.operations) == 12
    assert str(loaded)
    assert [str(op) for op in loaded.operations]
