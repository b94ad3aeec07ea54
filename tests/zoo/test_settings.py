"""What a zoo file may say of a model, and what comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_torchlens.zoo import Zoo
from pytest_torchlens.zoo import ZooError
from pytest_torchlens.zoo import load_zoo
from pytest_torchlens.zoo.zoo_settings import ToleranceSetting

MODELS = """
import torch
from torch import nn

def zoo():
    return {"small": lambda: nn.Sequential(nn.Linear(2, 1), nn.Dropout())}

def built(width=1, depth=1):
    return nn.Linear(width, depth)

def slips(width):
    return nn.Linear(width, out=1)

def sizes():
    return {"small": built, "other": built, "slips": slips}

def pair(model):
    assert not model.training
    return torch.rand(1, 2), {"n": torch.arange(3)}

def scale():
    return torch.ones(1)

def pair_of(a, b):
    return a

import functools
partly = functools.partial(lambda a, b, c: a, 1)

def sized(*, width=2):
    return torch.ones(width)

class Own:
    def names(self):
        return ["one", "two"]
    def build(self, name, kwargs, *, pretrained):
        return nn.Linear(2, len(name))
    def default_input(self, model, kwargs):
        from pytest_torchlens.zoo import TensorSpec
        return TensorSpec((1, model.in_features))
"""
HEAD = 'provider: "python:models.py:zoo"\n'


def load(folder: Path, text: str) -> Zoo:
    (folder / "models.py").write_text(MODELS)
    (folder / "mine.yaml").write_text(text)
    return load_zoo(folder / "mine.yaml")


def test_all_settings_are_read(tmp_path: Path):
    text = """
defaults:
  mode: train
  device: cpu
  dtype: float64
  tolerance: {rtol: 0.1, atol: 0}
  timeout: 30
  memory: 1.5 GiB
  size: huge
  marks: [gpu, nightly]
"""
    settings = load(tmp_path, HEAD + text).case("small").settings
    assert settings.tolerance == ToleranceSetting(0.1, 0.0)
    assert (settings.timeout, settings.memory) == (30.0, 1.5 * 2**30)
    assert (settings.mode, settings.device, settings.dtype) == ("train", "cpu", "float64")
    assert (settings.size, settings.marks) == ("huge", ("gpu", "nightly"))


def test_mode_and_dtype_hold_for_model_and_inputs(tmp_path: Path):
    text = "defaults: {mode: train, dtype: float64, input: [{shape: [1, 2]}, {shape: [1], dtype: int64}]}"
    case = load(tmp_path, HEAD + text).case("small")
    model = case.build()
    assert model.training
    assert all(parameter.dtype is torch.float64 for parameter in model.parameters())
    assert [tensor.dtype for tensor in case.make_inputs(model).args] == [torch.float64, torch.int64]


def test_a_function_makes_the_inputs_the_same_each_time(tmp_path: Path):
    case = load(tmp_path, HEAD + "defaults: {input: 'models.py:pair'}").case("small")
    state = torch.get_rng_state()
    model = case.build()
    (first, mapping), kwargs = case.make_inputs(model)
    again = case.make_inputs(model).args[0]
    assert torch.equal(first, again)
    assert first is not again
    assert mapping["n"].tolist() == [0, 1, 2]
    assert kwargs == {}
    assert torch.equal(torch.get_rng_state(), state)


def test_a_function_makes_one_of_the_inputs(tmp_path: Path):
    case = load(tmp_path, HEAD + "defaults: {input: {x: {shape: [2]}, scale: 'models.py:scale'}}").case("small")
    args, kwargs = case.make_inputs(case.build())
    assert args == ()
    assert kwargs["scale"].tolist() == [1.0]
    assert kwargs["x"].shape == (2,)


def test_a_function_with_options_alone_is_called_with_nothing(tmp_path: Path):
    case = load(tmp_path, HEAD + "defaults: {input: 'models.py:sized'}").case("small")
    assert case.make_inputs(case.build()).args[0].shape == (2,)


REFUSED = """
defaults: {kwargs: {widht: 3}}
rules:
  - {match: sm*, kwargs: {depth: 2}}
  - match: [small, other]
    kwargs:
      depth: 1
      widht: 4
  - {match: other, kwargs: {widht: 5}}
