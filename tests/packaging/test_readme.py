"""What README.md tells people to type works, and is what CI runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch  # noqa: F401 - pytester forgets what an inner run imports, and torch cannot be imported twice

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
SET_UP = "python3 -m venv .venv && . .venv/bin/activate && pip install -e "


def blocks(language: str, text: str = README + TOUR) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.parametrize("command", blocks("bash", README))
def test_a_command_does_all_the_set_up_and_ends_in_what_ci_runs(command: str) -> None:
    assert command.startswith(SET_UP)
    assert command.count("\n") == 1
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert command.rpartition(" && ")[2].strip() in ci


def test_ci_installs_every_extra_that_a_command_installs() -> None:
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    install = re.search(r"-e '\.\[(.*?)\]'", ci)
    assert install is not None
    for extras in re.findall(r"-e '\.\[(.*?)\]'", README):
        assert set(extras.split(",")) <= set(install[1].split(","))


def test_the_examples_of_tests_pass(pytester: pytest.Pytester) -> None:
    examples = [block for block in blocks("python") if "def test_" in block]
    pytester.makepyfile(**{f"test_{number}": example for number, example in enumerate(examples)})
    pytester.runpytest_subprocess().assert_outcomes(passed=len(examples))


def test_the_script_example_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torchvision")
    monkeypatch.chdir(tmp_path)
    example = next(block for block in blocks("python") if "alexnet" in block)
    exec(compile(example, "README.md", "exec"), {})  # noqa: S102 - our own text
    assert "conv2d_3_7" in capsys.readouterr().out
    assert (tmp_path / "alexnet.svg").exists()


def test_the_recurrent_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    example = next(block for block in blocks("python") if "SimpleRecurrent" in block)
    exec(compile(example, "README.md", "exec"), {"__name__": "readme"})  # noqa: S102 - our own text
    assert "Layer linear_1" in capsys.readouterr().out


NETS = """
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


def zoo():
    return {"tiny": lambda: nn.Sequential(*(Block(16) for _ in range(3)))}
"""


def test_the_failure_that_it_shows_is_what_is_printed(pytester: pytest.Pytester) -> None:
    (pytester.path / "nets.yaml").write_text(
        'provider: "python:models.py:zoo"\ndefaults: {input: {shape: [1, 8, 16]}}\n'
    )
    (models := pytester.path / "models.py").write_text(NETS)
    arguments = ("nets.yaml", "--lens-validate", "-p", "no:cacheprovider")
    pytester.runpytest_inprocess(*arguments, "--lens-update=new").assert_outcomes(passed=1)
    models.write_text(NETS.replace("nn.GELU()", 'nn.GELU(approximate="tanh")'))
    printed = pytester.runpytest_inprocess(*arguments)
    printed.assert_outcomes(failed=1)
    lines = {without_numbers(line.replace(f"{pytester.path}/", "")) for line in printed.outlines}
    shown = next(block for block in blocks("text", README) if block.startswith("nets:tiny"))
    assert {without_numbers(line) for line in shown.splitlines() if line != "…"} - lines == set()


def without_numbers(line: str) -> str:
    """Leave out what may differ from processor to processor, and the number of the line."""
    return re.sub(r"(?<![\w.])\d[\d.]*(e-\d+)?(?![\w.])|:\d+", "N", line)
