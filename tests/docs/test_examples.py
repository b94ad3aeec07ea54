"""The examples of the docs run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_torchlens.report import write_site
from tests.report.samples import passed
from tests.report.samples import raised
from tests.report.samples import run

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["history.md", "edits.md", "named_edits.md", "effects.md", "recorder.md"])
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), name, "exec"), {})  # noqa: S102 - our own text


def test_the_examples_of_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "reports.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    models = replace(passed("slow"), forward_ms=200.0), passed("fast"), raised("broken")
    write_site(run(*models), models, tmp_path / "lens-report")
    found: dict[str, object] = {}
    exec("\n".join(blocks), found)  # noqa: S102 - our own text
    assert found["slow"] == ["slow"]
