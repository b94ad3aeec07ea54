"""Renames, moves and true changes of a zoo's model with random weights, against its baseline."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from pytest_torchlens.cli import main

MODEL = """
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.scale = nn.Parameter(torch.ones(8))
        self.a, self.b = nn.Linear(8, 4), nn.Linear(8, 4)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        x = F.relu(self.norm(self.stem(x))).mean((2, 3))
        x = self.drop(x * self.scale)
        a = self.a(x)
        b = self.b(x)
        return {"a": a.softmax(-1), "b": b.sigmoid()}


def zoo():
    return {"net": Net}
"""
ZOO = 'provider: "python:models.py:zoo"\ndefaults:\n  input: {shape: [2, 3, 8, 8]}\n'
CONFTEST = """
import pathlib

def pytest_runtest_teardown(item):
    from pytest_torchlens.records import to_json

    if hasattr(item, "report"):
        pathlib.Path("comparison.json").write_text(to_json(item.report.comparison))
"""
RENAMED_MODULE = (("self.stem", "self.first"),)
RENAMED_PARAMETER = (("self.scale", "self.gain"),)
RENAMED_STATISTICS = (("self.norm", "self.bn"),)
MOVED = (("        a = self.a(x)\n        b = self.b(x)\n", "        b = self.b(x)\n        a = self.a(x)\n"),)
SPELLED = (("x * self.scale", "torch.mul(x, self.scale)"),)
SAME = (RENAMED_MODULE, RENAMED_PARAMETER, RENAMED_STATISTICS, RENAMED_MODULE + RENAMED_PARAMETER, MOVED)
SWAPPED = (('"a": a.softmax(-1), "b": b', '"a": b.softmax(-1), "b": a'),)
OTHER_EPS = (("BatchNorm2d(8)", "BatchNorm2d(8, eps=1e-2)"),)
OTHER_P = (("Dropout(0.1)", "Dropout(0.2)"),)
LEFT_OUT = (("x * self.scale", "x"),)
OTHER = (SWAPPED, OTHER_EPS, LEFT_OUT, RENAMED_MODULE + LEFT_OUT, RENAMED_PARAMETER + OTHER_EPS)


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    (pytester.path / "zoo.yaml").write_text(ZOO, encoding="utf-8")
    pytester.makeconftest(CONFTEST)
    compared(pytester, (), "--lens-update=all")
    return pytester


def compared(
    project: pytest.Pytester, edits: tuple[tuple[str, str], ...], *arguments: str
) -> tuple[dict[str, Any], pytest.RunResult]:
    """Return the comparison of the edited model, and the run."""
    text = MODEL
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    (project.path / "models.py").write_text(text, encoding="utf-8")
    result = project.runpytest_inprocess("zoo.yaml", "--lens-validate", "--lens-parts=replay", *arguments)
    return json.loads((project.path / "comparison.json").read_text()), result


def test_what_computes_the_same_is_a_refactor_and_passes_where_outputs_count(project: pytest.Pytester):
    for edits in SAME:
        found, result = compared(project, edits)
        assert (found["verdict"], found["fails"], found["outputs"]["same"]) == ("refactor", True, True), edits
        result.assert_outcomes(failed=1)
        _, result = compared(project, edits, "--lens-fail-on=outputs")
        result.assert_outcomes(passed=1)


def test_what_computes_something_else_is_none(project: pytest.Pytester):
    for edits in OTHER:
        found, result = compared(project, edits, "--lens-fail-on=outputs")
        assert (found["verdict"], found["fails"], "within" in found["outputs"]) == ("structure", True, False), edits
        result.assert_outcomes(failed=1)


def test_a_layer_used_twice_that_is_two_layers_now_is_none(project: pytest.Pytester):
    shared = (
        ("self.a, self.b = nn.Linear(8, 4), nn.Linear(8, 4)", "self.c = nn.Linear(8, 4)"),
        ("self.a(x)", "self.c(x)"),
        ("self.b(x)", "self.c(x)"),
    )
    compared(project, shared, "--lens-update=all")
    found, result = compared(project, (), "--lens-fail-on=outputs")
    assert (found["verdict"], found["fails"]) == ("structure", True)
    assert any("untied: a.weight and b.weight are read where c.weight was" in f["message"] for f in found["findings"])
    result.assert_outcomes(failed=1)


def test_outputs_that_changed_places_are_told_also_where_a_call_moved_for_it(project: pytest.Pytester):
    found, _ = compared(project, MOVED + SWAPPED)
    messages = {finding["operation"]: finding["message"] for finding in found["findings"]}
    assert messages["/softmax"] == "argument 0 is b/linear, was a/linear"
    assert messages["/sigmoid"] == "argument 0 is a/linear, was b/linear"


def test_a_rename_alone_says_so(project: pytest.Pytester):
    found, result = compared(project, RENAMED_PARAMETER)
    assert [finding["message"] for finding in found["findings"]] == ["renamed: scale is now gain; computes the same"]
    result.stdout.fnmatch_lines(
        [
            "*refactor at /mul; *",
            "*outputs: identical",
            "*note: compared with the values of the old names: scale → gain",
            "*to let it pass, *--lens-fail-on=outputs",
        ]
    )


def test_another_dropout_is_no_refactor_though_no_output_shows_it(project: pytest.Pytester):
    found, _ = compared(project, (("Dropout(0.1)", "Dropout(0.5)"),))
    assert (found["verdict"], found["outputs"]["same"]) == ("structure", True)


def test_a_rename_that_is_accepted_is_stored_under_its_new_name(project: pytest.Pytester):
    compared(project, RENAMED_MODULE, "--lens-update=changed")
    assert compared(project, RENAMED_MODULE)[0]["verdict"] == "identical"
    assert compared(project, ())[0]["verdict"] == "refactor"


def test_weights_of_the_models_own_keep_their_values(project: pytest.Pytester):
    (project.path / "zoo.yaml").write_text(f"{ZOO}  weights: init\n  seed: 3\n", encoding="utf-8")
    compared(project, (), "--lens-update=all")
    found, _ = compared(project, RENAMED_MODULE)
    assert found["verdict"] == "refactor"
    assert not any("old names" in note for note in found.get("notes", ()))


EDITED = (RENAMED_MODULE, RENAMED_PARAMETER, RENAMED_STATISTICS + MOVED, RENAMED_PARAMETER + OTHER_EPS, SWAPPED)


def test_headings_say_what_the_outputs_are(project: pytest.Pytester):
    for edits, arguments, heading in (
        (
            OTHER_EPS,
            (),
            "zoo:net: structure at norm/batchnorm; * of 13 * differ; outputs differ by 0.0* (limit *",
        ),
        (OTHER_EPS, ("--lens-fail-on=outputs",), "zoo:net: outputs differ by 0.0* (limit 2e-05); structure at norm/*"),
        (OTHER_P, (), "zoo:net: structure at drop/dropout; 1 of 13 operations differ; outputs identical"),
        (RENAMED_PARAMETER, (), "zoo:net: refactor at /mul; 1 of 13 operations differ; outputs identical"),
    ):
        _, result = compared(project, edits, *arguments)
        result.stdout.fnmatch_lines([heading])
        hints = [line for line in result.outlines if "to let it pass, as the outputs are the same: --lens-fail" in line]
        assert bool(hints) == ("identical" in heading)
        assert any("to accept: pytest-lens accept zoo/net" in line for line in result.outlines)
    _, result = compared(project, OTHER_EPS, "--lens-fail-on=outputs", "--tb=no")
    result.stdout.fnmatch_lines(["*outputs differ by 0.0* at /output; what differs first is structure: argument eps=*"])


@pytest.mark.parametrize("edits", EDITED, ids=range(len(EDITED)))
def test_diff_and_log_say_what_the_run_says(
    project: pytest.Pytester,
    edits: tuple[tuple[str, str], ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    for name in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "someone")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=base"]):
        subprocess.run(["git", *command], check=True)
    found, result = compared(project, edits)
    capsys.readouterr()
    assert main(["diff", "zoo/net"]) == 1
    printed = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    run = {line.strip().replace("zoo:net", "zoo/net") for line in result.outlines}
    assert set(printed) <= run
    assert printed[0].startswith(f"zoo/net: {found['verdict']}")
    assert main(["accept", "zoo/net"]) == 0
    subprocess.run(["git", "commit", "--quiet", "--all", "--message=edited"], check=True)
    capsys.readouterr()
    assert main(["log", "zoo/net"]) == 0
    row = capsys.readouterr().out.splitlines()[2].split()
    outputs = "identical" if found["outputs"].get("same") else f"{found['outputs']['error']:.2g}"
    assert (row[2], row[3], outputs in row) == (found["verdict"], found["findings"][0]["operation"], True)


def test_a_rename_against_another_baseline_is_told_from_the_values_alone(
    project: pytest.Pytester, capsys: pytest.CaptureFixture[str]
):
    compared(project, RENAMED_PARAMETER)
    path = project.path / "lens_baselines" / "zoo" / "net.json"
    path.write_text(path.read_text().replace('"model": "Net"', '"model": "Another"'))
    capsys.readouterr()
    assert main(["diff", "zoo/net"]) == 1
    printed = capsys.readouterr().out
    assert "compared with the values of the old names" not in printed
    assert "note: renamed, with other values: scale → gain (a zoo's random weights follow their names: " in printed


def test_a_rename_has_nothing_to_reproduce_but_a_name(project: pytest.Pytester, capsys: pytest.CaptureFixture[str]):
    compared(project, RENAMED_PARAMETER)
    capsys.readouterr()
    assert main(["repro", "zoo.yaml::net"]) == 1
    assert "refactor at /mul: renamed: scale is now gain; computes the same: no op" in capsys.readouterr().out


def test_a_renamed_model_is_told_with_its_earlier_name(project: pytest.Pytester, capsys: pytest.CaptureFixture[str]):
    _, result = compared(project, (('{"net": Net}', '{"mesh": Net}'),))
    old, new = "lens_baselines/zoo/net.json", "lens_baselines/zoo/mesh.json"
    result.stdout.fnmatch_lines([f"a new model computes what {old} has: if it was renamed, git mv {old} {new}"])
    capsys.readouterr()
    assert main(["diff"]) == 0
    assert "zoo/mesh: new: it has no baseline yet, and computes what zoo/net has (renamed?); store" in (
        capsys.readouterr().out
    )
    (project.path / old).rename(project.path / new)
    found, _ = compared(project, (('{"net": Net}', '{"mesh": Net}'),))
    assert found["verdict"] == "identical"
