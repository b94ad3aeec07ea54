"""The examples of the docs run, and print what the docs quote."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch  # here, as pytester forgets what an inner run imports, and torch cannot be imported twice

from pytest_torchlens import log_forward_pass
from pytest_torchlens.report import write_site
from tests.docs.pages import DOCS
from tests.docs.pages import assert_quoted
from tests.docs.pages import blocks_of
from tests.docs.pages import run_page
from tests.report.samples import passed
from tests.report.samples import raised
from tests.report.samples import run

DOCS_WITH_EXAMPLES = ["history.md", "extract.md", "edits.md", "named_edits.md", "effects.md", "recorder.md"]
DOCS_WITH_OUTPUT = [
    "howto/own_zoo.md",
    "howto/slow_test.md",
    pytest.param("howto/upgrade_pytorch.md", marks=pytest.mark.slow),
    pytest.param("tutorial.md", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("name", DOCS_WITH_EXAMPLES)
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    blocks = [block.text for block in blocks_of(name) if block.language == "python"]
    assert blocks
    exec(compile("\n".join(blocks), name, "exec"), {})  # noqa: S102 - our own text


@pytest.fixture(scope="module")
def torchvision():  # before `pytester`, which forgets what is imported later
    return pytest.importorskip("torchvision")


@pytest.mark.usefixtures("torchvision", "outside_ci")
@pytest.mark.parametrize("name", DOCS_WITH_OUTPUT)
def test_pages_run_and_print_what_they_quote(name: str, pytester: pytest.Pytester):
    run_page(name, pytester)


def test_the_picture_of_the_tutorial_is_what_is_drawn(torchvision, tmp_path: Path):
    history = log_forward_pass(torchvision.models.resnet18().eval(), torch.rand(1, 3, 64, 64), layers_to_save=None)
    drawn = history.draw(tmp_path / "block.svg", focus="layer2.0")
    texts = [re.findall(r"<text.*?>(.*?)</text>", path.read_text()) for path in (drawn, DOCS / "tutorial_block.svg")]
    assert sorted(texts[0]) == sorted(texts[1])
    assert "packages/" not in (DOCS / "tutorial_block.svg").read_text()  # where the library is installed


@pytest.mark.parametrize("quoted", ["b\na\n", "c\n", "a 2\n"])
def test_a_wrong_quotation_is_noticed(quoted: str):
    assert_quoted("a 1\n…\nb 2.5 ms\n", "a 1\nx\nb    0.001 ms\n")
    with pytest.raises(AssertionError, match="was not printed"):
        assert_quoted(quoted, "a\nb\na 1\n")


def test_the_examples_of_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "reports.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    models = replace(passed("slow"), forward_ms=200.0), passed("fast"), raised("broken")
    write_site(run(*models), models, tmp_path / "lens-report")
    found: dict[str, object] = {}
    exec("\n".join(blocks), found)  # noqa: S102 - our own text
    assert found["slow"] == ["slow"]
