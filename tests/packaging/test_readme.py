"""What README.md tells people to type works, and is what CI runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SET_UP = "python3 -m venv .venv && . .venv/bin/activate && pip install -e "


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("command", blocks("bash"))
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
