"""Edited passes on disk, and edits of passes that were read from disk."""

from __future__ import annotations

import json
import warnings

import pytest
import torch

import pytest_torchlens as tl
from tests.edit.samples import Branches
from tests.edit.samples import Loop
from tests.edit.samples import Signed

X = torch.tensor([[1.0, -2.0, 3.0, 0.5]])
EDITS = {tl.Part("linear_1")[:, 2]: 1.0, ("input_1", "mul_1"): 0.5}


@pytest.fixture(name="model", scope="module")
def fixture_model():
    torch.manual_seed(0)
    return Branches()


@pytest.fixture(name="folder", scope="module")
def fixture_folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("loaded") / "pass"
    tl.log_forward_pass(model, X).save(folder)
    return folder


@pytest.fixture(name="loaded")
def fixture_loaded(folder):
    return tl.load(folder)


def saved(history, folder):
    history.save(folder)
    return tl.load(folder)


def test_an_edited_history_is_saved_with_its_edits_and_what_they_changed(model, tmp_path):
    edited = tl.log_forward_pass(model, X).edit({"linear_1": lambda t: t * 3, ("input_1", "mul_1"): 0.0})
    loaded = saved(edited, tmp_path / "edited")
    assert loaded.edits == edited.edits
    assert loaded.changed_by == edited.changed_by
    assert loaded.changed_by["linear_1_3"] == pytest.approx(2.0)
    assert str(loaded) == str(edited)
    assert torch.equal(loaded["mul_1"].tensor_contents, edited["mul_1"].tensor_contents)


def test_infinite_changes_are_saved_too(model, tmp_path):
    edited = tl.log_forward_pass(model, X).edit({"relu_1": 1.0})
    assert saved(edited, tmp_path / "edited").changed_by["relu_1_5"] == torch.inf


def test_histories_without_edits_are_as_before(loaded, folder):
    content = json.loads((folder / "history.json").read_text())
    assert not {"edits", "changed_by"} & content["history"].keys()
    assert (loaded.edits, loaded.changed_by) == ((), {})


@pytest.mark.parametrize("name", ["changed_by", "edits"])
def test_a_record_with_edits_of_what_is_not_there_is_damaged(model, tmp_path, name):
    tl.log_forward_pass(model, X).edit({("linear_1", "mul_1"): 0.0}).save(tmp_path / "edited")
    file = tmp_path / "edited" / "history.json"
    content = json.loads(file.read_text())
    damaged = {"changed_by": {"mul_7": 0.5}, "edits": [{**content["history"]["edits"][0], "operation": "mul_7"}]}
    content["history"][name] = damaged[name]
    file.write_text(json.dumps(content))
    with pytest.raises(tl.HistoryFileError, match="an edit changed 'mul_7', which is not an operation"):
        tl.load(tmp_path / "edited")


@pytest.mark.parametrize("live", [False, True])
def test_an_edit_of_a_loaded_history_equals_that_of_the_pass_itself(model, loaded, live):
    there = tl.log_forward_pass(model, X).edit(EDITS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        edited = loaded.edit(EDITS, model=model, input_args=X, live=live)
    assert edited.edits == there.edits
    assert edited.changed_by == there.changed_by
    for one, other in zip(edited.operations, there.operations, strict=True):
        assert torch.equal(one.tensor_contents, other.tensor_contents), one.label
    assert edited.original.edits == ()


def test_modules_parameters_and_activations_of_the_loaded_pass_are_taken(model, loaded):
    parameters = {"fc.bias": 0.0}
    edited = loaded.edit({"fc": loaded["input_1"]}, model=model, input_args=[X], parameters=parameters)
    assert torch.equal(edited["linear_1"].tensor_contents, X)
    assert {edit.label for edit in edited.edits} == {"linear_1_3", "fc.bias"}


def test_the_seed_of_the_loaded_pass_is_set(tmp_path):
    model = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 4))
    loaded = saved(tl.log_forward_pass(model, X, random_seed=3), tmp_path / "pass")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        edited = loaded.edit({"linear_1": 0.0}, model=model, input_args=X)
    assert torch.equal(edited["dropout_1"].tensor_contents, loaded["dropout_1"].tensor_contents)


def test_operations_are_found_where_they_ran_when_labels_have_moved(tmp_path):
    model = Loop()
    loaded = saved(tl.log_forward_pass(model, [X, 2]), tmp_path / "pass")
    with pytest.warns(UserWarning, match="differs from the loaded one, first at sum_1_3, which has other values"):
        edited = loaded.edit({"tanh_1:2": 0.0, "sum_1": 1.0}, model=model, input_args=[X, 4])
    assert [edit.label for edit in edited.edits] == ["tanh_1_2:2", "sum_1_3"]
    with pytest.warns(UserWarning, match="differs"):
        whole = loaded.edit({"tanh_1": 0.0}, model=model, input_args=[X, 4])
    assert [edit.label for edit in whole.edits] == [f"tanh_1_2:{number}" for number in (1, 2, 3, 4)]

    loaded = saved(tl.log_forward_pass(Signed(), X), tmp_path / "signed")
    other = Signed()
    with torch.no_grad():
        other.fc.weight.zero_()
        other.fc.bias.zero_()
    with pytest.warns(UserWarning, match="differs from the loaded one, first at linear_1_1, which has other values"):
        edited = loaded.edit({"tanh_1_7": 0.0}, model=other, input_args=X)
    assert [edit.label for edit in edited.edits] == ["tanh_1_6"]
    with (
        pytest.warns(UserWarning, match="differs"),
        pytest.raises(tl.LookupKeyError, match=r"cos_1_6 \(cos\) did not run again: is it the model"),
    ):
        loaded.edit({"cos_1": 0.0}, model=other, input_args=X)


