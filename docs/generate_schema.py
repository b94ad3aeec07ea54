"""Write the JSON Schema of the reports: `python docs/generate_schema.py`.

pydantic derives it from the records; what each field means is in their docstrings.
"""

from __future__ import annotations

import json
from typing import Any

from generate_fields import fields
from pydantic import TypeAdapter

from pytest_torchlens import records
from pytest_torchlens.records import SCHEMA
from pytest_torchlens.records import RunReport
from pytest_torchlens.report import SCHEMA_FILE

_NO_NUMBERS = {"enum": ["nan", "inf", "-inf"]}
"""How JSON has what is no number."""


def schema() -> dict[str, Any]:
    """Return the schema: of ``report.json``, and under ``$defs/ModelReport`` of each model's file."""
    made = TypeAdapter(RunReport).json_schema()
    kinds = made.pop("$defs") | {"RunReport": made}
    about = f"Reports of pytest-torchlens, version {SCHEMA}. A field may be added within a version, none is renamed or"
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"pytest-torchlens report {SCHEMA}",
        "description": f"{about} removed. What is left out has its default. A model's own file is a ModelReport.",
        "$ref": "#/$defs/RunReport",
        "$defs": {name: _described(name, kinds[name]) for name in sorted(kinds)},
    }


def _described(name: str, kind: dict[str, Any]) -> dict[str, Any]:
    said = dict(fields(getattr(records, name)))
    for field, value in kind.get("properties", {}).items():
        value.pop("title", None)
        if text := said.get(field, "").replace("\\|", "|").replace("\\<", "<"):
            value["description"] = text
    kind["description"] = kind.get("description", "").replace("``", "`")
    return _with_no_numbers(kind)


def _with_no_numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_no_numbers(item) for item in value]
    if not isinstance(value, dict):
        return value
    inner = {key: _with_no_numbers(item) for key, item in value.items()}
    if inner.get("type") == "number":
        return {"anyOf": [{"type": "number"}, _NO_NUMBERS]} | {k: v for k, v in inner.items() if k != "type"}
    return inner


def text() -> str:
    """Return the file's text."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(text(), encoding="utf-8")
