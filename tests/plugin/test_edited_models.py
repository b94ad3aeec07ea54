"""Fifty-six edits of two models' files: each is told by its word, at its operation, and fails where it should."""

from __future__ import annotations

import json
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
  - {match: "*-init", weights: init}
"""
CONFTEST = """
import pathlib

def pytest_runtest_teardown(item):
    from pytest_torchlens.records import to_json

    pathlib.Path(f"{item.name}.json").write_text(to_json(item.report.comparison))
"""


POLICIES = {"default": (), "outputs": ("--lens-fail-on=outputs",)}


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """Store baselines of the models as they are: one for each edit."""
    folder = pytester.mkdir("zoo")
    (folder / "models.py").write_text(MODELS, encoding="utf-8")
    (folder / "nets.yaml").write_text(ZOO, encoding="utf-8")
    pytester.makeconftest(CONFTEST)
    _write(folder, edited=False)
    _run(pytester, "--lens-update=all")
    _write(folder, edited=True)
    return pytester


def _write(folder: Path, edited: bool) -> None:
    for model, edits in EVERY.items():
        text = (FILES / f"{model}.py").read_text(encoding="utf-8")
        for edit in edits:
            (folder / f"{model}-{edit.name}.py").write_text(edit.applied(text) if edited else text, encoding="utf-8")


def _run(project: pytest.Pytester, *arguments: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return outcome and comparison of each model by its name."""
    command = ("zoo/nets.yaml", "--lens-validate", "--lens-parts=replay", "--lens-no-isolate", *arguments)
    run = project.inline_run(*command)
    outcomes = {
        report.nodeid.rpartition("::")[2]: report.outcome for report in run.getreports() if report.when == "call"
    }
    return {
        name: (outcome, json.loads((project.path / f"{name}.json").read_text())) for name, outcome in outcomes.items()
    }


def _told(comparison: dict[str, Any]) -> tuple[str, str]:
    """Return the word, and the operation that is named first."""
    return comparison["verdict"], next((found.get("operation", "") for found in comparison.get("findings", ())), "")


def test_each_edit_is_told_by_its_word_at_its_operation_and_fails_where_it_should(project: pytest.Pytester):
    found = {policy: _run(project, *arguments) for policy, arguments in POLICIES.items()}
    expected = {f"{model}-{edit.name}": edit for model, edits in EVERY.items() for edit in edits}
    assert len(expected) == 56
    rows = {
        name: (*_told(comparison), outcome, found["outputs"][name][0])
        for name, (outcome, comparison) in found["default"].items()
    }
    assert rows == {name: (edit.word, edit.operation, edit.default, edit.outputs) for name, edit in expected.items()}
