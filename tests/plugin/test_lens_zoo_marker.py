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
    assert sorted(ids) == ["test_it[broken]", "test_it[dies]"]  # each once


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
        ("", "lens_model needs @pytest.mark.lens_zoo*"),
        ("()", "lens_zoo: expected the name of a zoo, got none; * are known, for example *"),
        ("(3)", "lens_zoo: expected the name of a zoo, got 3; * are known, for example *"),
        ("(['tiny'])", "lens_zoo: expected the name of a zoo, got [[]'tiny']; did you mean 'tiny'?"),
        ("('tinny')", "lens_zoo: unknown zoo 'tinny': did you mean 'tiny'?"),
        ("('tiny:mlp')", "lens_zoo: expected the name of a zoo, got *: write lens_zoo('tiny', include=[[]'mlp'])"),
        ("('tinny:mlp')", "lens_zoo: unknown zoo 'tinny': did you mean 'tiny'?"),
        ("('tiny', 'mlp')", "lens_zoo: expected a keyword such as include='mlp', got 'mlp' alone"),
        ("('tiny', zoo='timm')", "lens_zoo: expected one zoo, got 'tiny' and 'timm'"),
        ("('tiny', inlcude='a')", "lens_zoo: unknown option 'inlcude'; did you mean 'include'?"),
        ("('tiny', match='a')", "lens_zoo: unknown option 'match'; known are exclude, include, limit, zoo"),
        ("('tiny', include=5)", "lens_zoo: include: expected a model's name, a glob *, got 5"),
        ("('tiny', include=[5])", "lens_zoo: include: expected a model's name, a glob *, got [[]5]"),
        ("('tiny', exclude=None)", "lens_zoo: exclude: expected a model's name, a glob *, got None"),
        ("('tiny', include=[])", "lens_zoo: include: expected *, not empty, got [[]]"),
        ("('tiny', include='mpl')", "lens_zoo: include: zoo 'tiny' has no model 'mpl': did you mean 'mlp'?"),
        ("('tiny', exclude='*')", "lens_zoo: exclude leaves no model of zoo 'tiny': '[*]'"),
        ("('tiny', limit=0)", "lens_zoo: limit: expected a whole number of at least 1 or None, got 0"),
        ("('tiny', limit=True)", "lens_zoo: limit: expected a whole number of at least 1 or None, got True"),
        ("('tiny', limit='2')", "lens_zoo: limit: expected a whole number of at least 1 or None, got '2'"),
    ],
)
def test_what_is_wrong_is_said_at_collection(pytester: pytest.Pytester, tiny_zoo, mark: str, message: str):
    decorator = f"@pytest.mark.lens_zoo{mark}\n" if mark else ""
    pytester.makepyfile(test_it=f"import pytest\n{decorator}def test_it(lens_model): pass")
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([f"test_it.py::test_it: {message}"])
    for words in ("*Traceback*", "*During handling*", "*zoo_mark*.py*"):
        result.stdout.no_fnmatch_line(words)


@pytest.mark.parametrize(
    ("exclude", "message"),
    [
        ("mpl", "lens_zoo: exclude: zoo 'tiny' has no model 'mpl': did you mean 'mlp'?"),
        ("mpl*", "lens_zoo: exclude: no model of zoo 'tiny' matches 'mpl[*]': *"),
    ],
)
def test_what_is_excluded_may_be_of_another_version(pytester: pytest.Pytester, tiny_zoo, exclude: str, message: str):
    mark = f"@pytest.mark.lens_zoo('tiny', include='linear', exclude={exclude!r})"
    pytester.makepyfile(test_it=f"import pytest\n{mark}\ndef test_it(lens_model): pass")
    result = pytester.runpytest_inprocess("-Wdefault")
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines([f"*ZooWarning: {message}"])
    result = pytester.runpytest_inprocess("-Werror")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([f"test_it.py::test_it: {message}"])


def test_marks_that_overlap_run_each_model_once(pytester: pytest.Pytester, tiny_zoo):
    pytester.makepyfile(
        "import pytest\n@pytest.mark.lens_zoo('tiny', include='mlp')\nclass TestIt:\n"
        "    @pytest.mark.lens_zoo('tiny', include={'mlp*', 'linear'}, exclude='*_tanh')\n"
        "    def test_it(self, lens_model): pass\n"
        "    def test_that_asks_for_none(self): pass"
    )
    result = pytester.runpytest_inprocess("-v")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*::test_it[[]linear] PASSED*", "*::test_it[[]mlp] PASSED*", "*_none PASSED*"])


def test_an_exact_name_wins_over_the_glob_that_it_looks_like(pytester: pytest.Pytester, tiny_zoo):
    tiny_zoo.with_name("models.py").write_text(
        "from torch import nn\ndef zoo(): return dict.fromkeys(['a*', 'ab', 'a[b]'], lambda: nn.Linear(4, 2))"
    )
    pytester.makepyfile(
        "import pytest\n@pytest.mark.lens_zoo('tiny', include=['a*', 'a[b]'])\ndef test_in(lens_model): pass\n"
        "@pytest.mark.lens_zoo('tiny', exclude='a*')\ndef test_out(lens_model): pass"
    )
    result = pytester.runpytest_inprocess("--co", "-q")
    ids = [line.partition("::")[2] for line in result.outlines if "::" in line]
    assert sorted(ids) == ["test_in[a*]", "test_in[a[b]]", "test_out[a[b]]", "test_out[ab]"]


def test_a_mark_of_a_test_that_asks_for_no_model_is_told(pytester: pytest.Pytester, tiny_zoo):
    pytester.makepyfile(test_it="import pytest\n@pytest.mark.lens_zoo('tiny')\ndef test_it(): pass")
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    told = "lens_zoo: the test does not ask for the models that it names: def test_it(lens_model)"
    result.stdout.fnmatch_lines([f"test_it.py::test_it: {told}"])


def test_a_fixture_may_ask_for_the_models(pytester: pytest.Pytester, tiny_zoo):
    pytester.makepyfile(
        "import pytest\n@pytest.fixture\ndef net(lens_model): return lens_model.model\n"
        "@pytest.mark.lens_zoo('tiny', include='mlp')\ndef test_it(net): assert len(net) == 3"
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=1)


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
