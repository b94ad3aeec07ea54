from __future__ import annotations

import pytest

from pytest_torchlens.records import Outcome
from pytest_torchlens.records import RunReport
from pytest_torchlens.records import from_json

pytest.importorskip("xdist")
pytestmark = pytest.mark.usefixtures("tiny_zoo")


def read(pytester: pytest.Pytester) -> RunReport:
    return from_json((pytester.path / "out" / "report.json").read_text(encoding="utf-8"), RunReport)


def test_results_of_workers_are_gathered_once(pytester: pytest.Pytester):
    result = pytester.runpytest_subprocess(
        "--lens-zoo=tiny:linear,mlp,mlp_tanh,raises", "--lens-validate", "--lens-report=out", "-n2", "--junitxml=j.xml"
    )
    result.assert_outcomes(passed=3, failed=1)
    assert [model.name for model in read(pytester).models] == ["linear", "mlp", "mlp_tanh", "raises"]
    assert all(model.history for model in read(pytester).models if model.name != "raises")
    assert result.stdout.str().count("= lens =") == 1
    assert 'name="lens.ops"' in pytester.path.joinpath("j.xml").read_text()


def test_a_worker_that_dies_costs_one_model(pytester: pytest.Pytester):
    result = pytester.runpytest_subprocess("--lens-zoo=tiny:dies,linear,mlp", "--lens-report=out", "-n1")
    result.assert_outcomes(passed=2, failed=1)
    models = {model.name: model for model in read(pytester).models}
    assert models["dies"].outcome is Outcome.FAILED
    assert models["dies"].error is not None
    assert "crashed" in models["dies"].error.message
    assert models["linear"].outcome is models["mlp"].outcome is Outcome.PASSED
