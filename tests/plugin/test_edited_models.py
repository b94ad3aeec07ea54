"""Sixty-one edits of two models' files: each has the expected class of change, operation and outcome."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.plugin.edits.edits_of_resnet import EDITS as OF_RESNET
from tests.plugin.edits.edits_of_transformer import EDITS as OF_TRANSFORMER

EVERY = {"resnet": OF_RESNET, "transformer": OF_TRANSFORMER}
FILES = Path(__file__).with_name("edits")
MODELS = """
import importlib.util
import pathlib


def made_by(path):
    def make():
        spec = importlib.util.spec_from_file_location(path.stem.replace("-", "_"), path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.Net()

    return make


def zoo():
    return {path.stem: made_by(path) for path in sorted(pathlib.Path(__file__).parent.glob("*-*.py"))}
"""
ZOO = """
provider: "python:models.py:zoo"
rules:
  - {match: "resnet-*", input: {shape: [2, 3, 16, 16]}}
  - {match: "transformer-*", input: {shape: [2, 7], dtype: int64, range: [0, 32]}}
  - {match: "*-other-init", weights: init}
"""
CONFTEST = """
import pathlib

def pytest_runtest_teardown(item):
    from pytest_torchlens.records import to_json

    pathlib.Path(f"{item.name}.json").write_text(to_json(item.report.comparison))
"""


EXPECTED = {f"{model}-{edit.name}": (model, edit) for model, edits in EVERY.items() for edit in edits}
SWAPS = ("head-moved", "heads-swapped", "outputs-swapped")
POLICIES = {"default": (), "outputs": ("--lens-fail-on=outputs",)}


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """Store a baseline for each edit: that of the model as it is."""
    folder = pytester.mkdir("zoo")
    (folder / "models.py").write_text(MODELS, encoding="utf-8")
    (folder / "nets.yaml").write_text(ZOO, encoding="utf-8")
    pytester.makeconftest(CONFTEST)
    texts = {model: (FILES / f"{model}.py").read_text(encoding="utf-8") for model in EVERY}
    plain = {f"{model}-{kind}": texts[model] for model in EVERY for kind in ("plain", "other-init")}
    _write(folder, plain)
    _run(pytester, "--lens-update=all")
    stored = pytester.path / "lens_baselines" / "nets"
    for name, (model, _) in EXPECTED.items():
        if name not in plain:
            shutil.copy(stored / f"{model}-plain.json", stored / f"{name}.json")
    for name in plain:
        (folder / f"{name}.py").unlink()
    _write(folder, {name: edit.applied(texts[model]) for name, (model, edit) in EXPECTED.items()})
    return pytester


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")


def _run(project: pytest.Pytester, *arguments: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return outcome and comparison of each model by its name."""
    command = ("zoo/nets.yaml", "--lens-validate", "--lens-parts=replay", "--lens-no-isolate", *arguments)
    reports = [report for report in project.inline_run(*command).getreports() if report.when == "call"]
    outcomes = {report.nodeid.rpartition("::")[2]: report.outcome for report in reports}
    texts = {name: (project.path / f"{name}.json").read_text(encoding="utf-8") for name in outcomes}
    return {name: (outcome, json.loads(texts[name])) for name, outcome in outcomes.items()}


def _first(comparison: dict[str, Any]) -> dict[str, str]:
    return next(iter(comparison.get("findings", ())), {})


@pytest.mark.slow
def test_each_edit_has_its_class_of_change_at_its_operation_and_fails_where_it_should(project: pytest.Pytester):
    assert len(EXPECTED) == 61
    found = {policy: _run(project, *arguments) for policy, arguments in POLICIES.items()}
    rows = {
        name: (comparison["verdict"], _first(comparison).get("operation", ""), outcome, found["outputs"][name][0])
        for name, (outcome, comparison) in found["default"].items()
    }
    assert rows == {
        name: (edit.word, edit.operation, edit.default, edit.outputs) for name, (_, edit) in EXPECTED.items()
    }
    messages = [_first(found["default"][f"resnet-{name}"][1])["message"] for name in SWAPS]
    assert messages == [
        "moved: classes/linear() at another place in the order",
        "argument 0 is boxes/linear, was classes/linear",
        "the output's 'boxes' is /softmax, was /sigmoid",
    ]
