"""The pages of options, fixtures and commands are up to date, and the examples of fixtures run."""

from __future__ import annotations

import re

import pytest
import torch  # noqa: F401 - pytester forgets what an inner run imports, and torch cannot be imported twice

from pytest_torchlens.plugin import options
from pytest_torchlens.plugin.options import CommandLineOption
from tests.docs.pages import DOCS
from tests.docs.pages import script

PRELUDE = """
import pytest
import torch
from torch import nn

from pytest_torchlens import assert_effect


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.attn(x)


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.last = nn.Sequential(*(Block() for _ in range(29))), nn.Linear(8, 8)

    def forward(self, x):
        return self.last(self.blocks(x))


torch.manual_seed(0)
model, x = nn.Sequential(), torch.randn(2, 3, 32, 32)
model.add_module("encoder", nn.Sequential(nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU()))
"""
OTHER_MODELS = {
    "lens_trace": "x = torch.randn(1, 3, 224, 224)",
    "lens_edit": "model, x = Blocks(), torch.randn(2, 8)",
    "lens_recorder": """
model, loss_of = nn.Linear(8, 1), nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
batches = [(torch.ones(4, 8), torch.ones(4, 1))] * 10
""",
}


@pytest.fixture(scope="module")
def generator():
    return script("generate_reference")


@pytest.mark.parametrize("name", ["options.md", "fixtures.md", "commands.md"])
def test_a_page_is_up_to_date(generator, name: str):
    page = (DOCS / name).read_text(encoding="utf-8")
    assert page == generator.pages()[name], "run: python docs/generate_reference.py"


def test_a_new_option_makes_the_page_stale(generator, monkeypatch: pytest.MonkeyPatch):
    new = CommandLineOption("--lens-new", "text", "FILE", "Write *.csv and lens_new, as --lens-table=FILE.")
    monkeypatch.setattr(generator, "OPTIONS", (*options.OPTIONS, new))
    page = generator.pages()["options.md"]
    assert page != (DOCS / "options.md").read_text(encoding="utf-8")
    assert "### `--lens-new`\n\n`--lens-new=FILE`\n\nWrite `*.csv` and `lens_new`, as `--lens-table=FILE`.\n" in page


@pytest.mark.slow
@pytest.mark.usefixtures("outside_ci")
def test_the_examples_of_fixtures_run(generator, pytester: pytest.Pytester):
    pytest.importorskip("timm")
    page = generator.pages()["fixtures.md"].partition("## Markers")[0]
    examples = re.findall(r"### `(\w+)`.*?```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(examples) == len(generator.functions())
    pytester.makepyfile(
        **{f"test_{name}": f"{PRELUDE}\n{OTHER_MODELS.get(name, '')}\n\n{example}" for name, example in examples}
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=len(examples) - 1 + 5)  # lens_model: five models
