"""The published JSON Schema is what the records are, and reports keep to it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import torch

import pytest_torchlens as tl
from pytest_torchlens.records import Environment
from pytest_torchlens.records import RunPart
from pytest_torchlens.report import SCHEMA_FILE
from pytest_torchlens.report import page_path
from pytest_torchlens.report import write_site
from tests.models import RecurrentNetwork
from tests.report.samples import passed
from tests.report.samples import raised
from tests.report.samples import refuted
from tests.report.samples import run

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def schema():
    return json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))


def test_it_is_up_to_date(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    monkeypatch.delitem(sys.modules, "generate_fields", raising=False)
    import generate_schema

    assert SCHEMA_FILE.read_text(encoding="utf-8") == generate_schema.text(), "run: python docs/generate_schema.py"


def test_reports_keep_to_it(schema, tmp_path):
    history = tl.log_forward_pass(RecurrentNetwork(), torch.rand(5, 5)).record()
    models = passed(history=history), raised(), replace(refuted(), forward_ms=float("nan"))
    given = replace(run(*models), parts=(RunPart(environment=Environment(torch="2.13")),))
    write_site(given, given.models, tmp_path)
    valid = jsonschema.Draft202012Validator(schema)
    valid.validate(json.loads((tmp_path / "report.json").read_text(encoding="utf-8")))
    one = valid.evolve(schema=schema | {"$ref": "#/$defs/ModelReport"})
    for model in models:
        one.validate(json.loads((tmp_path / page_path(model)).with_suffix(".json").read_text(encoding="utf-8")))


@pytest.mark.parametrize("damage", [{"outcome": "fine"}, {"name": 3}, {"verdict": {"parts": "all"}}, {"zoo": None}])
def test_it_finds_what_is_no_report(schema, damage):
    report = {"zoo": "z", "name": "n"} | damage
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(report, schema | {"$ref": "#/$defs/ModelReport"})


def test_every_field_is_described(schema):
    whole = {"ModelReport", "RunReport", "Verdict", "PartVerdict", "Operation", "HistoryRecord"}
    obvious = {"zoo", "name", "status", "models", "environment", "command", "parts"}
    missing = {
        f"{kind}.{name}"
        for kind in whole
        for name, field in schema["$defs"][kind]["properties"].items()
        if "description" not in field and name not in obvious
    }
    assert missing == set()