def test_what_is_missing_is_said(model, loaded, tmp_path):
    with pytest.raises(tl.NotReplayableError, match="its model and its inputs must be given to run Branches again"):
        loaded.edit({"linear_1": 0.0})
    with pytest.raises(tl.NotReplayableError, match="and its inputs must be given"):
        loaded.edit({"linear_1": 0.0}, model=model)
    with pytest.raises(tl.NotReplayableError, match="and its model must be given"):
        loaded.edit({"linear_1": 0.0}, input_args=X)
    again = saved(tl.log_forward_pass(model, X).edit({"linear_1": 0.0}), tmp_path / "edited")
    with pytest.raises(tl.NotReplayableError, match=r"of an edited pass \(linear_1_3 ← 0.0\)"):
        again.edit({"relu_1": 0.0}, model=model, input_args=X)


def test_mistakes(model, loaded):
    with pytest.raises(tl.LookupKeyError, match="no layer 'linaer_1'; did you mean 'linear_1'"):
        loaded.edit({"linaer_1": 0.0}, model=model, input_args=X)
    with pytest.raises(tl.TraceError, match="cannot take the inputs given"):
        loaded.edit({"linear_1": 0.0}, model=model, input_args=[X, X])
    with pytest.raises(TypeError, match="edits: expected a mapping from keys to changes, got list"):
        loaded.edit([("linear_1", 0.0)], model=model, input_args=X)
    with pytest.raises(TypeError, match="got LoadedHistory, which has no calls that can run"):
        tl.edit.patch_from(loaded, "linear_1")
    with pytest.raises(TypeError, match=r"assert_effect\(loaded.edit\(edits, model=model, input_args=x\), at_least="):
        tl.assert_effect(loaded, {"linear_1": 0.0}, at_least=0.1)


def test_memory_that_nothing_was_written_to_is_not_compared(tmp_path):
    class Buffered(torch.nn.Module):
        def forward(self, x):
            out = torch.empty_like(x)
            x.add(1)
            out.copy_(x * 2)
            return out + 1

    model = Buffered()
    torch.full((1, 4), 7.0)  # memory that the next tensor of this size takes over
    history = tl.log_forward_pass(model, X)
    loaded = saved(history, tmp_path / "pass")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        edited = loaded.edit({"mul_1": 0.5}, model=model, input_args=X, live=True)
    assert edited.changed_by.keys() == {"mul_1_3", "copy_1_4", "add_2_5", "output_1_6"}


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = torch.nn.Linear(4, 12)
        self.out = torch.nn.Linear(4, 4)

    def forward(self, x):
        q, k, v = self.proj(x).chunk(3, -1)
        return self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v))


def test_attention_opens_and_gradients_are_edited_under_the_keys_of_the_loaded_pass(tmp_path):
    model, x = Attention(), torch.rand(1, 3, 4)
    history = tl.log_forward_pass(model, x)
    loaded = saved(history, tmp_path / "pass")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        edited = loaded.edit({"softmax_1": 0.0, "out": 1.0}, model=model, input_args=x, expand={"sdpa"})
        back = loaded.edit({"proj": lambda t: t * 2}, gradients={"out": 0.0}, model=model, input_args=x)
    assert edited["softmax_1"].tensor_contents.eq(0).all()
    assert [edit.label.rpartition("_")[0] for edit in edited.edits] == ["softmax_1", "linear_2"]
    back["output_1"].tensor_contents.sum().backward()
    assert model.proj.weight.grad.eq(0).all()


@pytest.mark.parametrize("live", [False, True])
def test_the_model_of_a_loaded_pass_stays_as_it_is(tmp_path, live):
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).train(), torch.rand(5, 4)
    history = tl.log_forward_pass(model, x)
    history.save(tmp_path / "pass")
    before = {name: each.clone() for name, each in model.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has other statistics now
        edited = tl.load(tmp_path / "pass").edit({"linear_1": lambda t: t * 2}, model=model, input_args=x, live=live)
        again = edited.edit({"batchnorm_1": lambda t: t + 1}, live=live)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    expected = torch.nn.functional.batch_norm(model[0](x) * 2, None, None, training=True)
    assert torch.allclose(edited["output_1"].tensor_contents, expected)
    assert torch.allclose(again["output_1"].tensor_contents, expected + 1)
