"""What pytest's summary and JUnit say of a model that raised is the same wherever it ran."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

MODELS = """
from torch import nn
class Raises(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.error = error
    def forward(self, x):
        raise self.error
class Silent(Exception):
    pass
def zoo():
    errors = {"odd": ValueError("bad name caf\\udce9"), "plain": RuntimeError("no\\nmore"), "silent": Silent()}
    return {name: lambda error=error: Raises(error) for name, error in errors.items()}
"""


@pytest.fixture
def zoo(pytester: pytest.Pytester) -> None:
    (pytester.path / "models.py").write_text(MODELS, encoding="utf-8")
    (pytester.path / "z.yaml").write_text('provider: "python:models.py:zoo"\ndefaults: {input: {shape: [1]}}\n')


@pytest.mark.parametrize("where", ["--lens-isolate", "--lens-no-isolate"])
@pytest.mark.parametrize("style", ["auto", "native"])
def test_the_summary_names_what_a_model_raised(pytester: pytest.Pytester, zoo, where: str, style: str):
    result = pytester.runpytest_inprocess(
        "z.yaml", where, f"--tb={style}", "--junitxml=junit.xml", "--lens-report=out", "-vv"
    )
    result.assert_outcomes(failed=3)
    lines = (re.sub(r"zoo_file_models(_\d+)?\.", "", line) for line in result.outlines)
    summary = [line for line in lines if line.startswith("FAILED ")]
    assert summary == [
        r"FAILED z.yaml::odd - ValueError: bad name caf\udce9",
        "FAILED z.yaml::plain - RuntimeError: no",
        "FAILED z.yaml::silent - Silent",
    ]
    result.stdout.fnmatch_lines(
        ["*models.py*, in forward", r"ValueError: bad name caf\udce9", "raised in stage 'forward'"]
    )
    junit = ElementTree.parse(pytester.path / "junit.xml")  # noqa: S314 - written just now
    messages = {case.get("name"): failure.get("message") for case in junit.iter("testcase") for failure in case}
    assert messages["odd"] == r"ValueError: bad name caf\udce9"


def test_the_place_of_an_error_is_never_in_this_package_or_contextlib(pytester: pytest.Pytester, zoo):
    (pytester.path / "z.yaml").write_text('provider: "python:models.py:zoo"\n')
    result = pytester.runpytest_inprocess("z.yaml::plain", "--lens-validate", "--lens-no-isolate", "--tb=no")
    result.stdout.fnmatch_lines(["*FAILED in inputs: ZooError: *z.yaml: *this model needs an 'input'*"])
    result.stdout.no_fnmatch_line("*where: *")


@pytest.mark.parametrize("tb", ["auto", "native", "line", "no"])
@pytest.mark.parametrize("isolate", ["--lens-isolate", "--lens-no-isolate"])
def test_what_to_do_is_told_once(pytester: pytest.Pytester, zoo, isolate: str, tb: str):
    result = pytester.runpytest_inprocess("z.yaml::plain", "--lens-validate", isolate, f"--tb={tb}")
    text = result.stdout.str()
    assert text.count("to do: the model raised by itself, before anything was recorded") == 1
    assert text.count("FAILED in forward") == (tb == "no")


@pytest.mark.slow
def test_odd_characters_pass_between_workers_of_xdist(pytester: pytest.Pytester, zoo):
    pytest.importorskip("xdist")
    result = pytester.runpytest_subprocess("z.yaml::odd", "--lens-no-isolate", "-n1", "-vv")
    result.assert_outcomes(failed=1)
    assert r"FAILED z.yaml::odd - ValueError: bad name caf\udce9" in result.outlines
