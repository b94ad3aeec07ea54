"""Each limit of the reports on both sides: what is just shown, and what is left out."""

from __future__ import annotations

import csv
import importlib
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_torchlens.records import AuditFinding
from pytest_torchlens.records import Measurements
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import ModuleRecord
from pytest_torchlens.records import Outcome
from pytest_torchlens.records import Severity
from pytest_torchlens.records import Status
from pytest_torchlens.report import ResultTable
from pytest_torchlens.report import github_annotations
from pytest_torchlens.report import markdown
from pytest_torchlens.report import terminal_table
from pytest_torchlens.report import verbose_text
from pytest_torchlens.report.layer_table import Costs
from pytest_torchlens.report.layer_table import module_tree
from pytest_torchlens.report.summary import counts
from pytest_torchlens.report.summary import weight
from tests.draw.samples import Sketch
from tests.draw.samples import alexnet
from tests.report.samples import passed
from tests.report.samples import raised
from tests.report.samples import refuted
from tests.report.samples import run


def row(tmp_path: Path, report: ModelReport) -> dict[str, str]:
    ResultTable(tmp_path / "t.csv").add(report, run(report).environment)
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        (found,) = csv.DictReader(file)
    return found


@pytest.mark.parametrize("length", [200, 201])
def test_a_reason_of_the_table_has_200_characters_at_most(length: int, tmp_path: Path):
    report = raised()
    assert report.error is not None
    error = replace(report.error, type="", message="x" * length)
    assert row(tmp_path, replace(report, error=error))["reason"] == "x" * 200


def test_columns_of_the_users_stay_when_a_model_runs_again(tmp_path: Path):
    (tmp_path / "t.csv").write_text("zoo,model,mine,params\ntorchvision,alexnet,keep me,1\n", encoding="utf-8")
    found = row(tmp_path, passed())
    assert (found["mine"], found["params"]) == ("keep me", "61100840")


def of_kinds(count: int) -> list[str]:
    net = Sketch("Net")
    for place in range(count):
        net.op(f"kind{place:02}", call_id=place, func_time_elapsed=float(count - place))
    return [bar.name for bar in Costs(net.record()).by_type()]


def test_twelve_bars_and_then_the_others():
    assert of_kinds(12) == [f"kind{place:02}" for place in range(12)]
    assert of_kinds(13) == [*(f"kind{place:02}" for place in range(12)), "1 other"]


def of_modules(outer: int) -> set[str]:
    """Return the names of the bars of a model with so many outer modules, each with two inner ones."""
    net = Sketch("Net")
    for place in range(outer):
        net.module(f"m{place}", "Block")
        for inner in range(2):
            net.module(f"m{place}.{inner}", "Linear")
            net.op(
                "linear",
                leaf=f"m{place}.{inner}",
                inside=(f"m{place}",),
                call_id=2 * place + inner,
                func_time_elapsed=1.0,
            )
    return {bar.name for bar in Costs(net.record()).by_module()}


def test_the_outermost_level_with_three_modules_is_shown():
    assert of_modules(2) == {"m0.0", "m0.1", "m1.0", "m1.1"}
    assert of_modules(3) == {"m0", "m1", "m2"}


def test_flops_and_shares_are_those_of_the_first_call_too():
    net = Sketch("Net")
    net.module("a", "Linear")
    net.op("linear", leaf="a", call_id=0, func_time_elapsed=1.0)
    net.op("relu", call_id=1, func_time_elapsed=3.0)
    history = net.record()
    costs = Costs(history, Measurements(operations=("linear_1_1", "relu_1_2"), operation_flops=(7, 1)))
    assert [costs.flops(op) for op in costs.calls] == [7, 1]
    tree = {branch.module.address: branch for branch in module_tree(costs)}
    assert (tree[""].share, tree["a"].share) == (1.0, 0.25)
    assert (tree[""].flops, tree["a"].flops) == (8, 7)


