"""How a zoo file is read before anything is known of its keys."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pytest_torchlens.zoo import Settings
from pytest_torchlens.zoo import load_zoo
from pytest_torchlens.zoo.lines import read_yaml
from pytest_torchlens.zoo.lines import to_yaml

MODELS = """
def zoo():
    return {"small": lambda **kwargs: None}
"""


def settings(folder: Path, text: str) -> Settings:
    (folder / "models.py").write_text(MODELS)
    (folder / "mine.yaml").write_text(f'provider: "python:models.py:zoo"\ndefaults:\n  {text}\n')
    return load_zoo(folder / "mine.yaml").case("small").settings


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1e-3", 0.001),
        ("1E5", 1e5),
        ("-1e3", -1e3),
        ("1.5e3", 1500.0),
        (".5e2", 50.0),
        ("+1.e+2", 100.0),
        ("-.5E-1", -0.05),
    ],
)
def test_a_number_with_an_exponent_is_a_number(tmp_path: Path, text: str, number: float):
    found = settings(tmp_path, f"kwargs: {{eps: {text}, quoted: '{text}', word: {text}x}}").kwargs
    assert found == {"eps": number, "quoted": text, "word": f"{text}x"}
    assert type(found["eps"]) is float


def test_the_tolerance_and_range_that_the_docs_show(tmp_path: Path):
    found = settings(
        tmp_path, "tolerance: {rtol: 1e-3, atol: 1e-5}\n  input: {shape: [1], range: [0, 1e3]}\n  timeout: 1e2"
    )
    assert found.tolerance == (1e-3, 1e-5)
    assert (found.input.high, found.timeout) == (1000.0, 100.0)


def test_pyyaml_itself_stays_as_it_is():
    assert yaml.safe_load("1e-3") == "1e-3"


def test_what_is_written_is_read_as_the_same(tmp_path: Path):
    path = tmp_path / "one.yaml"
    path.write_text("kwargs: {eps: 1e-6, quoted: '1e-6', day: '2026-11-01', inner: {size: [1, 2]}}")
    first = read_yaml(path)
    path.write_text(to_yaml(first))
    assert read_yaml(path) == first
