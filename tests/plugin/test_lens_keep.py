from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_torchlens.cli import main
from tests.plugin.kernels import FINE
from tests.plugin.kernels import MODELS
from tests.plugin.kernels import ROUGH
from tests.plugin.kernels import WRONG
from tests.plugin.kernels import accused
from tests.plugin.kernels import compared
from tests.plugin.kernels import make_project


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    return make_project(pytester)


def store(project: pytest.Pytester, *arguments: str, model: str = "net", **kernels: float) -> None:
    compared(project, "--lens-update=all", "--lens-keep=activations", *arguments, model=model, **kernels)


def passes(project: pytest.Pytester) -> list[Path]:
    return sorted((project.path / ".lens" / "activations").glob("net/*.tensors/*"))


def test_a_change_behind_a_change_is_seen_where_activations_were_kept(project: pytest.Pytester):
    store(project)
    found, result = compared(project, "--lens-fail-on=local-change", "--lens-report=out", gelu=ROUGH, silu=ROUGH)
    (report,) = json.loads((project.path / "out" / "report.json").read_text())["models"]
    assert report["comparison"] == found
    page = (project.path / "out" / "models" / "net" / "net.html").read_text()
    assert "from float64" in page
    assert accused(found) == {"/gelu": "local-change", "/silu": "local-change"}
    alone = found["findings"][1]["alone"]
    assert alone["nrms"] == pytest.approx(ROUGH, rel=0.1)  # its own error, without what it inherits
    assert alone["exactness"] == "less exact"
    result.stdout.fnmatch_lines(
        [
            "*/silu: local-change: on the baseline's inputs it computes other values",
            "*from the same operation in float64: RMS * before, * now: less exact",
            "*note: run again on the baseline's inputs: * operations; with other results: 1 gelu, 1 silu",
        ]
    )


def test_without_them_the_second_is_taken_for_inherited(project: pytest.Pytester):
    compared(project, "--lens-update=all")
    assert not passes(project)
    found, _ = compared(project, gelu=ROUGH, silu=ROUGH)
    assert accused(found) == {"/gelu": "local-change"}
    assert "alone" not in found["findings"][0]


def test_an_operation_that_only_inherits_is_not_accused(project: pytest.Pytester):
    store(project, model="steep")
    found, result = compared(project, model="steep", gelu=ROUGH)
    assert accused(found) == {"/output": "regression", "/gelu": "local-change"}  # though pow gives 2,000 times as much
    result.assert_outcomes(failed=1)
    found, result = compared(project, "--lens-fail-on=output:1", model="steep", gelu=ROUGH)
    assert found["verdict"] == "local-change"
    result.assert_outcomes(passed=1)


def test_one_that_is_steep_is_accused_where_nothing_was_kept(project: pytest.Pytester):
    compared(project, "--lens-update=all", model="steep")
    found, _ = compared(project, model="steep", gelu=ROUGH)
    assert accused(found)["/pow"] == "regression"


def test_a_regression_behind_a_regression_is_found(project: pytest.Pytester):
    store(project)
    found, result = compared(project, gelu=WRONG, silu=WRONG)
    assert accused(found) == {"/gelu": "regression", "/silu": "regression"}
    assert found["counts"]["regression"] == 2
    result.assert_outcomes(failed=1)


def test_what_became_more_exact_is_no_regression_and_the_way_back_is_one(project: pytest.Pytester):
    store(project, silu=3.5e-6)
    found, result = compared(project, silu=-1e-6)  # together beyond the limit, each within rounding
    assert accused(found) == {"/silu": "local-change"}
    assert found["findings"][0]["alone"]["exactness"] == "more exact"
    result.assert_outcomes(passed=1)
    found, result = compared(project, silu=-1e-6, gelu=WRONG)
    assert accused(found)["/gelu"] == "regression"
    store(project)
    found, result = compared(project, "--lens-fail-on=output:1", silu=WRONG)
    assert accused(found) == {"/silu": "regression"}
    assert found["findings"][0]["alone"]["exactness"] == "less exact"
    result.assert_outcomes(failed=1)


def test_a_baseline_that_was_wrong_is_not_excused_without_a_look(project: pytest.Pytester):
    store(project, silu=WRONG)
    found, result = compared(project, "--lens-fail-on=output:1")
    assert accused(found) == {"/silu": "regression"}
    assert found["findings"][0]["alone"]["exactness"] == "more exact"
    result.assert_outcomes(failed=1)