def test_each_list_of_modules_that_opens_is_closed():
    modules = [
        ModuleRecord(address="", module_type="Net", children=("a", "b")),
        ModuleRecord(address="a", module_type="Block", children=("a.x",), num_params=1),
        ModuleRecord(address="a.x", module_type="Linear", num_params=2),
        ModuleRecord(address="b", module_type="Linear", num_params=4),
    ]
    tree = module_tree(Costs(replace(alexnet(), modules=tuple(modules))))
    assert [(branch.module.address, branch.opens, branch.num_closing) for branch in tree] == [
        ("", True, 0),
        ("a", True, 0),
        ("a.x", False, 1),
        ("b", False, 1),
    ]
    assert [branch.num_params for branch in tree] == [7, 3, 2, 4]


def test_activations_are_counted_in_units_of_1024_times_1024_bytes():
    history = replace(alexnet(), tensor_fsize_total=3 * 2**20)
    text = terminal_table([passed(history=history)], width=120)
    assert " 3.0 " in text.splitlines()[2]


def test_a_model_none_of_whose_parts_was_judged_has_no_share_of_them():
    report = passed()
    assert report.verdict is not None
    parts = tuple(replace(part, status=Status.NOT_RUN, reason="why") for part in report.verdict.parts)
    text = terminal_table([replace(report, verdict=replace(report.verdict, parts=parts))], width=120)
    assert "0/5" not in text


def test_good_models_fill_the_first_lines_whatever_failed_before_them():
    models = [refuted("bad1"), refuted("bad2"), *(passed(f"good{place}") for place in range(3))]
    table = terminal_table(models, width=120, top=2).split("\n\n")[0]
    names = [line.split()[0] for line in table.splitlines()[2:7]]
    assert names == [f"torchvision:{name}" for name in ("bad1", "bad2", "good0", "good1")] + ["…"]


def test_five_slowest_and_five_largest_operations_are_named():
    lines = verbose_text(passed(), 2).splitlines()
    assert [sum(line.startswith(f"  {word}") for line in lines) for word in ("slowest", "largest")] == [5, 5]
    (kinds,) = (line for line in lines if line.startswith("  kinds"))
    assert kinds.count(" call") == 5


def with_findings(*severities: Severity) -> ModelReport:
    found = tuple(AuditFinding(rule="r", severity=one, title="t", meaning="m", advice="a") for one in severities)
    return replace(passed(), findings=found)


def test_one_severe_finding_weighs_more_than_fifty_milder_ones():
    high, medium, low = Severity
    order = [with_findings(*[low] * 50), with_findings(medium), with_findings(*[medium] * 50), with_findings(high)]
    weights = [weight(report) for report in order]
    assert weights == sorted(set(weights))


def test_failed_models_are_counted_first():
    models = [passed(), refuted(), replace(passed(), outcome=Outcome.SKIPPED)]
    assert list(counts(models)) == ["failed", "passed", "skipped"]


@pytest.mark.parametrize(("count", "said"), [(300, ""), (301, "and 1 more model")])
def test_a_summary_has_three_hundred_rows(count: int, said: str):
    text = markdown(run(*[passed()] * count))
    assert text.count("\n| torchvision:alexnet") == 300
    assert ("more model" in text) is bool(said)
    assert said in text


@pytest.mark.parametrize(("count", "said"), [(50, ""), (51, "and 1 more failed model")])
def test_a_summary_has_fifty_failures(count: int, said: str):
    text = markdown(run(*[raised()] * count))
    assert text.count("\n- ❌") == 50
    assert ("more failed model" in text) is bool(said)
    assert said in text


@pytest.mark.parametrize(("count", "shown"), [(10, 10), (11, 10)])
def test_ten_annotations(count: int, shown: int, tmp_path: Path):
    assert len(list(github_annotations([raised(f"m{place}") for place in range(count)], tmp_path))) == shown


def test_a_summary_is_measured_in_bytes(monkeypatch: pytest.MonkeyPatch):
    module = importlib.import_module("pytest_torchlens.report.markdown")
    models = run(passed("日" * 90))
    whole = markdown(models)
    assert len(whole.encode()) > len(whole) + 100
    monkeypatch.setattr(module, "MOST_BYTES", len(whole.encode()))
    assert markdown(models) == whole
    monkeypatch.setattr(module, "MOST_BYTES", len(whole.encode()) - 1)
    assert markdown(models).endswith(": the report has the rest.\n")
