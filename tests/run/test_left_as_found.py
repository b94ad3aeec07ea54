"""What a model changes in its process is put back after it, and its report says so."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.overrides import _get_current_function_mode_stack
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import Outcome
from pytest_torchlens.records import RunReport
from pytest_torchlens.records import Status
from pytest_torchlens.records import from_json
from pytest_torchlens.run import RunOptions
from pytest_torchlens.run import run_case
from pytest_torchlens.run.preserved_state import _SETTINGS
from pytest_torchlens.run.preserved_state import preserved_global_state
from pytest_torchlens.zoo import ModelCase
from pytest_torchlens.zoo import Settings
from pytest_torchlens.zoo import TensorSpec


class Changes(nn.Module):
    """Changes something as it is built, then adds."""

    def __init__(self, change):
        super().__init__()
        self.kept = change()

    def forward(self, x):
        return x + 1


class ChangesInForward(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, x):
        self.change()
        return x + 1


class Provider:
    def __init__(self, build):
        self.build_it = build

    def names(self):
        return ["model"]

    def build(self, name, kwargs, *, pretrained):
        return self.build_it()

    def default_input(self, model, kwargs):
        return TensorSpec((2, 4))


def run(build) -> ModelReport:
    case = ModelCase(zoo="mine", name="model", settings=Settings(), provider=Provider(build))
    return run_case(case, RunOptions()).report


class PassesOn(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


HELD = []


def enter_inference_mode():
    HELD.append(torch.inference_mode())
    HELD[-1].__enter__()


def hook_all_modules():
    nn.modules.module.register_module_forward_hook(lambda module, args, output: output + 1)


def hook_all_gradients():
    nn.modules.module.register_module_full_backward_hook(print)


CHANGES = {
    "default dtype to float64": lambda: torch.set_default_dtype(torch.float64),
    "default device to meta": lambda: torch.set_default_device("meta"),
    "deterministic algorithms to on": lambda: torch.use_deterministic_algorithms(True),
    "deterministic algorithms only warn to on": lambda: torch.use_deterministic_algorithms(False, warn_only=True),
    "filling of uninitialized memory to off": lambda: setattr(
        torch.utils.deterministic, "fill_uninitialized_memory", False
    ),
    "float32 matmul precision to medium": lambda: torch.set_float32_matmul_precision("medium"),
    "cuDNN benchmark to on": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "cuDNN deterministic to on": lambda: setattr(torch.backends.cudnn, "deterministic", True),
    "oneDNN to off": lambda: setattr(torch.backends.mkldnn, "enabled", False),
    "anomaly mode to on": lambda: torch.set_anomaly_enabled(True),
    "autocast on cpu to on": lambda: torch.set_autocast_enabled("cpu", True),
    "nesting of autocast to ": lambda: torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False).__enter__(),
    "inference mode to on": enter_inference_mode,
    "fast path of attention to off": lambda: torch.backends.mha.set_fastpath_enabled(False),
    "torch function modes to TorchFunctionMode": lambda: TorchFunctionMode().__enter__(),
    "dispatch modes to TorchDispatchMode": lambda: TorchDispatchMode().__enter__(),
    "hooks on all modules to <lambda>": hook_all_modules,
    "hooks on all modules to print": hook_all_gradients,
    "working folder to /": lambda: os.chdir("/"),
    "recursion limit to 5000": lambda: sys.setrecursionlimit(5000),
}


def state() -> list[object]:
    """Return all that is to be as it was, and what PyTorch has beside it."""
    return [
        *((setting.name, setting.value()) for setting in _SETTINGS),
        torch.empty(0).device,
        torch.get_default_device(),
        dict(vars(torch._GLOBAL_DEVICE_CONTEXT)),
        _get_current_function_mode_stack(),
        _get_current_dispatch_mode_stack(),
        {name: value for name, value in vars(_python_dispatch).items() if name.startswith("_is_in_")},
        nn.Identity()(torch.zeros(1)).item(),
    ]


def elsewhere() -> list[object]:
    """Return the same but for the working folder, which pytest's fixtures put back later."""
    return [one for one in state() if not (isinstance(one, tuple) and one[0] == "working folder")]


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that leaves the process changed; let flags be set where PyTorch's own tests' tools forbade it."""
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)
    before = elsewhere()
    yield
    assert elsewhere() == before


@pytest.mark.parametrize("kind", [Changes, ChangesInForward])
@pytest.mark.parametrize("name", CHANGES)
def test_what_a_model_changes_is_put_back_and_told(name: str, kind):
    before = state()
    with preserved_global_state(), warnings.catch_warnings():  # whatever comes of this test, others find all as it was
        warnings.simplefilter("ignore")
        report = run(lambda: kind(CHANGES[name]))
        assert state() == before
        told = [note for note in report.notes if note.startswith("it changed the ")]
    # What is entered and never left is entered in each pass.
    assert any(note.startswith(f"it changed the {name}") and note.endswith(", which was put back") for note in told), (
        told
    )


def test_a_model_that_changes_nothing_has_no_note():
    assert run(lambda: nn.Linear(4, 3)).notes == ()


def test_threads_are_put_back():
    before = torch.get_num_threads()
    report = run(lambda: Changes(lambda: torch.set_num_threads(before + 1)))
    assert torch.get_num_threads() == before
    assert report.notes == (f"it changed the threads to {before + 1}, which was put back",)


def test_the_state_is_put_back_after_a_model_that_raises():
    def changes_and_raises():
        torch.set_default_dtype(torch.float64)
        raise ValueError("no")

    report = run(changes_and_raises)
    assert torch.get_default_dtype() is torch.float32
    assert report.outcome is Outcome.FAILED
    assert report.notes == ("it changed the default dtype to float64, which was put back",)


def test_gradients_stay_off_where_the_model_entered_inference_mode():
    with torch.no_grad():
        before = state()
        run(lambda: Changes(enter_inference_mode))
        assert state() == before


def test_a_setting_that_cannot_be_told_costs_nothing_else(monkeypatch: pytest.MonkeyPatch):
    def refuse():
        raise PermissionError("no")

    def changes_and_raises():
        monkeypatch.setattr(os, "getcwd", refuse)
        torch.set_default_dtype(torch.float64)
        raise ValueError("no")

    report = run(changes_and_raises)
    monkeypatch.undo()
    assert torch.get_default_dtype() is torch.float32
    assert report.error is not None
    assert report.error.type.endswith("ValueError")


def test_precisions_by_new_names_are_put_back():
    if not hasattr(torch.backends, "fp32_precision"):
        pytest.skip("this PyTorch has the old names alone")
    before = torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.allow_tf32
    run(lambda: Changes(lambda: setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee")))
    assert (torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.allow_tf32) == before
    run(lambda: Changes(lambda: torch.set_float32_matmul_precision("high")))


def test_what_numpy_raises_on_is_put_back():
    before = np.geterr()
    run(lambda: Changes(lambda: np.seterr(all="raise")))
    assert np.geterr() == before


@pytest.mark.parametrize("held", [nn.Linear, lambda *sizes: Changes(lambda: torch.set_default_device("meta"))])
def test_a_default_device_of_the_callers_survives(held):
    with PassesOn(), torch.device("cpu"), PassesOn():
        stack = _get_current_function_mode_stack()
        run(lambda: held(4, 3))
        assert _get_current_function_mode_stack() == stack
    assert _get_current_function_mode_stack() == []
    is_set = hasattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context")
    torch.set_default_device("cpu")
    try:
        run(lambda: held(4, 3))
        assert torch.get_default_device() == torch.device("cpu")
    finally:
        torch.set_default_device(None)
        if not is_set:  # PyTorch 2.9 and before tell no default device with it
            del torch._GLOBAL_DEVICE_CONTEXT.device_context
    assert torch.utils._device.CURRENT_DEVICE is None
    assert _get_current_function_mode_stack() == []


def test_a_mode_of_the_callers_is_not_left_where_a_model_sets_the_default_device_below_it():
    class NotesItsEnd(PassesOn):
        ended = 0

        def __exit__(self, *error: object) -> None:
            self.ended += 1
            super().__exit__(*error)

    with NotesItsEnd() as mode:
        report = run(lambda: Changes(lambda: torch.set_default_device("meta")))
        assert mode.ended == 0
    assert mode.ended == 1
    assert "it changed the default device to meta, which was put back" in report.notes


def test_folders_that_a_model_takes_from_the_path_are_put_back_and_those_it_adds_stay(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = list(sys.path)

    def change():
        sys.path[:] = ["/added"]

    report = run(lambda: Changes(change))
    assert sys.path == [*before, "/added"]
    assert report.notes == (f"it took {len(before)} of {len(before)} folders from sys.path, which were put back",)


def test_a_folder_that_is_gone_costs_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)

    def change():
        os.chdir(tmp_path)
        work.rmdir()
        sys.setrecursionlimit(5000)

    before = sys.getrecursionlimit()
    report = run(lambda: Changes(change))
    assert sys.getrecursionlimit() == before
    assert "could not be put back: " in report.notes[-1]


MODELS = """
import os, sys, torch
from torch import nn
class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)
    def forward(self, x):
        return self.fc(x) + torch.ones(4)
