"""Errors in the user's code that a zoo file names."""

from __future__ import annotations

import copy
import importlib.util
import io
import sys
from pathlib import Path

import pytest
import torch

from pytest_torchlens.zoo import Zoo
from pytest_torchlens.zoo import ZooError
from pytest_torchlens.zoo import load_zoo

DATACLASS = """
from __future__ import annotations
from dataclasses import dataclass
from torch import nn

@dataclass
class Sizes:
    width: int = {width}

class Tiny(nn.Module):
    def __init__(self, width: int = Sizes().width):
        super().__init__()
        self.linear = nn.Linear(width, 1)

def zoo():
    return {{"tiny": Tiny}}
"""
PROVIDER = """
from torch import nn

class Lazy(dict):
    def items(self):
        raise OSError("gone")

class Birds:
    def names(self):
        return ["robin", "wren"]
    def build(self, name, kwargs, *, pretrained):
        return nn.Linear(2, 1)
    def default_input(self, model, kwargs):
        return None
    def family(self, name):
        raise RuntimeError("no network")
"""


def load(folder: Path, code: str, more: str = "") -> Zoo:
    folder.mkdir(exist_ok=True)
    (folder / "models.py").write_text(code)
    (folder / "birds.yaml").write_text(f"provider: python:models.py:zoo\n{more}")
    return load_zoo(folder / "birds.yaml")


@pytest.fixture(autouse=True)
def _former_modules():
    former = dict(sys.modules)
    yield
    for name in sys.modules.keys() - former.keys():
        if name.startswith("zoo_file_"):
            del sys.modules[name]


def test_a_file_with_a_dataclass_loads_and_its_models_can_be_pickled(tmp_path: Path):
    model = load(tmp_path, DATACLASS.format(width=3)).case("tiny").build()
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    again = torch.load(stream, weights_only=False)
    assert type(again) is type(model)
    assert torch.equal(copy.deepcopy(model).linear.weight, again.linear.weight)


def test_files_of_one_name_do_not_get_each_others_models(tmp_path: Path):
    zoos = [load(tmp_path / name, DATACLASS.format(width=width)) for name, width in (("a", 3), ("b", 5), ("a", 4))]
    built = [zoo.case("tiny").build() for zoo in zoos]
    assert [model.linear.in_features for model in built] == [3, 5, 4]
    assert type(built[1]).__module__ != type(built[2]).__module__ == type(built[0]).__module__


def test_a_module_of_the_same_name_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "models", raising=False)
    load(tmp_path / "zoo", DATACLASS.format(width=3))
    assert "models" not in sys.modules


def test_a_file_that_raises_leaves_no_module(tmp_path: Path):
    former = set(sys.modules)
    with pytest.raises(ZooError, match=r"birds.yaml:1: cannot load models.py: ZeroDivisionError: division by zero"):
        load(tmp_path, "1 / 0")
    assert not [name for name in set(sys.modules) - former if "models" in name]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys; sys.exit('please set BIRDS_HOME')", "cannot load models.py: SystemExit: please set BIRDS_HOME"),
        ("import pytest; pytest.importorskip('birds')", "cannot load models.py: Skipped: could not import 'birds'"),
        ("def zoo(): raise SystemExit('set HOME')", "python:models.py:zoo raises SystemExit: set HOME"),
        (
            "def zoo(): return Birds",
            r"python:models.py:zoo: expected an instance, got the class Birds: return Birds\(\)",
        ),
        ("def zoo(): return {}", "python:models.py:zoo: expected one model or more, got none"),
        (
            "import types\ndef zoo(): return types.MappingProxyType(Lazy(a=1))",
            "python:models.py:zoo raises OSError: gone",
        ),
    ],
)
def test_a_function_that_returns_no_models_is_an_error_with_its_line(tmp_path: Path, code: str, message: str):
    with pytest.raises(ZooError, match=f"birds.yaml:1: {message}"):
        load(tmp_path, f"{PROVIDER}\n{code}")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("raise RuntimeError('no network')", r"names\(\) raises RuntimeError: no network"),
        ("raise SystemExit(3)", r"names\(\) raises SystemExit: 3"),
        ("yield 'a'; 1 / 0", r"names\(\) raises ZeroDivisionError: division by zero"),
        ("return None", r"names\(\): expected a list of names, got None"),
        ("return 'robin'", r"names\(\): expected a list of names, got 'robin'"),
        ("return iter(())", "expected one model or more, got none"),
    ],
)
def test_wrong_names_are_an_error_with_their_line(tmp_path: Path, names: str, message: str):
    code = f"{PROVIDER}\nclass zoo(Birds):\n    def names(self):\n        {names}\n"
    with pytest.raises(ZooError, match=f"birds.yaml:1: python:models.py:zoo:? {message}"):
        load(tmp_path, code)


