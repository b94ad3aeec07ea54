from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchlens.checks import results
from pytest_torchlens.checks.catalog import CHECKS
from pytest_torchlens.checks.catalog import CheckNameError
from pytest_torchlens.checks.catalog import CheckSetting
from pytest_torchlens.checks.catalog import PlannedCheck
from pytest_torchlens.checks.catalog import known_checks
from pytest_torchlens.checks.catalog import plan
from pytest_torchlens.checks.catalog import settings_of
from pytest_torchlens.checks.frame import run_checks
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import CheckStatus
from pytest_torchlens.records import Failure
from pytest_torchlens.records import from_json
from pytest_torchlens.records import to_json
from tests.checks.subjects import check
from tests.checks.subjects import subject_of


class OwnCheck:
    """A check whose result, or what it does, a test names."""

    name = "own"
    sentence = "It holds."
    cost = 1.0

    def __init__(self, run: Any) -> None:
        self.run = run


def result_of(run: Any, model: nn.Module | None = None, **setting: Any) -> CheckResult:
    subject = subject_of(model or nn.Linear(3, 2), torch.ones(2, 3))
    (result,) = run_checks(subject, [PlannedCheck(OwnCheck(run), CheckSetting(**setting))])
    return result


def test_a_check_that_raises_is_an_error_with_its_line() -> None:
    def run(subject: Subject) -> CheckResult:
        raise KeyError("gone")

    result = result_of(run)
    assert result.status is CheckStatus.ERROR
    assert result.fails
    assert result.failure is not None
    assert result.failure.message == "the check raised KeyError: 'gone'"
    assert "test_frame.py" in result.failure.source_line


