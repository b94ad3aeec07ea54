"""Which of many models run, in what order, and how a run goes on that was cut short."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from pytest_torchlens.plugin.progress import Estimate
from pytest_torchlens.records import RunReport
from pytest_torchlens.records import from_json

MODELS = """
import pathlib
import torch
from torch import nn

class Sums(nn.Module):
    def forward(self, x):
        return x.sum()

class Stops(nn.Module):
    def forward(self, x):
        if pathlib.Path("stop").exists():
            raise KeyboardInterrupt
        return x.sum()

def zoo():
    names = ["ant_1", "ant_2", "ant_3", "ant_4", "bee_1", "bee_2", "cat_1"]
    return {name: Sums for name in names} | {"stops": Stops}
"""
ZOO = """
provider: "python:models.py:zoo"
defaults: {input: {shape: [2]}}
rules:
  - {match: ant_1, size: huge}
  - {match: bee_1, size: slow}
"""


@pytest.fixture(autouse=True)
def zoo(pytester: pytest.Pytester) -> None:
    folder = pytester.mkdir("model_zoo_configs")
    (folder / "models.py").write_text(MODELS, encoding="utf-8")
    (folder / "pets.yaml").write_text(ZOO, encoding="utf-8")


def collected(pytester: pytest.Pytester, *arguments: str) -> list[str]:
    result = pytester.runpytest_inprocess("--lens-zoo=pets", "--co", "-q", *arguments)
    return [line.partition("::")[2] for line in result.outlines if "::" in line]


def remember(pytester: pytest.Pytester, **costs: float) -> None:
    path = pytester.path / ".pytest_cache" / "v" / "lens" / "costs"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({f"model_zoo_configs/pets.yaml::{name}": cost for name, cost in costs.items()}))


def test_the_cheapest_come_first_by_size_class(pytester: pytest.Pytester):
    assert collected(pytester) == ["ant_2", "ant_3", "ant_4", "bee_2", "cat_1", "stops", "bee_1", "ant_1"]


def test_what_models_took_before_counts_more(pytester: pytest.Pytester):
    remember(pytester, ant_1=0.1, ant_2=500, cat_1=0.2)
    assert collected(pytester) == ["ant_1", "cat_1", "ant_3", "ant_4", "bee_2", "stops", "bee_1", "ant_2"]


def test_a_limit_keeps_the_cheapest_after_all_deselections(pytester: pytest.Pytester):
    remember(pytester, ant_3=0.1)
    assert collected(pytester, "--lens-limit=2") == ["ant_3", "ant_2"]
    assert collected(pytester, "--lens-limit=2", "-k", "bee or cat") == ["bee_2", "cat_1"]


def test_sizes(pytester: pytest.Pytester):
    assert collected(pytester, "--lens-size=slow,huge") == ["bee_1", "ant_1"]


def test_a_sample_takes_all_families_alike_and_is_the_same_for_a_seed(pytester: pytest.Pytester):
    first = collected(pytester, "--lens-sample=4")
    assert Counter(name[:3] for name in first) == {"ant": 1, "bee": 1, "cat": 1, "sto": 1}
    assert collected(pytester, "--lens-sample=4") == first
    others = {tuple(collected(pytester, f"--lens-sample=4,{seed}")) for seed in range(1, 6)}
    assert others != {tuple(first)}
    assert len(collected(pytester, "--lens-sample=100")) == 8


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--lens-limit=0", "*--lens-limit: expected a positive number of models, got '0'"),
        ("--lens-sample=many", "*--lens-sample: expected a positive number of models, got 'many'"),
        ("--lens-sample=3,x", "*--lens-sample: expected a seed of 0 or more, got 'x'"),
        ("--lens-size=fats", "*--lens-size: expected fast, slow, huge, got 'fats' (did you mean 'fast'?)"),
        ("--lens-size=quick", "*--lens-size: expected fast, slow, huge, got 'quick'"),
    ],
)
def test_what_is_wrong_is_a_usage_error(pytester: pytest.Pytester, option: str, message: str):
    result = pytester.runpytest_inprocess("--lens-zoo=pets", option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_tests_of_ones_own_stay_where_they_are(pytester: pytest.Pytester):
    pytester.makepyfile(test_b="def test_b(): pass", test_a="def test_a(): pass")
    result = pytester.runpytest_inprocess("test_b.py", "--lens-zoo=pets:bee_*", "test_a.py", "--co", "-q")
    names = [line.partition("::")[2] for line in result.outlines if "::" in line]
    assert sorted(names) == ["bee_1", "bee_2", "test_a", "test_b"]
    assert names.index("bee_2") < names.index("bee_1")
    assert names.index("test_b") < names.index("test_a")


def test_costs_are_kept_for_the_next_run(pytester: pytest.Pytester):
    pytester.runpytest_inprocess("--lens-zoo=pets:ant_1,cat_1")
    known = json.loads((pytester.path / ".pytest_cache" / "v" / "lens" / "costs").read_text())
    assert set(known) == {"model_zoo_configs/pets.yaml::ant_1", "model_zoo_configs/pets.yaml::cat_1"}
    assert all(seconds > 0 for seconds in known.values())


def cut_short(pytester: pytest.Pytester, *arguments: str) -> None:
    """Run until a model stops the run, when ant_2, ant_3, ant_4, bee_2 and cat_1 have passed."""
    stop = pytester.path / "stop"
    stop.touch()
    result = pytester.runpytest_inprocess("--lens-zoo=pets", "--lens-validate", *arguments, no_reraise_ctrlc=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    stop.unlink()


def test_a_run_that_was_cut_short_goes_on(pytester: pytest.Pytester):
    cut_short(pytester)
    one = pytester.runpytest_inprocess("--lens-zoo=pets:cat_1", "--lens-validate")  # another run takes nothing away
    one.assert_outcomes(passed=1)
    pytester.runpytest_inprocess("--lens-zoo=pets", "--lens-validate", "--lens-resume").assert_outcomes(
        passed=3, deselected=5
    )


def test_a_report_in_another_folder_is_another_run(pytester: pytest.Pytester):
    cut_short(pytester)
    arguments = ["--lens-zoo=pets", "--lens-validate", "--lens-resume", "--lens-report=out"]
    pytester.runpytest_inprocess(*arguments).assert_outcomes(passed=8)


def test_what_passed_before_is_in_the_report(pytester: pytest.Pytester):
    cut_short(pytester, "--lens-report=out")
    arguments = ["--lens-zoo=pets", "--lens-validate", "--lens-resume", "--lens-report=out"]
    result = pytester.runpytest_inprocess(*arguments)
    result.assert_outcomes(passed=3, deselected=5)
    result.stdout.fnmatch_lines(["lens: 8 models, 5 of them done before, torch *"])
    report = from_json((pytester.path / "out" / "report.json").read_text(encoding="utf-8"), RunReport)
    assert len(report.models) == 8
    assert all(model.verdict for model in report.models)
    again = pytester.runpytest_inprocess(*arguments)  # the run has ended: there is nothing to resume
    again.assert_outcomes(passed=8)
    assert not list((pytester.path / ".pytest_cache" / "d" / "lens-runs").iterdir())


def test_a_changed_zoo_file_is_another_run(pytester: pytest.Pytester):
    cut_short(pytester)
    path = pytester.path / "model_zoo_configs" / "pets.yaml"
    path.write_text(ZOO.replace("[2]", "[3]"))
    pytester.runpytest_inprocess("--lens-zoo=pets", "--lens-validate", "--lens-resume").assert_outcomes(passed=8)


def test_all_done_is_no_failure(pytester: pytest.Pytester):
    cut_short(pytester)
    result = pytester.runpytest_inprocess("--lens-zoo=pets:ant_2,ant_3", "--lens-validate", "--lens-resume")
    assert result.ret == pytest.ExitCode.OK


def test_resuming_needs_the_cache(pytester: pytest.Pytester):
    result = pytester.runpytest_inprocess("--lens-zoo=pets", "--lens-resume", "-p", "no:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--lens-resume needs pytest's cache*"])


def test_without_the_cache_all_else_works(pytester: pytest.Pytester):
    pytester.runpytest_inprocess("--lens-zoo=pets:ant_*", "-p", "no:cacheprovider").assert_outcomes(passed=4)


@pytest.mark.slow
def test_workers_agree_on_what_is_left(pytester: pytest.Pytester):
    pytest.importorskip("xdist")
    cut_short(pytester)
    arguments = ["--lens-zoo=pets", "--lens-validate", "--lens-resume", "-n2", "--lens-limit=7"]
    result = pytester.runpytest_subprocess(*arguments)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*cat_1 *passed*"])


def test_the_time_left():
    estimate = Estimate({"a": 10.0, "b": 10.0, "c": 100.0, "d": 10000.0}, workers=1)
    assert str(estimate) == "0 of 4"
    estimate.end("a", 5.0)
    assert str(estimate) == "1 of 4, about 1.4 h left"
    estimate.end("d", 6000.0)
    assert str(estimate) == "2 of 4, about 1 min left"
    estimate.end("c", 1.0)
    assert str(estimate) == "3 of 4, about 6 s left"
    estimate.end("b", 1.0)
    assert str(estimate) == "4 of 4"
    assert str(Estimate({"a": 1.0, "b": 100.0}, workers=2)) == "0 of 2"
