"""``@pytest.mark.lens_zoo`` and the hook that names further zoos."""

from __future__ import annotations

import pytest

TESTS = """
import gc, weakref
import pytest
import torch

ALIVE = []

@pytest.mark.lens_zoo("tiny", include=["mlp*", "linear"], exclude="*tanh")
def test_runs(lens_model, lens_validate):
    assert not [model for model in ALIVE if model() is not None]
    ALIVE.append(weakref.ref(lens_model.model))
    assert lens_model.model(*lens_model.args, **lens_model.kwargs).shape == (2, 2)
    assert lens_validate(lens_model.model, lens_model.args, lens_model.kwargs)
    assert (lens_model.zoo, lens_model.name) in [("tiny", "mlp"), ("tiny", "linear")]

def test_all_are_freed():
    assert len(ALIVE) == 2
    assert not [model for model in ALIVE if model() is not None]
"""


def test_models_are_parameters_built_one_at_a_time(pytester: pytest.Pytester, tiny_zoo):
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_inprocess("-v")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*test_runs[[]linear[]] PASSED*", "*test_runs[[]mlp[]] PASSED*"])


def test_nothing_is_built_to_collect(pytester: pytest.Pytester, tiny_zoo):
    pytester.makepyfile(
        "import pytest\n@pytest.mark.lens_zoo('tiny', limit=2)\n@pytest.mark.lens_zoo('tiny', include='broken')\n"
        "def test_it(lens_model): pass"
    )
    result = pytester.runpytest_inprocess("--co", "-q")
    ids = [line.partition("::")[2] for line in result.outlines if "::" in line]
    assert sorted(ids) == ["test_it[broken0]", "test_it[broken1]", "test_it[dies]"]


def test_reasons_of_the_zoo_file_hold(pytester: pytest.Pytester, tiny_zoo):
    tiny_zoo.write_text(
        tiny_zoo.read_text()
        + "rules:\n  - {match: linear, skip: not now}\n  - {match: mlp, xfail: known, marks: nightly}\n"
    )
    pytester.makeini("[pytest]\nmarkers = nightly")
    pytester.makepyfile(
        "import pytest\n@pytest.mark.lens_zoo('tiny', include=['linear', 'mlp'])\ndef test_it(lens_model): assert False"
    )
    pytester.runpytest_inprocess("--strict-markers").assert_outcomes(skipped=1, xfailed=1)
    pytester.runpytest_inprocess("--strict-markers", "-m", "nightly").assert_outcomes(xfailed=1, deselected=1)


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("", "*test_it.py::test_it: lens_model needs @pytest.mark.lens_zoo*"),
        ("@pytest.mark.lens_zoo('tinny')", "*lens_zoo: unknown zoo 'tinny': did you mean 'tiny'?"),
        (
            "@pytest.mark.lens_zoo('tiny', include='mpl')",
            "*lens_zoo: zoo 'tiny' has no model 'mpl': did you mean 'mlp'?",
        ),
        ("@pytest.mark.lens_zoo('tiny', exclude='*')", "*lens_zoo: exclude='[*]' leaves no model of zoo 'tiny'"),
        ("@pytest.mark.lens_zoo('tiny', limit=0)", "*lens_zoo: limit is 0, not a number of models from 1"),
        ("@pytest.mark.lens_zoo('tiny', match='a')", "*lens_zoo: got an unexpected keyword argument 'match'"),
        ("@pytest.mark.lens_zoo()", "*lens_zoo: missing 1 required positional argument: 'zoo'"),
    ],
)
def test_what_is_wrong_is_said_at_collection(pytester: pytest.Pytester, tiny_zoo, mark: str, message: str):
    pytester.makepyfile(test_it=f"import pytest\n{mark}\ndef test_it(lens_model): pass")
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([message])
    result.stdout.no_fnmatch_line("*Traceback*")


BIRDS = """
from pathlib import Path

def pytest_lens_register_zoo(config):
    return Path(__file__).with_name("birds") / "birds.yaml"
"""
PROVIDER = """
from torch import nn
from pytest_torchlens.zoo import TensorSpec

class Birds:
    def names(self):
        return ["owl", "wren"]
    def build(self, name, kwargs, *, pretrained):
        return nn.Linear(len(name), 1)
    def default_input(self, model, kwargs):
        return TensorSpec((1, model.in_features))
    def family(self, name):
        return "bird"
"""


@pytest.fixture
def birds(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(BIRDS)
    folder = pytester.mkdir("birds")
    (folder / "flock.py").write_text(PROVIDER)
    (folder / "birds.yaml").write_text("provider: 'python:flock.py:Birds'\n")


def test_a_hook_names_further_zoos(pytester: pytest.Pytester, birds):
    pytester.makepyfile("import pytest\n@pytest.mark.lens_zoo('birds')\ndef test_it(lens_model): pass")
    result = pytester.runpytest_inprocess("--lens-zoo=birds", "--lens-validate", ".")
    result.assert_outcomes(passed=4)


def test_workers_know_them_too(pytester: pytest.Pytester, birds):
    result = pytester.runpytest_inprocess("--lens-zoo=birds", "--lens-isolate", "--lens-validate", "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["birds/birds.yaml::owl *PASSED*"])


def test_the_projects_own_file_wins_over_a_registered_one(pytester: pytest.Pytester, birds, tiny_zoo):
    tiny_zoo.rename(tiny_zoo.with_name("birds.yaml"))
    result = pytester.runpytest_inprocess("--lens-zoo=birds:mlp", "--co", "-q")
    result.stdout.fnmatch_lines(["model_zoo_configs/birds.yaml::mlp"])


def test_an_unknown_zoo_is_told_of_registered_ones(pytester: pytest.Pytester, birds):
    result = pytester.runpytest_inprocess("--lens-zoo=bird")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unknown zoo 'bird': did you mean 'birds'?"])
