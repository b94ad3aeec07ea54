"""The notebooks run from top to bottom, and come to the conclusions that their texts draw."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import DOCS

nbformat = pytest.importorskip("nbformat", reason="needs the extra docs")
nbclient = pytest.importorskip("nbclient", reason="needs the extra docs")
pytest.importorskip("ipykernel", reason="needs the extra docs")

NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


@pytest.fixture
def run(outside_ci, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(DOCS.parent), prepend=os.pathsep)

    def run(name: str) -> Any:
        notebook = nbformat.read(DOCS / "notebooks" / name, as_version=4)
        nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
        return notebook

    return run


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def printed(notebook: Any) -> str:
    return "".join(output.get("text", "") for output in outputs(notebook))


@pytest.mark.slow
def test_the_notebook_of_activations(run):
    notebook = run("activations.ipynb")
    drawings = [output for output in outputs(notebook) if "image/svg+xml" in output.get("data", {})]
    assert len(drawings) == 3
    assert printed(notebook).count("%") == 3


@pytest.mark.slow
def test_the_notebook_of_a_regression(run):
    text = printed(run("regression.ipynb"))
    differences = dict(line.split() for line in text.splitlines() if line.startswith(("linear", "layernorm", "output")))
    assert float(differences["linear_1_1"]) == 0
    assert float(differences["layernorm_1_2"]) > 0
    assert "1/layernorm: structure: argument eps=1e-05 → eps=0.01" in text
    assert "1 passed" in text
    assert "1 failed" in text


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path: Path):
    assert outputs(nbformat.read(path, as_version=4)) == []