LIES = {
    "no result": (lambda _: None, "the check returned NoneType"),
    "nothing compared": (lambda _: results.passed("own", 0), "says that it passed, and compared nothing"),
    "another's": (lambda _: results.passed("rows", 1), "returned the result of 'rows'"),
    "no reason": (lambda _: results.not_applicable("own", ""), "not applicable, and not why"),
    "no failure": (lambda _: CheckResult(name="own", status=CheckStatus.FAILED), "says failed, and not what differs"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_check_that_lies_is_not_believed(lie: str) -> None:
    run, words = LIES[lie]
    result = result_of(run)
    assert result.status is CheckStatus.ERROR
    assert result.failure is not None
    assert words in result.failure.message


def test_a_check_that_changes_the_model_is_an_error_and_the_model_is_put_back() -> None:
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()

    def run(subject: Subject) -> CheckResult:
        subject.model.weight.data.add_(1)  # type: ignore[operator,union-attr]
        return results.passed("own", 1)

    result = result_of(run, model)
    assert result.status is CheckStatus.ERROR
    assert result.failure is not None
    assert "changed parameter 'weight' of the model; it was put back" in result.failure.message
    assert torch.equal(model.weight, before)


def test_a_check_ends_at_its_limit_of_time() -> None:
    def run(subject: Subject) -> CheckResult:
        while True:
            subject.call()

    result = result_of(run, seconds=0.05)
    assert result.status is CheckStatus.NOT_APPLICABLE
    assert "limit of time" in result.reason


def test_a_model_that_raises_another_way_fails_with_its_line() -> None:
    class Picky(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) != 2:
                raise ValueError("two, please")
            return x * 2

    def run(subject: Subject) -> CheckResult:
        subject.call((torch.ones(3, 3),), way="on a batch of 3")
        return results.passed("own", 1)

    result = result_of(run, Picky())
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert result.failure.message == "the model raised ValueError on a batch of 3: two, please"
    assert "test_frame.py" in result.failure.source_line


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory."), MemoryError()])
def test_too_little_memory_is_not_the_fault_of_the_model(error: Exception) -> None:
    class Large(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.dtype is torch.bfloat16:
                raise error
            return x * 2

    def run(subject: Subject) -> CheckResult:
        raise error

    result = check("dtype", Large(), torch.rand(2, 3), types="bfloat16")
    assert result.status is CheckStatus.NOT_APPLICABLE
    assert result.reason == "bfloat16: the memory does not suffice in bfloat16"
    assert result_of(run).reason == "the memory does not suffice for this check"


def test_passes_leave_buffers_parameters_inputs_and_generators_alone() -> None:
    class Writer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1  # type: ignore[operator]
            self.weight.data.mul_(2)
            return x.add_(torch.rand(3)) * self.weight

    model, x = Writer(), torch.ones(2, 3)
    state = torch.get_rng_state()
    subject = subject_of(model, x)
    first = subject.call()
    subject.record()
    assert torch.equal(subject.call()[""], first[""])
    assert model.count == 0
    assert torch.equal(model.weight, torch.ones(3))
    assert torch.equal(x, torch.ones(2, 3))
    assert torch.equal(torch.get_rng_state(), state)


def test_settings_of_the_process_that_a_pass_changed_do_not_reach_the_next() -> None:
    before = torch.get_default_dtype(), torch.get_num_threads()

    class Setting(nn.Module):
        """Sets the default dtype and the number of threads in train mode, and raises."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.use_checkpoint = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert before == (torch.get_default_dtype(), torch.get_num_threads())
            if self.training:
                torch.set_default_dtype(torch.float64)
                torch.set_num_threads(2)
                raise RuntimeError("boom")
            return self.layer(x) + torch.ones(8)  # type: ignore[no-any-return]

    wanted = [PlannedCheck(known_checks()[name]) for name in ("checkpointing", "shapes")]
    found = run_checks(subject_of(Setting().eval(), torch.rand(1, 8)), wanted)
    assert [result.status for result in found] == [CheckStatus.NOT_APPLICABLE, CheckStatus.PASSED]
    assert before == (torch.get_default_dtype(), torch.get_num_threads())


def test_random_numbers_of_train_mode_do_not_keep_later_checks_from_a_model_in_eval_mode() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval()
    wanted = [PlannedCheck(known_checks()[name]) for name in ("train-eval", "batch-size", "export")]
    found = run_checks(subject_of(model, torch.rand(1, 4)), wanted)
    assert [result.status for result in found] == [CheckStatus.PASSED] * 3


def test_an_expected_failure_does_not_fail_and_an_unexpected_pass_does() -> None:
    failing = result_of(lambda _: results.failed("own", Failure(message="differs")), xfail="known")
    passing = result_of(lambda _: results.passed("own", 3), xfail="known")
    assert (failing.word, failing.fails) == ("xfailed", False)
    assert (passing.word, passing.fails) == ("xpassed", True)


def test_a_result_goes_to_json_and_back() -> None:
    result = result_of(lambda _: results.failed("own", Failure(message="differs"), error=0.5, unseen=("much",)))
    assert from_json(to_json(result), CheckResult) == result


def test_each_check_has_a_sentence_a_cost_and_a_module() -> None:
    assert [check.sentence.endswith(".") and check.cost > 0 for check in CHECKS] == [True] * len(CHECKS)
    assert len({check.name for check in CHECKS}) == len(CHECKS)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("repaet", "did you mean 'repeat'?"),
        (["lens_check"], "baselines are no check"),
        ({"repeat": {"secnds": 3}}, "unknown option 'secnds'"),
        ({"repeat": {"seconds": -3}}, "seconds: expected a finite number above 0, got -3"),
        ({"repeat": 3}, "expected a mapping of options"),
        ({"repeat": {"xfail": " "}}, "xfail: expected the reason why it is expected to fail, as text, got ' '"),
        ({"repeat": {"xfail": True}}, "xfail: expected the reason"),
        ({"state": {"ways": "state_dict, pickel"}}, "got 'state_dict, pickel' (did you mean 'pickle'?)"),
        ({"state": {"ways": ["state_dict", "pickel"]}}, "(did you mean 'pickle'?)"),
        ({"state": {"ways": ["pickle", 3]}}, "expected some of state_dict"),
        ({"state": {"ways": []}}, "expected some of state_dict"),
        ({"dtype": {"types": "float16,bfloat61"}}, "(did you mean 'bfloat16' or"),
        ([], "expected names such as"),
        ({}, "expected names such as"),
        ("none,rows", "'none' stands alone, got it with rows: leave out one of the two"),
        ({"none": True, "rows": {"size": 3}}, "'none' stands alone"),
    ],
)
def test_a_wrong_setting_is_named(value: object, words: str) -> None:
    known = {check.name: check for check in CHECKS}
    with pytest.raises(CheckNameError, match=re.escape(words)):
        settings_of(value, known)


def test_words_of_an_option_may_stand_in_a_list() -> None:
    known = {check.name: check for check in CHECKS}
    assert settings_of({"state": {"ways": ["meta", "pickle"]}}, known)["state"].options == {"ways": "meta,pickle"}


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("compile", {"backend": "inducter"}, "got 'inducter' (did you mean 'inductor'?)"),
        (
            "compile",
            {"backend": "magic"},
            "backend: expected a registered one (eager, aot_eager, cudagraphs, inductor, ",
        ),
        ("compile", {"mode": "max-autotun"}, "(did you mean 'max-autotune'"),
        ("compile", {"backend": "inductor", "mode": "max-autotun"}, "(did you mean 'max-autotune'"),
        ("rows", {"dim": 7}, "dim: no input has a dimension 7"),
        ("shapes", {"sizes": "image"}, "sizes: image, but no input is a batch of images"),
        ("causal", {"ids": "imput"}, "ids: the inputs hold no tensor 'imput'; they hold input (did you mean 'input'?)"),
        ("causal", {"ids": "input", "dim": 2}, "'input' has no dimension 2"),
        ("cache", {"cache": "imput"}, "cache: forward has no argument 'imput'; did you mean 'input'?"),
        ("device", {"to": "cudda"}, "to: expected a device of PyTorch such as cuda or cuda:1, got 'cudda' (did you"),
    ],
)
def test_an_option_that_names_what_is_not_there_is_an_error_that_names_the_nearest(
    name: str, options: dict[str, Any], words: str
) -> None:
    result = check(name, nn.Linear(3, 2), torch.rand(2, 3), **options)
    assert result.status is CheckStatus.ERROR
    assert result.failure is not None
    assert words in result.failure.message
    assert result.failure.advice == "write another one among the check's options"


def test_no_warning_of_a_check_or_of_the_passes_in_it_reaches_the_user(recwarn: pytest.WarningsRecorder) -> None:
    class Kept(nn.Module):
        """Keeps what its first call computes, and warns in each."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)
            self.scale: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            warnings.warn("by the model", UserWarning, stacklevel=1)
            if self.scale is None:
                self.scale = self.layer(x).abs().max()
            return self.layer(x / self.scale)  # type: ignore[no-any-return]

    torch.set_warn_always(True)
    try:
        with torch.enable_grad():
            for name in ("repeat", "rows", "batch-size", "shapes"):
                run_checks(subject_of(Kept().eval(), torch.rand(1, 6)), [PlannedCheck(known_checks()[name])])
    finally:
        torch.set_warn_always(False)
    assert [str(one.message) for one in recwarn] == []


def test_names_of_the_command_line_win_and_keep_the_settings_of_the_zoo_file() -> None:
    settings = {"repeat": CheckSetting(xfail="known")}
    (planned,) = plan(["repeat"], settings)
    assert planned.setting.xfail == "known"
    assert plan(["none"], settings) == ()
    assert plan(None, {"repeat": CheckSetting(on=False)}) == ()
    assert [one.check.name for one in plan(["all"], settings)] == [check.name for check in CHECKS]


def test_a_model_that_does_not_run_at_all_fails_one_check() -> None:
    checks = known_checks()
    names = ("batch-size", "repeat", "rows", "layout")
    planned = [PlannedCheck(checks[name], CheckSetting()) for name in names]
    found = run_checks(subject_of(nn.Linear(3, 2), torch.rand(2, 4)), planned)
    assert [result.status for result in found] == [CheckStatus.FAILED, *[CheckStatus.NOT_APPLICABLE] * 3]
    assert found[0].failure is not None
    assert "on these inputs, before anything was checked: mat1 and mat2 shapes" in found[0].failure.message
    assert found[1].reason == "the model does not run on these inputs: see batch-size"


def test_a_size_that_is_claimed_and_refused_is_a_failure() -> None:
    class Pairs(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(-1, 2, 3) * 2

    x = torch.rand(2, 3)
    assert check("shapes", Pairs(), x).status is CheckStatus.NOT_APPLICABLE
    result = check("shapes", Pairs(), x, sizes="batch")
    assert result.status is CheckStatus.FAILED
    assert result.operation == "view_1_1"


def test_a_pattern_that_no_parameter_has_is_said() -> None:
    result = check("gradients", nn.Linear(3, 2), torch.rand(2, 3), ignore="wieght")
    assert result.notes == ("ignore: no trainable parameter is 'wieght'; did you mean 'weight'?",)