"""


def test_an_argument_that_a_constructor_refuses_is_named_with_its_line(tmp_path: Path):
    case = load(tmp_path, 'provider: "python:models.py:sizes"' + REFUSED).case("small")
    with pytest.raises(ZooError) as caught:
        case.build()
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'mine.yaml'}:8: 'kwargs' of model 'small': built() got an unexpected")
    assert message.endswith("argument 'widht': did you mean 'width'?")


@pytest.mark.parametrize("text", ["rules: [{seed: 1}]", "a: [", ""])
def test_a_refused_argument_is_named_with_its_line_though_the_file_was_changed(tmp_path: Path, text: str):
    case = load(tmp_path, 'provider: "python:models.py:sizes"' + REFUSED).case("other")
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ZooError, match=r"mine.yaml:9: 'kwargs' of model 'other': .* did you mean 'width'\?"):
        case.build()


def test_an_argument_that_a_library_refuses_is_named(tmp_path: Path):
    pytest.importorskip("torchvision")
    text = "provider: torchvision\ndefaults: {kwargs: {num_class: 3}}"
    with pytest.raises(ZooError, match=r"mine.yaml:2: 'kwargs' of model 'alexnet': .*did you mean 'num_classes'"):
        load(tmp_path, text).case("alexnet").build()


def test_the_reason_is_the_message_without_the_place(tmp_path: Path):
    case = load(tmp_path, 'provider: "python:models.py:sizes"' + REFUSED).case("small")
    with pytest.raises(ZooError) as caught:
        case.build()
    assert caught.value.reason.startswith("'kwargs' of model 'small': built() got an unexpected")
    assert str(caught.value) == f"{tmp_path / 'mine.yaml'}:8: {caught.value.reason}"
    with pytest.raises(ZooError) as caught:
        load(tmp_path, HEAD + "defaults:\n  size: large")
    assert caught.value.reason == "size: expected fast, slow, huge, got 'large'"
    assert ZooError("unknown zoo 'a'").reason == str(ZooError("unknown zoo 'a'"))


def test_what_a_constructor_itself_does_wrong_is_its_own_error(tmp_path: Path):
    case = load(tmp_path, 'provider: "python:models.py:sizes"\ndefaults: {kwargs: {width: 1}}').case("slips")
    with pytest.raises(TypeError, match="unexpected keyword argument 'out'"):
        case.build()


def test_a_function_may_return_a_provider(tmp_path: Path):
    zoo = load(tmp_path, 'provider: "python:models.py:Own"')
    assert zoo.names == ("one", "two")
    model = zoo.case("two").build()
    assert zoo.case("two").make_inputs(model).args[0].shape == (1, 2)


def test_globs_of_rules_that_match_no_model_are_listed(tmp_path: Path):
    zoo = load(tmp_path, HEAD + "rules:\n  - {match: small}\n  - {match: [smal, 's*'], seed: 1}")
    (message,) = zoo.unused_globs()
    assert message.endswith("mine.yaml:4: no model of zoo 'mine' matches 'smal': did you mean 'small'?")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("mode: training", r"mine.yaml:3: mode: expected eval, train, got 'training' \(did you mean 'train'\?\)"),
        ("device: gpu", r"mine.yaml:3: device: expected cpu, cuda, mps, xpu, or .*, got 'gpu'$"),
        ("device: cuda:x", r"mine.yaml:3: device: expected .*, got 'cuda:x'"),
        ("dtype: float61", r"mine.yaml:3: dtype: expected float32.*, got 'float61' \(did you mean 'float64'"),
        ("tolerance: 0.1", r"mine.yaml:3: tolerance: expected a mapping \{rtol: ..., atol: ...\}, got 0.1"),
        ("tolerance: {rtol: 1}", r"mine.yaml:3: atol: expected a number from 0, got a tolerance without it"),
        ("tolerance: {rtol: 1, atol: -1}", r"mine.yaml:3: atol: expected a number from 0, got -1"),
        ("tolerance: {rtol: .inf, atol: 0}", r"mine.yaml:3: rtol: expected a number from 0, got inf"),
        ("tolerance: {rtl: 1}", r"mine.yaml:3: unknown key 'rtl': did you mean 'rtol'"),
        ("timeout: 0", r"mine.yaml:3: timeout: expected a positive number of seconds, got 0"),
        ("timeout: yes", r"mine.yaml:3: timeout: expected a positive number of seconds, got True"),
        ("memory: lots", r"mine.yaml:3: memory: expected an amount of memory such as '8 GiB' or .*, got 'lots'"),
        ("memory: true", r"mine.yaml:3: memory: expected an amount of memory .*, got True"),
        ("size: large", r"mine.yaml:3: size: expected fast, slow, huge, got 'large'"),
        ("marks: [a b]", r"mine.yaml:3: marks: expected the name of a pytest mark, or a list of names, got \['a b'\]"),
        ("input: nowhere.py:make", r"mine.yaml:3: file not found: .*nowhere.py"),
        ("input: {x: 'models.py:paar'}", r"mine.yaml:3: models.py has no function 'paar': did you mean 'pair'"),
        (
            "input: models.py:pair_of",
            r"mine.yaml:3: input: expected a function that takes the model or no argument, got pair_of\(a, b\)",
        ),
        (
            "input: torch:rand",
            r"mine.yaml:3: input: expected a function written in Python, got torch:rand, which has no signature",
        ),
        ("input: functools:partial", r"mine.yaml:3: input: expected a function .*functools:partial"),
        (
            "input: models.py:partly",
            r"mine.yaml:3: input: expected a function that .*, got partly\(b, c\) in models.py:partly",
        ),
        ("input: some words", r"mine.yaml:3: input: expected \{shape.*, got 'some words'"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, line: str, message: str):
    with pytest.raises(ZooError, match=message):
        load(tmp_path, HEAD + f"defaults:\n  {line}")


def test_a_file_without_provider_says_so(tmp_path: Path):
    with pytest.raises(ZooError, match=r"mine.yaml:1: provider: expected .*, such as timm, got a file without it"):
        load(tmp_path, "defaults: {seed: 1}")
    with pytest.raises(ZooError, match=r"mine.yaml:1: unknown key 'providr': did you mean 'provider'"):
        load(tmp_path, "providr: timm\ndefaults: {seed: 1}")
