from __future__ import annotations

import csv

import pytest

pytestmark = pytest.mark.usefixtures("tiny_zoo")


def rows(pytester: pytest.Pytester) -> dict[str, dict[str, str]]:
    with (pytester.path / "results" / "tiny.csv").open(newline="") as file:
        return {row["model"]: row for row in csv.DictReader(file)}


def test_a_row_a_model(pytester: pytest.Pytester):
    pytester.runpytest_inprocess(
        "--lens-zoo=tiny:mlp,raises,drifts", "--lens-validate", "--lens-table=results/tiny.csv"
    )
    found = rows(pytester)
    assert list(found) == ["drifts", "mlp", "raises"]
    mlp = found["mlp"]
    assert (mlp["zoo"], mlp["params"], mlp["operations"], mlp["verdict"]) == ("tiny", "23", "3", "passed")
    assert mlp["flops"] == str(2 * 2 * 4 * 3 + 2 * 2 * 3 * 2)
    assert mlp["inputs"] == "input: float32[2, 4]"
    assert float(mlp["forward_ms"]) > 0
    assert float(mlp["validate_ratio"]) > 1
    assert mlp["torch"]
    assert (found["raises"]["verdict"], found["raises"]["reason"]) == (
        "failed in forward",
        "RuntimeError: boom in forward",
    )
    assert found["drifts"]["verdict"] == "failed"
    assert found["drifts"]["reason"].startswith("failed (")


def test_rows_of_earlier_runs_stay_until_replaced(pytester: pytest.Pytester):
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp,linear", "--lens-table=results/tiny.csv")
    assert rows(pytester)["mlp"]["verdict"] == "passed"
    assert (rows(pytester)["mlp"]["edges"], rows(pytester)["mlp"]["flops"]) == ("", "")
    pytester.runpytest_inprocess("--lens-zoo=tiny:mlp", "--lens-validate", "--lens-table=results/tiny.csv")
    assert list(rows(pytester)) == ["linear", "mlp"]
    assert rows(pytester)["mlp"]["edges"]


def test_workers_share_one_table(pytester: pytest.Pytester):
    pytest.importorskip("xdist")
    pytester.runpytest_subprocess("--lens-zoo=tiny:mlp,linear,dies", "--lens-table=results/tiny.csv", "-n1")
    assert {name: row["verdict"] for name, row in rows(pytester).items()}["mlp"] == "passed"
    assert len(rows(pytester)) == 3
