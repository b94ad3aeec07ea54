"""Programs from outside that judge pages."""

from __future__ import annotations

import shutil
import subprocess

import pytest


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    """Return the source of axe-core, which judges whether people with disabilities can use a page."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("axe-core needs npm, which is not on this machine")
    folder = tmp_path_factory.mktemp("axe")
    command = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "axe-core@4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        pytest.skip(f"npm cannot install axe-core: {done.stderr.strip().splitlines()[-1:]}")
    return (folder / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")
