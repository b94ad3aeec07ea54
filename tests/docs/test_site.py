"""The site builds without a warning, and leaves out no page and no public name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_torchlens
from tests.docs.pages import DOCS

ALIASES = {"get_model_activations", "get_model_structure", "validate_saved_activations"}


def test_every_public_name_is_in_the_reference():
    text = "\n".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.md"))
    documented = set(re.findall(r"^\.\. (?:auto\w+|data):: (?:[\w.]+\.)?(\w+)(?:\(\))?$", text, flags=re.MULTILINE))
    assert set(pytest_torchlens.__all__) - documented - ALIASES == set()
    assert all(f"`{name}`" in text for name in ALIASES)


def test_every_page_is_on_the_site():
    listed = set()
    for path in DOCS.rglob("*.md"):
        for tree in re.findall(r"```\{toctree\}\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL):
            listed |= {(path.parent / line).relative_to(DOCS) for line in tree.split() if not line.startswith(":")}
    pages = {path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.*") if path.suffix in {".md", ".ipynb"}}
    assert {str(page) for page in pages - listed} == {"index"}


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path):
    for module in ("sphinx", "furo", "myst_nb"):
        pytest.importorskip(module, reason="needs the extra docs")
    arguments = ["-W", "--keep-going", "-q", "-D", "nb_execution_mode=off"]  # test_notebooks.py executes them
    command = [sys.executable, "-m", "sphinx", *arguments, str(DOCS), str(tmp_path / "html")]
    environment = {**os.environ, "PYTHONPATH": str(DOCS.parent)}
    built = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    api = (tmp_path / "html" / "api" / "functions.html").read_text(encoding="utf-8")
    assert 'id="pytest_torchlens.log_forward_pass"' in api
