"""What is not possible is said with its name, the reason, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from pytest_torchlens.recorder import Recorder
from tests.recorder import callbacks
from tests.recorder.training import small_model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"evry": 3}, "no option 'evry'; did you mean 'every'"),
        ({"every": 0}, "every=0: give a whole number from 1 on"),
        ({"every": 2.5}, r"every=2\.5: give a whole number"),
        ({"per_second": -1}, "per_second=-1: give a number above 0"),
        ({"policy": "wait"}, "policy='wait': choose one of 'drop', 'coalesce', 'block'"),
        ({"start": 5, "until": 5}, "until=5: give a whole number from 6 on"),
        ({"size": (99, 100)}, "size="),
        ({"size": (321, 200)}, "even numbers"),
        ({"slots": 1}, "slots=1"),
    ],
)
def test_options(options: dict, message: str):
    with pytest.raises((TypeError, ValueError), match=message):
        Recorder(**options)


def test_a_folder_that_is_a_file(tmp_path: Path):
    (tmp_path / "out").write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match="is a file; name a folder"):
        Recorder(tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "missing", "message"),
    [
        ({}, "PIL", r"videos need the package 'PIL'.*pip install 'pytest-torchlens\[record\]', or turn them off: vid"),
        ({"series": "parquet"}, "pyarrow", r"parquet need the package 'pyarrow'.*\[record\]"),
        ({"tensorboard": True}, "tensorboard", r"tensorboard need.*\[tensorboard\]"),
    ],
)
def test_a_package_that_is_missing(
    options: dict, missing: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find(name))
    with pytest.raises(ImportError, match=message):
        Recorder(tmp_path, **options)
    Recorder(**options)


def test_names_of_layers_and_parameters():
    recorder, model = Recorder(), nn.ModuleDict({"features": nn.Linear(2, 2)})
    with pytest.raises(ValueError, match=r"no module fits 'feature\.\*'; did you mean 'features'|known are features"):
        recorder.track_layers(model, "feature.*")
    with pytest.raises(ValueError, match=r"no parameter fits 'features\.wight'; did you mean 'features\.weight'"):
        recorder.track_parameters(model, ["features.bias", "features.wight"])
    with pytest.raises(ValueError, match="has no values yet: run the model once"):
        recorder.track_parameters(nn.LazyLinear(3))
    recorder.track_layers(model)
    with pytest.raises(ValueError, match="is tracked already; a second model needs a name"):
        recorder.track_layers(model)


@pytest.mark.parametrize(
    ("drawing", "message"),
    [
        ({"view": "heat"}, "no view 'heat'; did you mean 'heatmap'"),
        ({"view": 5}, "no view 5; known are auto"),
        ({"transform": 5}, "transform=5: give a function"),
        ({"callback": 5}, "give a function or a class"),
        ({"layers": 5}, "5 names no module: give globs"),
        ({"layers": []}, r"\[\] names no module: give globs"),
        ({"viwe": "pca"}, "nothing of a drawing is called 'viwe'; did you mean 'view'"),
        ({"callback": lambda *_: None}, "give a function or a class from the top level of a file"),
    ],
)
def test_drawings(drawing: dict, message: str):
    with pytest.raises((TypeError, ValueError), match=message):
        Recorder().track_layers(small_model(), **drawing)


def test_tensors_and_numbers():
    recorder = Recorder()
    with pytest.raises(TypeError, match="'words' is a list; track_tensor takes a tensor"):
        recorder.track_tensor("words", [1.0])
    with pytest.raises(TypeError, match=r"\(2,\) torch.int64 on cpu; what is recorded are floating"):
        recorder.track_tensor("words", torch.tensor([1, 2]))
    with pytest.raises(TypeError, match="loss='low' is no number"):
        recorder.step(loss="low")
    with pytest.raises(TypeError, match=r"loss=.* is no number, and no tensor of one"):
        recorder.log(loss=torch.ones(2))


@pytest.mark.parametrize("track", ["track_model", "track_layers", "track_parameters"])
@pytest.mark.parametrize(("model", "kind"), [(None, "NoneType"), (nn.Linear, "type")])
def test_what_is_no_model(track: str, model: object, kind: str):
    with pytest.raises(TypeError, match=rf"what is to be tracked is a {kind}; give a torch\.nn\.Module"):
        getattr(Recorder(), track)(model)


@pytest.mark.parametrize("name", [5, "", None])
def test_what_is_no_name(name: object):
    with pytest.raises(TypeError, match="what is tracked needs a name"):
        Recorder().track_tensor(name, torch.ones(2))
    with pytest.raises(TypeError, match="what is tracked needs a name"):
        Recorder().track_model(small_model(), name)


def test_a_transform_that_returns_no_tensor():
    recorder, model = Recorder(every=1), small_model()
    recorder.track_layers(model, "0", transform=lambda tensor: tensor.argmax())
    with pytest.raises(TypeError, match="the transform of '0' returned"):
        model(torch.ones(1, 4))
    recorder.close()


def test_order_of_calls():
    recorder = Recorder()
    recorder.track_layers(small_model())
    with pytest.raises(RuntimeError, match="call configure"):
        recorder.configure(every=1)
    recorder.close()
    recorder.close()
    with pytest.raises(RuntimeError, match="the recorder is closed"):
        recorder.track_model(small_model())


def test_a_callback_from_the_top_level_is_found():
    Recorder().track_layers(small_model(), callback=callbacks.Summing)