@pytest.mark.parametrize(
    ("entry", "name", "message"),
    [
        ("'a': 3", "a", "'a': expected a function or class .*, got int"),
        ("'a': nn.Linear(1, 1)", "a", "'a': expected a function or class .*, got Linear"),
        ("3: nn.Identity", "3 (int)", r"expected text as a model's name, got 3 \(int\)"),
        ("None: nn.Identity", "None (NoneType)", r"expected text as a model's name, got None \(NoneType\)"),
        ("'': nn.Identity", "''", "expected a model's name of printable characters without '::', got ''"),
        ("'a::b': nn.Identity", r"'a:\:b'", "expected a model's name of printable characters .*, got 'a::b'"),
        (r"'a\n': nn.Identity", r"'a\n'", r"expected a model's name of printable characters .*, got 'a\\n'"),
    ],
)
def test_one_wrong_entry_fails_alone(tmp_path: Path, entry: str, name: str, message: str):
    zoo = load(tmp_path, f"{PROVIDER}\ndef zoo(): return {{'robin': nn.Identity, {entry}}}")
    assert set(zoo.names) == {"robin", name}
    assert isinstance(zoo.case("robin").build(), torch.nn.Identity)
    with pytest.raises(ZooError, match=f"birds.yaml: python:models.py:zoo: {message}"):
        zoo.case(name).build()


def test_defaults_are_those_of_all_models_also_beside_one_named_like_their_glob(tmp_path: Path):
    zoo = load(tmp_path, f"{PROVIDER}\ndef zoo(): return {{'robin': nn.Identity, '*': nn.Identity}}")
    assert zoo.matching_names("*") == ["*", "robin"]


def test_wrong_names_of_a_provider_fail_alone(tmp_path: Path):
    methods = "    def names(self): return ['robin', 3]\n    def family(self, name): return name[0]"
    zoo = load(tmp_path, f"{PROVIDER}\nclass zoo(Birds):\n{methods}")
    assert [zoo.case(name).family for name in zoo.names] == ["", "r"]
    zoo.case("robin").build()
    with pytest.raises(ZooError, match=r"expected text as a model's name, got 3 \(int\)"):
        zoo.case("3 (int)").build()


def test_names_may_be_a_generator(tmp_path: Path):
    code = f"{PROVIDER}\nclass zoo(Birds):\n    def names(self):\n        yield from ('wren', 'robin')\n"
    assert load(tmp_path, code).names == ("robin", "wren")


@pytest.mark.parametrize("built", ["None", "[nn.Linear(1, 1)]", "nn.Linear"])
@pytest.mark.parametrize("zoo", ["class zoo(Birds):\n    build =", "def zoo(): return {'robin': made}\n#"])
def test_a_builder_that_returns_no_module_is_an_error(tmp_path: Path, zoo: str, built: str):
    code = f"{PROVIDER}\ndef made(*args, **kwargs): return {built}\n{zoo} made"
    with pytest.raises(
        ZooError, match=r"birds.yaml: python:models.py:zoo: 'robin': expected a torch.nn.Module, got \w+"
    ):
        load(tmp_path, code).case("robin").build()


@pytest.mark.parametrize("spec", ["None", "torch.ones(2, 2)", "{'x': 3}", "(1, 3)"])
def test_a_wrong_default_input_is_an_error(tmp_path: Path, spec: str):
    code = f"{PROVIDER}\nimport torch\nclass zoo(Birds):\n    def default_input(self, *_): return {spec}\n"
    case = load(tmp_path, code).case("robin")
    with pytest.raises(
        ZooError, match=r"birds.yaml: python:models.py:zoo: default_input\(\): expected a TensorSpec, .*, got "
    ):
        case.make_inputs(case.build())


def test_no_input_for_a_model_names_the_file(tmp_path: Path):
    case = load(tmp_path, DATACLASS.format(width=2)).case("tiny")
    with pytest.raises(ZooError, match=r"birds.yaml: python:models.py:zoo: this model needs an 'input'"):
        case.make_inputs(case.build())


def test_a_family_that_raises_is_an_error(tmp_path: Path):
    case = load(tmp_path, f"{PROVIDER}\nzoo = Birds").case("robin")
    with pytest.raises(ZooError, match=r"birds.yaml: python:models.py:zoo: family\('robin'\) raises RuntimeError: no"):
        assert case.family


def test_no_internal_error_ends_the_run(pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]):
    from pytest_torchlens.cli.main import main

    pytester.makepyfile(models=f"{PROVIDER}\nzoo = Birds")
    pytester.path.joinpath("birds.yaml").write_text("provider: python:models.py:zoo\ndefaults: {input: {shape: [2]}}")
    pytester.runpytest_inprocess("birds.yaml").assert_outcomes(passed=2)
    for more in ([], ["-n2"]) if importlib.util.find_spec("xdist") else ([],):
        result = pytester.runpytest_inprocess("birds.yaml", "--lens-sample=1", *more)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        said = "ERROR: *birds.yaml: python:models.py:zoo: family('robin') raises RuntimeError: no network"
        result.stderr.fnmatch_lines([said])
    capsys.readouterr()
    assert main(["zoo", "list", "birds.yaml"]) == 2
    assert "raises RuntimeError: no network" in capsys.readouterr().err
