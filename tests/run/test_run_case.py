from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pytest_torchlens.baseline.policy import Policy
from pytest_torchlens.capture import record
from pytest_torchlens.measure.flops import flops_of
from pytest_torchlens.measure.once import Once
from pytest_torchlens.records import Outcome
from pytest_torchlens.records import Stage
from pytest_torchlens.run import RunOptions
from pytest_torchlens.run import run_case
from pytest_torchlens.zoo import ModelCase
from pytest_torchlens.zoo import Settings
from pytest_torchlens.zoo import TensorSpec
from tests.models import DoesMoreEachTime


class Models:
    """A provider of one model."""

    def __init__(self, build):
        self._build = build

    def names(self):
        return ["model"]

    def build(self, name, kwargs, *, pretrained):
        return self._build(**kwargs)

    def default_input(self, model, kwargs):
        return TensorSpec((2, 4))


def case(build, **settings) -> ModelCase:
    return ModelCase(zoo="mine", name="model", settings=Settings(**settings), provider=Models(build))


class Scales(nn.Module):
    def forward(self, x, factor=2):
        return {"scaled": x * factor, "parts": [x.sum(), (x.max(),)], "text": "none"}


class Forgets(nn.Linear):
    def forward(self, x):
        super().forward(x).exp()
        return super().forward(x)


class Fails(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, x):
        raise self.error


def test_what_the_audit_found_is_in_the_report():
    report = run_case(case(lambda: Forgets(4, 3)), RunOptions()).report
    assert {finding.rule for finding in report.findings} == {"no-effect", "duplicate"}
    assert f"{__file__}:" in report.findings[0].places[0].source_line
    assert run_case(case(lambda: nn.Linear(4, 3)), RunOptions()).report.findings == ()


def test_a_report_of_a_model_that_holds(tmp_path: Path):
    stages: list[Stage] = []
    options = RunOptions(validate=True, folder=tmp_path)
    result = run_case(case(lambda: nn.Linear(4, 3)), options, stages.append)
    report = result.report
    assert result.exception is None
    assert stages == [Stage.BUILD, Stage.INPUTS, Stage.FORWARD, Stage.VALIDATE, Stage.DRAW]
    assert (report.outcome, report.stage, report.error) == (Outcome.PASSED, Stage.DONE, None)
    assert (report.zoo, report.name, report.weights) == ("mine", "model", "random")
    assert report.inputs == ("input: float32[2, 4]",)
    assert report.outputs == ("float32[2, 3]",)
    assert report.forward_runs >= 3
    assert report.forward_ms is not None
    assert report.seconds > report.forward_ms / 1e3
    assert report.history is not None
    assert report.history.total_params == 15
    assert report.verdict
    assert (tmp_path / report.graph).is_file() or report.notes


def test_nothing_is_proved_or_drawn_unasked(tmp_path: Path):
    stages: list[Stage] = []
    report = run_case(case(lambda: nn.Linear(4, 3)), RunOptions(), stages.append).report
    assert stages == [Stage.BUILD, Stage.INPUTS, Stage.FORWARD, Stage.RECORD]
    assert report.verdict is None
    assert report.graph == ""
    assert report.history is not None


def test_arguments_and_outputs_in_words():
    report = run_case(case(Scales, input={"x": TensorSpec((3,), "int64", 0, 9)}), RunOptions()).report
    assert report.inputs == ("x: int64[3]",)
    assert report.outputs == ("scaled: int64[3]", "parts.0: int64[]", "parts.1.0: int64[]")


def test_a_constructor_that_raises():
    result = run_case(case(lambda: nn.Linear("four", 3)), RunOptions())
    assert result.report.stage is Stage.BUILD
    assert result.report.outcome is Outcome.FAILED
    assert isinstance(result.exception, TypeError)


def test_a_forward_that_raises_keeps_the_models_own_frames():
    error = RuntimeError("no")
    result = run_case(case(lambda: nn.Sequential(Fails(error))), RunOptions(validate=True))
    assert result.exception is error
    assert result.report.stage is Stage.FORWARD
    assert result.report.error is not None
    assert (result.report.error.type, result.report.error.message) == ("RuntimeError", "no")
    text = result.report.error.traceback
    assert "raise self.error" in text
    assert "pytest_torchlens" not in text
    assert "_call_impl" not in text
    assert result.report.inputs


def test_causes_are_kept_and_cut_too():
    class Wraps(nn.Module):
        def forward(self, x):
            try:
                return nn.Linear(3, 3)(x)
            except RuntimeError as error:
                raise ValueError("does not fit") from error

    report = run_case(case(Wraps), RunOptions()).report
    assert report.error is not None
    assert "cannot be multiplied" in report.error.traceback
    assert "direct cause" in report.error.traceback
    assert "_call_impl" not in report.error.traceback