class Meta(Plain):
    def forward(self, x):
        torch.set_default_device("meta")
        return super().forward(x)
class F64(Plain):
    def __init__(self):
        super().__init__()
        torch.set_default_dtype(torch.float64)
        sys.path.clear()
        os.chdir("/")
def zoo():
    return {"a_f64": F64, "b_plain": Plain, "c_meta": Meta, "d_plain": Plain}
"""


@pytest.fixture
def zoo(pytester: pytest.Pytester) -> None:
    folder = pytester.mkdir("model_zoo_configs")
    (folder / "models.py").write_text(MODELS)
    (folder / "z.yaml").write_text('provider: "python:models.py:zoo"\ndefaults: {input: {shape: [1, 3]}}\n')


@pytest.mark.parametrize("where", ["--lens-isolate", "--lens-no-isolate"])
def test_a_sweep_goes_on_with_what_it_began_with(pytester: pytest.Pytester, zoo, where: str):
    result = pytester.runpytest_inprocess("--lens-zoo=z", where, "--lens-validate", "--lens-report=out")
    result.assert_outcomes(passed=3, failed=1)
    text = (pytester.path / "out" / "report.json").read_text(encoding="utf-8")
    models = {model.name: model for model in from_json(text, RunReport).models}
    assert [name for name, model in models.items() if model.outcome is Outcome.FAILED] == ["c_meta"]
    assert [[part.status for part in models[name].verdict.parts] for name in ("b_plain", "d_plain")] == [
        [Status.PASSED] * 5
    ] * 2
    assert "it changed the default dtype to float64, which was put back" in models["a_f64"].notes
    assert "it changed the default device to meta, which was put back" in models["c_meta"].notes
    assert models["b_plain"].notes == models["d_plain"].notes == ()
