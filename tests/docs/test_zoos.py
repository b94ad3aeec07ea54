"""What docs/zoos.md says can be typed as it stands."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_torchlens.zoo import load_zoo
from pytest_torchlens.zoo.catalog import shipped_folder
from pytest_torchlens.zoo.zoo_settings import _PARSERS

PAGE = (Path(__file__).parents[2] / "docs" / "zoos.md").read_text(encoding="utf-8")
MODELS = """
from torch import nn
def zoo():
    return {"tiny_a": lambda width=4: nn.Linear(32, width), "a_lstm": nn.Identity, "recurrent": nn.Identity,
            "experimental": nn.Identity}
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_example_file_is_right(tmp_path: Path):
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "mine.yaml").write_text(blocks("yaml")[0])
    zoo = load_zoo(tmp_path / "mine.yaml")
    assert zoo.unused_globs() == []
    assert zoo.case("tiny_a").build().out_features == 8
    assert zoo.case("a_lstm").settings.timeout == 30
    assert zoo.case("experimental").settings.xfail


def test_every_key_is_explained_and_no_other():
    table = re.findall(r"^\| `(\w+)` \|", PAGE.partition("| key |")[2].partition("\n\n")[0], flags=re.MULTILINE)
    assert set(table) == set(_PARSERS)


def test_every_shipped_zoo_is_named():
    for path in shipped_folder().glob("*.yaml"):
        assert f"`{path.stem}`" in PAGE


@pytest.mark.skipif(find_spec("timm") is None, reason="needs timm")
def test_the_example_test_passes(pytester: pytest.Pytester):
    pytester.makepyfile(blocks("python")[0])
    pytester.runpytest_subprocess().assert_outcomes(passed=3)


def test_the_example_hook_is_one(pytester: pytest.Pytester):
    pytester.makeconftest(blocks("python")[1])
    (pytester.path / "birds.yaml").write_text("provider: 'python:models.py:zoo'\ndefaults: {input: {shape: [32]}}\n")
    (pytester.path / "models.py").write_text(MODELS)
    pytester.runpytest_subprocess("--lens-zoo=birds:tiny_a").assert_outcomes(passed=1)