def test_the_activations_of_baseline_and_pending_run_are_kept_and_no_others(project: pytest.Pytester):
    store(project)
    (first,) = passes(project)
    compared(project, "--lens-keep=activations")
    assert passes(project) == [first]
    for error in (ROUGH, WRONG):
        compared(project, "--lens-keep=activations", gelu=error)
        assert len(passes(project)) == 2
        assert first in passes(project)
    main(["accept", "*", "--root", str(project.path)])
    compared(project, "--lens-keep=activations", gelu=WRONG)
    (last,) = passes(project)
    assert last != first
    found, _ = compared(project, "--lens-fail-on=output:1")
    assert found["findings"][0]["alone"]["exactness"] == "more exact"


def test_they_are_of_no_use_to_another_baseline(project: pytest.Pytester):
    store(project)
    compared(project, "--lens-update=all", gelu=WRONG)
    found, _ = compared(project)
    assert "alone" not in found["findings"][0]


def test_damaged_activations_are_told_and_not_used(project: pytest.Pytester):
    store(project)
    (file,) = passes(project)[0].glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[len(content) // 2 :] = b"\x7f" * (len(content) - len(content) // 2)
    file.write_bytes(content)
    found, _ = compared(project, gelu=ROUGH)
    assert found["findings"][0]["change"] == "local-change"
    assert any("not run again: " in note and "damaged" in note for note in found["notes"])
    file.unlink()
    assert any("not run again: " in note for note in compared(project, gelu=ROUGH)[0]["notes"])
    (passes(project)[0] / "index.json").write_text("{")
    assert any("cannot be used" in note for note in compared(project, gelu=ROUGH)[0]["notes"])


def test_activations_and_times_are_out_of_gits_sight_and_go_with_their_baseline(project: pytest.Pytester):
    store(project)
    assert [path.name for path in (project.path / ".lens" / "times").rglob("*.json")] == ["net.json"]
    assert (project.path / ".lens" / ".gitignore").read_text() == "*\n"
    (project.path / "zoo" / "models.py").write_text(MODELS.replace('"net": Net, ', ""))
    project.runpytest_inprocess("zoo/net.yaml", "--lens-validate", "--lens-parts=replay", "--lens-update=unused")
    assert not passes(project)
    assert "net.json" not in [path.name for path in (project.path / ".lens" / "times").rglob("*.json")]


def test_a_model_in_a_process_of_its_own_keeps_and_compares_too(project: pytest.Pytester):
    store(project, gelu=WRONG)  # the other process has PyTorch's own kernels
    found, _ = compared(project, "--lens-isolate", "--lens-keep=activations")
    gelu = next(finding for finding in found["findings"] if finding["operation"] == "/gelu")
    assert gelu["alone"]["exactness"] == "more exact"
    assert len(passes(project)) == 2


def test_the_ini_key_does_the_same_for_lens_check(project: pytest.Pytester):
    project.makeini("[pytest]\nlens_keep = activations")
    project.makepyfile(
        """
        import torch

        def test_gelu(lens_trace, lens_check):
            x = torch.linspace(-3, 3, 64)
            found = lens_check(lens_trace(torch.nn.GELU(), x), fail_on="none")
            print([finding.alone and finding.alone.exactness.value for finding in found.findings])
        """
    )
    kernels = project.path / "kernels.json"
    kernels.write_text(json.dumps({"gelu": ROUGH}))
    project.runpytest_inprocess("--lens-validate", "--lens-update=new").assert_outcomes(passed=1)
    kernels.write_text(json.dumps({"gelu": FINE}))
    project.runpytest_inprocess("-s").stdout.fnmatch_lines(["*['more exact']*"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--lens-validate", "--lens-keep=activation"],
            "*--lens-keep: expected activations, got 'activation' (did you mean 'activations'?)",
        ),
        (["--lens-keep=activations"], "*--lens-keep needs --lens-validate, which compares models with baselines"),
    ],
)
def test_wrong_options_are_usage_errors(arguments: list[str], said: str, project: pytest.Pytester):
    result = project.runpytest_inprocess("zoo/net.yaml", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])
