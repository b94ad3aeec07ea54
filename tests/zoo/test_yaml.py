"""How a zoo file is read before anything is known of its keys."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

import pytest
import yaml

from pytest_torchlens.zoo import Settings
from pytest_torchlens.zoo import ZooError
from pytest_torchlens.zoo import load_zoo
from pytest_torchlens.zoo.yaml_lines import read_yaml
from pytest_torchlens.zoo.yaml_lines import to_yaml

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
    assert isinstance(yaml.safe_load("2026-11-01"), datetime.date)


def test_what_is_written_is_read_as_the_same(tmp_path: Path):
    path = tmp_path / "one.yaml"
    path.write_text("kwargs: {eps: 1e-6, quoted: '1e-6', day: '2026-11-01', inner: {size: [1, 2]}}")
    first = read_yaml(path)
    path.write_text(to_yaml(first))
    assert read_yaml(path) == first


def test_a_day_is_text(tmp_path: Path):
    assert settings(tmp_path, "skip: 2026-02-30").skip == "2026-02-30"
    assert settings(tmp_path, "kwargs: {day: 2026-11-01}").kwargs == {"day": "2026-11-01"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('seed: !!int "abc"', "expected int, got 'abc'"),
        ("kwargs: {a: 0x_}", "expected int, got '0x_'"),
        ("skip: !!timestamp now", "expected timestamp, got 'now'"),
        ("skip: !!bool maybe", "expected bool, got 'maybe'"),
        ("kwargs: !!map text", "expected map, got 'text'"),
        ("kwargs: !!map [1]", "expected map, got a list or mapping"),
        (
            "input: {shape: {{ n }}}",
            r"expected text as a key, got a mapping: if '\{\{ ... \}\}' belongs to a template, fill that in",
        ),
        ("? [a, b]", r"expected text as a key, got \['a', 'b'\]"),
        ("kwargs: {<<: {1: 2}}", "expected text as a key, got 1"),
        ("kwargs: {<<: {[a]: 2}}", r"expected text as a key, got \['a'\]"),
        ("skip: a\x01b", r"YAML does not allow the character '\\x01': remove it"),
        ("kwargs: &a {b: *a}", "found unconstructable recursive node"),
        ("skip: a\n---\nskip: b", "expected a single document in the stream, but found another document"),
    ],
)
def test_an_error_in_yaml_names_its_line(tmp_path: Path, line: str, message: str):
    with pytest.raises(ZooError, match=rf"mine.yaml:[345]: {message}"):
        settings(tmp_path, line)


def test_too_deep_nesting_is_an_error(tmp_path: Path):
    with pytest.raises(ZooError, match=r"mine.yaml: lists and mappings are nested too deeply"):
        settings(tmp_path, f"kwargs: {{a: {'[' * sys.getrecursionlimit()}")