def test_an_engine_that_breaks_shows_its_frames(monkeypatch: pytest.MonkeyPatch):
    from pytest_torchlens.history import ModelHistory

    monkeypatch.setattr(ModelHistory, "record", lambda self: self.no_such_attribute)
    report = run_case(case(lambda: nn.Linear(4, 3)), RunOptions()).report
    assert report.stage is Stage.RECORD
    assert report.error is not None
    assert report.error.type == "AttributeError"


def test_a_failed_verdict_is_no_exception():
    class Notices(nn.Module):
        def forward(self, x):
            return x * (2 if torch.overrides._is_torch_function_mode_enabled() else 3)

    result = run_case(case(Notices), RunOptions(validate=True))
    assert result.exception is None
    assert (result.report.outcome, result.report.stage) == (Outcome.FAILED, Stage.VALIDATE)
    assert result.report.verdict is not None
    assert not result.report.verdict
    assert result.report.history is not None


@pytest.mark.parametrize("error", [KeyboardInterrupt(), pytest.skip.Exception("not here")])
def test_ctrl_c_and_skips_pass_through(error: BaseException):
    with pytest.raises(type(error)):
        run_case(case(lambda: Fails(error)), RunOptions())


SEEN = []  # what forward appends to an enclosed list, validation takes out again


def test_forward_runs_in_eval_mode_without_gradients_and_records_fresh_inputs():
    class Looks(nn.Module):
        def forward(self, x):
            SEEN.append((self.training, torch.is_grad_enabled(), float(x.sum())))
            x.zero_()
            return x + 1

    report = run_case(case(Looks), RunOptions(validate=True)).report
    assert report.outcome is Outcome.PASSED
    assert all(not training and not grad for training, grad, _ in SEEN)
    assert SEEN[0][2] == SEEN[report.forward_runs + 1][2] > 0


def test_the_callers_gradient_mode_is_left_as_it_was():
    run_case(case(lambda: nn.Linear(4, 3)), RunOptions())
    assert torch.is_grad_enabled()


def test_a_report_says_what_the_model_costs(tmp_path: Path):
    report = run_case(case(lambda: nn.Linear(4, 3)), RunOptions(folder=tmp_path)).report
    assert report.measurements is not None
    assert report.measurements.operation_flops == (2 * 2 * 4 * 3,)
    assert len(report.measurements.operations) == report.history.num_operations
    assert report.notes == ()
    assert run_case(case(lambda: nn.Linear(4, 3)), RunOptions()).report.measurements is None


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[FlopCounterMode]:
    """Every use of PyTorch's counter."""
    found: list[FlopCounterMode] = []
    enter = FlopCounterMode.__enter__
    monkeypatch.setattr(FlopCounterMode, "__enter__", lambda counter: found.append(counter) or enter(counter))
    return found


def test_floating_point_operations_are_counted_once(tmp_path: Path, counted: list[FlopCounterMode]):
    folders = {name: str(tmp_path / name) for name in ("folder", "pending", "activations")}
    options = RunOptions(validate=True, folder=tmp_path / "report", baseline=Policy(**folders))
    report = run_case(case(lambda: nn.Linear(4, 3)), options).report
    assert (report.stage, report.notes) == (Stage.DONE, ())
    assert report.comparison is not None
    assert report.measurements.operation_flops == (2 * 2 * 4 * 3,)
    assert report.flops == report.measurements.flops == 48
    assert len(counted) == 1


CLEARS_THE_PATH = """
import sys
from pathlib import Path
from torch import nn
from pytest_torchlens.run import RunOptions, run_case
from tests.run.test_run_case import case

class ClearsThePath(nn.Linear):
    def forward(self, x):
        sys.path.clear()
        return super().forward(x)

assert not {"graphviz", "tabulate"} & set(sys.modules)
report = run_case(case(lambda: ClearsThePath(4, 3)), RunOptions(folder=Path(sys.argv[1]))).report
print(report.outcome.value, report.graph)
"""


def test_a_model_that_clears_the_path_is_drawn(tmp_path: Path):
    command = [sys.executable, "-c", CLEARS_THE_PATH, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("passed models/mine/model.svg\n", "")


def test_calls_of_other_shapes_are_counted_again(counted: list[FlopCounterMode]):
    count = Once(flops_of)
    small, large = (record(nn.Linear(4, 3), (torch.ones(rows, 4),)) for rows in (2, 5))
    assert [count(small), count(small), count(large)] == [(48,), (48,), (120,)]
    assert len(counted) == 2


def test_what_differs_from_pass_to_pass_has_no_cost(tmp_path: Path):
    report = run_case(case(DoesMoreEachTime), RunOptions(folder=tmp_path)).report
    assert (report.outcome, report.measurements) == (Outcome.PASSED, None)
    assert report.notes == ("no measurements: RuntimeError: the model runs other operations from pass to pass",)
