"""What is not possible is said with its name, the reason, and what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from pytest_torchlens.recorder import Recorder
from pytest_torchlens.recorder import RecorderError
from tests.recorder import callbacks
from tests.recorder.training import small_model
from tests.recorder.training import train

NO_WHOLE_NUMBERS = (0, -1, 2.5, True, "5", None, [3], 10**30)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"evry": 3}, "unknown option 'evry'; did you mean 'every'"),
        *(
            ({name: bad}, rf"{name}: expected a whole number from .*, got {re.escape(repr(bad))}")
            for name in ("frames_per_second", "slots", "slot_values", "workers", "keep")
            for bad in NO_WHOLE_NUMBERS
        ),
        *(
            ({name: bad}, rf"{name}: expected a whole number of at least 1, got {re.escape(repr(bad))}")
            for name in ("every", "max_frames")
            for bad in NO_WHOLE_NUMBERS[:-1]
        ),
        *(
            ({name: bad}, rf"{name}: expected a whole number of at least 0, got {re.escape(repr(bad))}")
            for name in ("start",)
            for bad in NO_WHOLE_NUMBERS[1:-1]
        ),
        *(
            ({name: bad}, rf"{name}: expected a finite number above 0.*, got {re.escape(repr(bad))}")
            for name in ("per_second", "timeout")
            for bad in (0, -1, float("nan"), float("inf"), True, "5", [3])
        ),
        ({"timeout": None}, "timeout: expected a finite number above 0, got None"),
        *(
            ({name: bad}, rf"{name}: expected '.*, got {re.escape(repr(bad))}")
            for name in ("policy", "steps", "series", "on_error")
            for bad in ("wait", 5, None, True, ["drop"])
        ),
        *(
            ({name: bad}, rf"{name}: expected True or False, got {re.escape(repr(bad))}")
            for name in ("no_grad", "videos", "tensorboard", "page")
            for bad in ("yes", 1, None)
        ),
        ({"until": 0}, "until: expected a whole number of at least 1 or None, got 0"),
        ({"start": 5, "until": 5}, "until: expected a whole number of at least 6, got 5"),
        ({"until": "9"}, "until: expected a whole number of at least 1 or None, got '9'"),
        *(
            ({"size": bad}, r"size: expected width and height, even numbers from 160 to 8,192, got ")
            for bad in (5, (99, 100), (321, 200), (320,), (320, 240, 3), "ab", (320.0, 240), None, (320, 10**6), {1, 2})
        ),
        *(
            ({"folder": bad}, "folder: expected a path, or None for no files, got ")
            for bad in (5, "", True, b"out", ["out"])
        ),
        *(({"title": bad}, "title: expected a string, got ") for bad in (5, None, b"text")),
        *(({"scaler": bad}, "scaler: expected the torch.amp.GradScaler") for bad in (5, "yes", torch.amp.GradScaler)),
    ],
    ids=str,
)
def test_options(options: dict, message: str):
    with pytest.raises((TypeError, ValueError), match=message):
        Recorder(**options)
    with Recorder() as recorder, pytest.raises((TypeError, ValueError), match=message):
        recorder.configure(**options)


def test_a_folder_that_is_a_file(tmp_path: Path):
    (tmp_path / "out").write_text("mine", encoding="utf-8")
    with pytest.raises(ValueError, match="expected a folder, got the file"):
        Recorder(tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "missing", "message"),
    [
        ({}, "PIL", r"videos needs the package 'PIL'.*pip install 'pytest-torchlens\[record\]', or pass videos=False"),
        ({"series": "parquet"}, "pyarrow", r"parquet needs the package 'pyarrow'.*\[record\]"),
        ({"tensorboard": True}, "tensorboard", r"tensorboard needs.*\[tensorboard\]"),
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
    with pytest.raises(
        ValueError, match=r"no module matches 'feature\.\*'; did you mean 'features'|known are features"
    ):
        recorder.track_layers(model, "feature.*")
    with pytest.raises(ValueError, match=r"no parameter matches 'features\.wight'; did you mean 'features\.weight'"):
        recorder.track_parameters(model, ["features.bias", "features.wight"])
    with pytest.raises(ValueError, match="is not initialized: run the model once"):
        recorder.track_parameters(nn.LazyLinear(3))
    recorder.track_layers(model)
    with pytest.raises(ValueError, match="is already tracked; give a second model its own name"):
        recorder.track_layers(model)


@pytest.mark.parametrize(
    ("drawing", "message"),
    [
        ({"view": "heat"}, "unknown view 'heat'; did you mean 'heatmap'"),
        ({"view": 5}, "unknown view 5; known are auto"),
        ({"transform": 5}, "transform: expected a function that .*, got 5"),
        ({"callback": 5}, "callback: expected a function or a class"),
        ({"layers": 5}, "expected module globs .*, got 5"),
        ({"layers": []}, r"expected module globs .*, got \[\]"),
        ({"viwe": "pca"}, "unknown drawing option 'viwe'; did you mean 'view'"),
        ({"callback": lambda *_: None}, "callback: expected a function or a class from the top level of a file"),
        ({"video": "no"}, "video: expected True or False, got 'no'"),
        ({"name": 5}, "name: expected a string, got 5"),
        ({"gradients": 0}, "gradients: expected True or False, got 0"),
        ({"outputs": "no"}, "outputs: expected True or False, got 'no'"),
        (
            {"outputs": False, "gradients": False},
            "expected at least one of outputs, gradients to be True, got False for all",
        ),
    ],
)
def test_drawings(drawing: dict, message: str):
    with pytest.raises((TypeError, ValueError), match=message):
        Recorder().track_layers(small_model(), **drawing)


@pytest.mark.parametrize(
    ("track", "arguments", "message"),
    [
        ("track_model", {"gradients": "no"}, "gradients: expected True or False, got 'no'"),
        ("track_model", {"view": "heat"}, "unknown view 'heat'"),
        ("track_parameters", {"parameters": 5}, "expected parameter globs .*, got 5"),
        ("track_parameters", {"name": None}, "name: expected a string, got None"),
        ("track_parameters", {"updates": 1}, "updates: expected True or False, got 1"),
        (
            "track_parameters",
            {"values": False, "gradients": False, "updates": False},
            "expected at least one of values, gradients, updates",
        ),
        ("track_parameters", {"transform": "abs"}, "transform: expected a function that .*, got 'abs'"),
    ],
)
def test_other_arguments(track: str, arguments: dict, message: str):
    with Recorder() as recorder, pytest.raises((TypeError, ValueError), match=message):
        getattr(recorder, track)(small_model(), **arguments)


def test_a_number_by_the_name_of_a_layer():
    """A criterion that is a part of the model is a layer called loss."""
    model = nn.ModuleDict({"loss": nn.MSELoss()})
    with Recorder() as recorder:
        recorder.track_layers(model)
        with pytest.raises(ValueError, match="'loss' is the name of a tracked output and cannot name a number: track"):
            recorder.step(loss=1.0)
    with Recorder() as recorder:
        recorder.track_layers(model, name="net")
        recorder.step(loss=1.0)
    assert recorder.series["loss"].mean.tolist() == [1.0]


def test_what_is_no_switch():
    with Recorder() as recorder, pytest.raises(TypeError, match="enabled: expected True or False, got 'no'"):
        recorder.enabled = "no"


def test_tensors_and_numbers():
    recorder = Recorder()
    with pytest.raises(TypeError, match="'words': expected a tensor, got list"):
        recorder.track_tensor("words", [1.0])
    with pytest.raises(
        TypeError,
        match=r"expected a non-empty tensor of floating-point or complex numbers, got \(2,\) torch.int64 on cpu",
    ):
        recorder.track_tensor("words", torch.tensor([1, 2]))
    with pytest.raises(TypeError, match="loss: expected a number or a tensor with one element, got 'low'"):
        recorder.step(loss="low")
    with pytest.raises(TypeError, match=r"loss: expected a number or a tensor with one element, got "):
        recorder.log(loss=torch.ones(2))


@pytest.mark.parametrize("track", ["track_model", "track_layers", "track_parameters"])
@pytest.mark.parametrize(("model", "kind"), [(None, "NoneType"), (nn.Linear, "type")])
def test_what_is_no_model(track: str, model: object, kind: str):
    with pytest.raises(TypeError, match=rf"model: expected a torch\.nn\.Module, got {kind}"):
        getattr(Recorder(), track)(model)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning", "ignore:.*torch.jit.script:FutureWarning")
@pytest.mark.parametrize("track", ["track_model", "track_layers"])
def test_a_scripted_model_has_no_hooks(track: str):
    model = torch.jit.script(small_model())
    with (
        Recorder() as recorder,
        pytest.raises(TypeError, match="PyTorch does not support hooks on a scripted model"),
    ):
        getattr(recorder, track)(model)


def test_more_memory_than_there_is(tmp_path: Path):
    recorder = Recorder(tmp_path, slots=1 << 20, slot_values=1 << 28, every=1)
    recorder.track_model(small_model())
    with pytest.raises(
        RecorderError, match="1,073,741,824 MiB of shared memory, which slots= and slot_values= ask for"
    ):
        recorder.step()
    recorder.close()
    assert recorder.report == {}


@pytest.mark.parametrize("name", [5, "", None, "\udc80"])
def test_what_is_no_name(name: object):
    with pytest.raises(TypeError, match="name: expected a non-empty string"):
        Recorder().track_tensor(name, torch.ones(2))
    with pytest.raises(TypeError, match="name: expected a non-empty string"):
        Recorder().track_model(small_model(), name)


def test_a_transform_that_returns_no_tensor():
    recorder, model = Recorder(every=1), small_model()
    recorder.track_layers(model, "0", transform=lambda tensor: tensor.argmax())
    with pytest.raises(TypeError, match="transform of '0': expected a tensor"):
        model(torch.ones(1, 4))
    recorder.close()


def test_order_of_calls():
    recorder = Recorder()
    recorder.track_layers(small_model())
    with pytest.raises(RuntimeError, match="call configure"):
        recorder.configure(every=1)
    recorder.close()
    recorder.close()
    for late in (lambda: recorder.track_model(small_model()), recorder.step, lambda: recorder.log(loss=1.0)):
        with pytest.raises(RuntimeError, match="the recorder is closed"):
            late()


def test_a_callback_from_the_top_level_is_found():
    Recorder().track_layers(small_model(), callback=callbacks.Summing)


def test_a_callback_from_a_script_that_trains_when_it_is_imported(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert 'when it is imported: move the training under  if __name__ == "__main__":' in result.stderr


SCRIPT = """
import torch
from pytest_torchlens.recorder import Recorder

def callback(name, step, values): pass

with Recorder("out", every=1) as recorder:
    recorder.track_tensor("ones", torch.ones(2), callback=callback)
"""


def test_a_name_that_is_not_tracked_is_told_the_nearest(tmp_path: Path):
    model = small_model()
    with Recorder(tmp_path, page=False) as recorder:
        recorder.track_parameters(model)
        train(model, 1, recorder)
    for found in (recorder.series, recorder.report):
        with pytest.raises(KeyError, match=r"^nothing named '0.wieght' is tracked; did you mean '.*0.weight'"):
            found["0.wieght"]
        assert "0.wieght" not in found
