"""User errors: each message names what is wrong, the reason, and what to do."""

from __future__ import annotations

import copy
import functools
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import pytest_torchlens as tl
from tests.models import RecurrentNetwork


class Watched(nn.Module):
    """Records whether it has run."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.runs = 0

    def forward(self, x):
        self.runs += 1
        return self.fc(x).relu()


X = torch.ones(1, 2)
KINDS = "it takes labels, module addresses, places, parts of labels, queries and functions of an operation"


@pytest.fixture(scope="module")
def history():
    return tl.log_forward_pass(Watched(), X)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (None, "expected a torch.nn.Module to record, got NoneType"),
        (Watched, r"got type: .*; make one of it, as model\(\)"),
        (torch.relu, "got builtin_function_or_method"),
    ],
)
@pytest.mark.parametrize("function", [tl.log_forward_pass, tl.get_model_metadata, tl.validate_model_activations])
def test_no_model(function, model, message):
    with pytest.raises(tl.TraceError, match=message):
        function(model, X)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), None, "missing a required argument: 'x'"),
        ([X, X], None, r"too many positional arguments. A list that is the one argument goes in as \[\[...\]\]"),
        (X, {"y": 1}, "unexpected keyword argument 'y'"),
        (X, X, "input_kwargs: expected a dict of forward's keyword arguments .*, got Tensor; "),
        (X, {1: 2}, "keywords must be strings"),
    ],
)
@pytest.mark.parametrize("again", [False, True], ids=["first", "rerun"])
def test_wrong_inputs(args, kwargs, message, again):
    model = Watched()
    history = tl.log_forward_pass(model, X)
    run = history.rerun if again else functools.partial(tl.log_forward_pass, model)
    with pytest.raises(tl.TraceError, match=message):
        run(args, kwargs)
    assert model.runs == 1


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"random_seed": "7"}, TypeError, "random_seed: expected an integer, or None for no seeding, got '7'"),
        ({"random_seed": 1.0}, TypeError, r"random_seed: expected an integer.* got 1\.0"),
        ({"random_seed": True}, TypeError, "random_seed: expected an integer.* got True"),
        ({"random_seed": 2**64}, ValueError, "random_seed: expected a seed from"),
        ({"save_options": {"detach": True}}, TypeError, r"save_options: expected SaveOptions\(detach=True, .*, got {"),
        ({"save_gradients": "yes"}, TypeError, "gradients of SaveOptions: expected True or False, got 'yes'"),
        ({"vis_opt": "Rolled"}, ValueError, "vis_opt: expected 'none', 'unrolled', 'rolled', got 'Rolled'"),
        ({"vis_opt": "rolled", "vis_nesting_depth": 0}, ValueError, "vis_nesting_depth: expected .*, got 0"),
        (
            {"vis_opt": "rolled", "vis_nesting_depth": 1.5},
            TypeError,
            "vis_nesting_depth: expected a whole number of at least 1, .* or None, got 1.5",
        ),
        ({"vis_opt": "rolled", "vis_outpath": None}, TypeError, "vis_outpath: expected the path"),
        ({"vis_opt": "rolled", "vis_outpath": "/no/where/g.svg"}, ValueError, "is in a folder that does not exist"),
        ({"vis_opt": "rolled", "vis_outpath": "/"}, ValueError, "got '/', which is a folder"),
        ({"layers_to_save": 2.5}, tl.LookupKeyError, f"layers_to_save cannot have 2.5: {KINDS}"),
        ({"layers_to_save": [None]}, tl.LookupKeyError, "cannot have None"),
        ({"layers_to_save": {"relu"}}, tl.LookupKeyError, "cannot have {'relu'}"),
        ({"layers_to_save": b"relu"}, tl.LookupKeyError, "cannot have b'relu'"),
        ({"layers_to_save": True}, tl.LookupKeyError, "cannot have True"),
        ({"layers_to_save": nn.ReLU()}, tl.LookupKeyError, "the module ReLU itself; name it by its address"),
        ({"layers_to_save": tl.Query}, tl.LookupKeyError, "cannot have <class"),
        ({"layers_to_save": ["all", "relu"]}, tl.LookupKeyError, "'all' among others; it stands alone"),
        ({"layers_to_save": ""}, tl.LookupKeyError, "part of every label; say 'all'"),
    ],
)
def test_options_are_refused_before_the_model_runs(options, error, message):
    model = Watched()
    with pytest.raises(error, match=message):
        tl.log_forward_pass(model, X, **options)
    assert model.runs == 0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"detach": 1}, TypeError, "detach of SaveOptions: expected True or False, got 1"),
        ({"transform": "mean"}, TypeError, "transform of SaveOptions: expected a function of a tensor, got 'mean'"),
        ({"dtype": "float16"}, TypeError, "dtype of SaveOptions: expected .* such as torch.float16, got .float16"),
        ({"dtype": torch.int8}, TypeError, "dtype of SaveOptions: expected a floating-point type"),
        ({"device": "gpu"}, ValueError, "device of SaveOptions: expected a device of torch, got 'gpu'"),
        ({"stream_to": 3}, TypeError, "stream_to of SaveOptions: expected the path of a folder, got 3"),
    ],
)
def test_save_options(options, error, message):
    with pytest.raises(error, match=message):
        tl.SaveOptions(**options)


def test_a_folder_that_cannot_be_made(tmp_path):
    model = Watched()
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file/here cannot be written: Not a directory"):
        tl.log_forward_pass(model, X, save_options=tl.SaveOptions(stream_to=tmp_path / "file" / "here"))
    assert model.runs == 0


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("conv2d", r"no layer has 'conv2d' in its label; expected a layer label"),
        ("Relu_1_3", "did you mean 'relu_1_2'"),
        ("ALL", "did you mean 'all'"),
    ],
)
def test_layers_to_save_that_are_not_there(wanted, message):
    with pytest.raises(tl.LookupKeyError, match=message):
        tl.log_forward_pass(Watched(), X, layers_to_save=wanted)


def test_a_function_that_raises_is_named_with_the_operation():
    def large(op):
        return op.tensor_shape[5] > 3

    with pytest.raises(tl.SavingError, match=r"the function large raised IndexError: .* \(on input_1_0\)") as caught:
        tl.log_forward_pass(Watched(), X, layers_to_save=large)
    assert isinstance(caught.value.__cause__, IndexError)


@pytest.mark.parametrize("key", [None, 1.5, True, slice(0, 2), (1, 2), X])
def test_what_can_be_no_key(history, key):
    with pytest.raises(tl.LookupKeyError, match=r"expected a layer label"):
        history[key]


def test_places_may_be_numpys(history, tmp_path):
    history.save(tmp_path / "h")
    for asked in (history, tl.load(tmp_path / "h")):
        for place in np.arange(-4, 4):
            assert asked[place].label == asked[int(place)].label
            assert place in asked
            assert asked.ancestors(place) == asked.ancestors(int(place))
    assert tl.log_forward_pass(Watched(), X, layers_to_save=[*np.arange(2)]).layer_labels == history.layer_list[:2]


@pytest.mark.parametrize(
    ("key", "near"), [("LINEAR_1", "linear_1"), ("linear_1:5", "linear_1:1"), ("fc:3", "fc:1"), ("relu", "relu_1")]
)
def test_keys_get_the_nearest(history, key, near):
    with pytest.raises(tl.LookupKeyError, match=f"no layer '{key}'; did you mean .*'{near}'"):
        history[key]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"func": 3}, "func of a query: expected text, got 3"),
        ({"modul": "fc"}, "expected an attribute of a query, got 'modul'; did you mean 'module'"),
        ({"shape": 3}, r"shape of a query: expected sizes, as in \(None, 64, .*got 3"),
        ({"shape": (1.5,)}, "shape of a query: expected whole numbers, .*got 1.5"),
        ({"dtype": 3}, "dtype of a query: expected a torch.dtype or text, got 3"),
        ({"followed_by": ["relu"]}, r"followed_by of a query: expected text or a Query, got \['relu'\]"),
        ({"with_params": "yes"}, "with_params of a query: expected True or False, got 'yes'"),
    ],
)
def test_queries(history, query, message):
    with pytest.raises(TypeError, match=message):
        history.find(**query)


def test_a_dtype_may_be_torchs_own(history):
    assert [op.label for op in history.find("relu", dtype=torch.float32)] == ["relu_1_2"]
    assert history.find("relu", dtype=torch.float16) == []


def test_merging_with_something_else(history):
    with pytest.raises(TypeError, match="merge: expected another history of Watched, got str"):
        history.merge("x")
    with pytest.raises(ValueError, match="expected two passes of one model, got Watched and RecurrentNetwork"):
        history.merge(tl.log_forward_pass(RecurrentNetwork(), torch.rand(5, 5)))


@pytest.mark.parametrize("number", [2, -1, "a"])
def test_calls_that_are_not_there(history, number):
    for ask in (history.label, history.source_line):
        with pytest.raises(IndexError, match=r"expected the number of a call of this pass, 0 to 1, got"):
            ask(number)


def test_attributes_get_the_nearest_and_completion(history):
    with pytest.raises(AttributeError, match="ModelHistory has no attribute 'layer_lables'; did you mean 'layer_la"):
        _ = history.layer_lables
    with pytest.raises(AttributeError, match="an operation has no attribute 'tensor_content'; did you mean 'tensor_c"):
        _ = history[0].tensor_content
    assert {"total_params", "layer_list", "find", "escapes"} <= set(dir(history))


@pytest.mark.parametrize("take", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copying_and_pickling(history, take):
    with pytest.raises(TypeError, match=r"a history cannot be pickled or copied: history.save\(folder\) writes it"):
        take(history)
    with pytest.raises(TypeError, match=r"linear_1_1 cannot be pickled or copied: take plain\(\)"):
        take(history["linear_1"])
    assert take(history["linear_1"].plain())


def test_what_a_loaded_history_cannot_do(history, tmp_path):
    history.save(tmp_path / "h")
    loaded = tl.load(tmp_path / "h")
    with pytest.raises(TypeError, match="a history cannot be pickled or copied"):
        pickle.dumps(loaded)
    for name in ("rerun", "recording", "label", "nodes"):
        with pytest.raises(AttributeError, match=f"a loaded history has no '{name}': that needs the model"):
            getattr(loaded, name)
    with pytest.raises(AttributeError, match="did you mean 'layer_list'"):
        _ = loaded.layer_lis


def test_a_folder_of_streamed_activations(tmp_path):
    history = tl.log_forward_pass(Watched(), X, save_options=tl.SaveOptions(stream_to=tmp_path / "run"))
    with pytest.raises(tl.HistoryFileError, match=r"only activations: if they were streamed to it, history.save\(an"):
        tl.load(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="run: expected a folder with the activations"):
        _ = history["linear_1"].tensor_contents


def test_a_saved_history_without_a_readable_file_is_not_called_streamed(history, tmp_path):
    history.save(folder := tmp_path / "h")
    (folder / "history.json").unlink()
    (folder / ".unfinished").touch()
    with pytest.raises(tl.HistoryFileError, match=r"No such file or directory\); saving it was not finished: save it "):
        tl.load(folder)
    (folder / "history.json").symlink_to("history.json")
    with pytest.raises(tl.HistoryFileError) as caught:
        tl.load(folder)
    assert "streamed" not in str(caught.value)
    assert "not finished" not in str(caught.value)


def test_a_transform_that_writes_is_refused():
    with pytest.raises(tl.SavingError, match="the transform wrote to its argument, which the model still uses"):
        tl.log_forward_pass(Watched(), X, save_options=tl.SaveOptions(detach=True, transform=torch.Tensor.zero_))


def test_a_history_is_not_made_by_hand():
    with pytest.raises(TypeError, match=r"expected a Recording, got .*log_forward_pass\(model, x\) makes"):
        tl.ModelHistory(X)


@pytest.mark.filterwarnings("error")
def test_a_drawing_that_cannot_be_written_is_a_warning(monkeypatch):
    monkeypatch.setattr("pytest_torchlens.draw.drawing.render", lambda *_, **__: b"")
    if not Path("/proc").is_dir():
        pytest.skip("needs a folder that cannot be written")
    with pytest.raises(UserWarning, match=r"no drawing: /proc/graph.svg cannot be written"):
        tl.log_forward_pass(Watched(), X, vis_opt="rolled", vis_outpath="/proc/graph.svg")
