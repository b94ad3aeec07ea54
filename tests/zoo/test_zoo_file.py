from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_torchlens.zoo import TensorSpec
from pytest_torchlens.zoo import Zoo
from pytest_torchlens.zoo import ZooError
from pytest_torchlens.zoo import load_zoo

MODELS = """
from torch import nn
number = 3
def wrong():
    return 3
def zoo():
    return {"small": lambda width=2: nn.Linear(width, 1), "large": lambda width=9: nn.Linear(width, 1)}
"""
HEAD = 'provider: "python:models.py:zoo"\n'


def load(folder: Path, text: str) -> Zoo:
    (folder / "models.py").write_text(MODELS)
    (folder / "broken.py").write_text("1 / 0")
    (folder / "mine.yaml").write_text(text)
    return load_zoo(folder / "mine.yaml")


def test_later_rules_win_and_constructor_arguments_add_up(tmp_path: Path):
    zoo = load(
        tmp_path,
        HEAD
        + """
defaults: {input: {shape: [1]}, seed: 3, kwargs: {width: 4, depth: 1}}
rules:
  - {match: "s*", input: {shape: [2]}, kwargs: {width: 5}}
  - {match: [small, tiny], input: {shape: [3]}, weights: init, skip: not now}
  - {match: small, skip: null}
""",
    )
    small, large = zoo.case("small").settings, zoo.case("large").settings
    assert small.input == TensorSpec((3,))
    assert small.kwargs == {"width": 5, "depth": 1}
    assert (small.weights, small.seed, small.skip) == ("init", 3, None)
    assert large.input == TensorSpec((1,))
    assert (large.weights, large.skip) == ("random", None)


def test_a_rule_of_an_exact_name_is_about_no_other(tmp_path: Path):
    text = """
rules:
  - {match: "a*", seed: 1}
  - {match: "net[v2]", seed: 2}
  - {match: "x,y", seed: 3}
  - {match: "[a]?c", kwargs: {width: 3}}
  - {match: "net[w3]"}
"""
    odd = "from torch import nn\ndef zoo():\n    return dict.fromkeys(['a*', 'abc', 'net[v2]', 'netv', 'x,y'], nn.ReLU)"
    (tmp_path / "odd.py").write_text(odd)
    zoo = load(tmp_path, f'provider: "python:odd.py:zoo"{text}')
    seeds = {name: zoo.case(name).settings.seed for name in zoo.names}
    assert seeds == {"a*": 1, "abc": 0, "net[v2]": 2, "netv": 0, "x,y": 3}
    assert zoo.case("abc").settings.kwargs == {"width": 3}
    assert zoo.select("net[v2]") == ["net[v2]"]
    (idle,) = zoo.unused_globs()
    assert idle.startswith(
        f"{tmp_path / 'mine.yaml'}:7: no model of zoo 'mine' matches 'net[w3]': did you mean 'net[v2]'"
    )


def test_inputs_of_every_form(tmp_path: Path):
    text = HEAD + "defaults:\n  input: "
    one = "{shape: [1, 2], dtype: int64, range: [5, 7]}"

    def inputs(spec: str):
        case = load(tmp_path, text + spec).case("small")
        return case.make_inputs(case.build())

    args, kwargs = inputs(one)
    assert kwargs == {}
    assert args[0].shape == (1, 2)
    assert set(args[0].flatten().tolist()) <= {5, 6}
    args, _ = inputs(f"[{one}, {{shape: [3]}}]")
    assert [tuple(tensor.shape) for tensor in args] == [(1, 2), (3,)]
    args, _ = inputs(f"[[{one}, {one}]]")
    assert isinstance(args[0], list)
    assert not torch.equal(*args[0]) or args[0][0] is not args[0][1]
    args, kwargs = inputs(f"{{ids: {one}, more: {{mask: {{shape: [2], dtype: bool}}}}}}")
    assert args == ()
    assert kwargs["ids"].dtype is torch.int64
    assert kwargs["more"]["mask"].dtype is torch.bool


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ("3", 3),
        ("null", None),
        ("false", False),
        ("cached", "cached"),
        ("[]", []),
        ("{}", {}),
        ("[[[1, 4, 4], [1, 2, 2]]]", [[[1, 4, 4], [1, 2, 2]]]),
        ("{depth: [1, 2]}", {"depth": [1, 2]}),
    ],
)
def test_an_input_may_be_a_value_of_python(tmp_path: Path, spec: str, value: object):
    text = HEAD + "defaults:\n  input: "
    for form in (f"{{value: {spec}}}", f"[{{value: {spec}}}]", f"{{size: {{value: {spec}}}}}"):
        case = load(tmp_path, text + form).case("small")
        args, kwargs = case.make_inputs(case.build())
        assert [*args, *kwargs.values()] == [value]
        if isinstance(value, list | dict):  # made anew, and without the lines of the file
            assert type((*args, *kwargs.values())[0]) is type(value)
            args, kwargs = case.make_inputs(case.build())
            (*args, *kwargs.values())[0].clear()
            assert [*case.make_inputs(case.build()).args, *case.make_inputs(case.build()).kwargs.values()] == [value]


def test_an_argument_may_be_called_value(tmp_path: Path):
    case = load(tmp_path, HEAD + "defaults: {input: {value: {shape: [2]}}}").case("small")
    args, kwargs = case.make_inputs(case.build())
    assert (args, list(kwargs), kwargs["value"].shape) == ((), ["value"], (2,))
    case = load(tmp_path, HEAD + "defaults: {input: {value: [{shape: [2]}, {shape: [3]}]}}").case("small")
    assert [tensor.shape[0] for tensor in case.make_inputs(case.build()).kwargs["value"]] == [2, 3]


def test_an_input_of_given_values(tmp_path: Path):
    text = HEAD + "defaults: {input: {grid: {tensor: [[1, 4, 4]]}, sizes: {tensor: [2.5, 1], dtype: float64}}}"
    case = load(tmp_path, text).case("small")
    kwargs = case.make_inputs(case.build()).kwargs
    assert kwargs["grid"].tolist() == [[1, 4, 4]]
    assert kwargs["grid"].dtype == torch.int64
    assert kwargs["sizes"].tolist() == [2.5, 1.0]
    assert kwargs["sizes"].dtype == torch.float64


def test_values_lie_in_the_range_up_to_the_ends_of_the_dtype(tmp_path: Path):
    text = HEAD + "defaults: {input: {shape: [2000], dtype: "
    case = load(tmp_path, text + "uint8, range: [0, 256]}, seed: 18446744073709551615}").case("small")
    values = case.make_inputs(case.build()).args[0]
    assert values.dtype is torch.uint8
    assert (values.min(), values.max()) == (0, 255)
    case = load(tmp_path, text + "int64, range: [0.5, 3]}}").case("small")
    assert set(case.make_inputs(case.build()).args[0].tolist()) == {1, 2}


def test_empty_defaults_and_rules_are_none(tmp_path: Path):
    assert load(tmp_path, HEAD + "defaults:\nrules:\n").case("small").settings.seed == 0


def test_inputs_are_the_same_at_each_call_and_made_anew(tmp_path: Path):
    case = load(tmp_path, HEAD + "defaults: {input: {shape: [8]}}").case("small")
    model = case.build()
    first, second = case.make_inputs(model).args[0], case.make_inputs(model).args[0]
    assert torch.equal(first, second)
    assert first is not second
    assert 0 <= first.min() < first.max() < 1


def test_weights(tmp_path: Path):
    text = HEAD + "defaults: {input: {shape: [2]}, weights: "
    torch.manual_seed(5)
    state = torch.get_rng_state()
    filled = load(tmp_path, text + "random}").case("small").build()
    initial = load(tmp_path, text + "init}").case("small").build()
    again = load(tmp_path, text + "init}").case("small").build()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(initial.weight, again.weight)
    assert not torch.equal(initial.weight, filled.weight)
    assert not filled.training
    with pytest.raises(ZooError, match="load pretrained weights in the function"):
        load(tmp_path, text + "pretrained}").case("small").build()


def test_names_and_globs(tmp_path: Path):
    zoo = load(tmp_path, HEAD)
    assert zoo.name == "mine"
    assert zoo.names == ("large", "small")
    assert zoo.select("*") == ["large", "small"]
    with pytest.raises(ZooError, match="no model 'smal': did you mean 'small'"):
        zoo.select("smal")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("provider: tim", r"mine.yaml:1: unknown provider 'tim': did you mean 'timm'"),
        ("provider: 'python:nowhere.py:zoo'", r"mine.yaml:1: file not found: .*nowhere.py"),
        ("provider: 'python:models.py:zoos'", r"mine.yaml:1: models.py has no function 'zoos'"),
        ("provider: 'python:broken.py:zoo'", r"mine.yaml:1: cannot load broken.py: ZeroDivisionError"),
        ("provider: 'python:models.py:number'", r"mine.yaml:1: models.py has no function 'number'"),
        ("provider: 'python:models.py:wrong'", r"mine.yaml:1: python:models.py:wrong: expected a mapping .*, got int"),
        ("provider: 'python:no.such.module:zoo'", r"mine.yaml:1: cannot load no.such.module: ModuleNotFoundError"),
        ("provider: 'python:models.py'", r"expected 'python:FILE.py:FUNCTION', got 'python:models.py'"),
        ("defaults: {}", r"mine.yaml:1: provider: expected the source of the models"),
        ("- 1", r"mine.yaml:1: expected a mapping with the key 'provider', got \[1\]"),
        ("", r"mine.yaml:1: expected a mapping with the key 'provider', got None"),
        ("a: [1", r"mine.yaml:\d: .*expected"),
        (HEAD + "rule: []", r"mine.yaml:2: unknown key 'rule': did you mean 'rules'"),
        (HEAD + "defaults: {}\ndefaults: {}", r"mine.yaml:3: the key 'defaults' appears twice: remove one"),
        (HEAD + "defaults: {}\nrules: 3", r"mine.yaml:3: rules: expected a list of rules, got 3"),
        (HEAD + "defaults: 3", r"mine.yaml:2: defaults: expected a mapping of settings, got 3"),
        (
            HEAD + "rules:\n  - input: {shape: [1]}",
            r"mine.yaml:3: match: expected a glob .*, got a rule",
        ),
        (HEAD + "rules:\n  - mach: a\n    seed: 1", r"mine.yaml:3: unknown key 'mach': did you mean 'match'"),
        (HEAD + "rules: [a]", r"mine.yaml:2: rules: expected a mapping with the key 'match', got 'a'"),
        (HEAD + "rules:\n  - match: a\n    inputs: 3", r"mine.yaml:4: unknown key 'inputs': did you mean 'input'"),
        (HEAD + "defaults:\n  input: {shap: [1]}", r"mine.yaml:3: unknown key 'shap': did you mean 'shape'"),
        (
            HEAD + "defaults:\n  input: {shape: [a]}",
            r"mine.yaml:3: shape: expected a list of whole .*, got \['a'\]",
        ),
        (
            HEAD + "defaults:\n  input: {shape: [1], dtype: float}",
            r"mine.yaml:3: dtype: expected .*, got 'float' \(did",
        ),
        (
            HEAD + "defaults:\n  input: {shape: [1], range: [2, 1]}",
            r"mine.yaml:3: range: expected .*, got \[2, 1\]",
        ),
        (
            HEAD + "defaults:\n  input: {shape: [1], dtype: bool, range: [0, 1]}",
            r"mine.yaml:3: range: a tensor of dtype bool takes none",
        ),
        *(
            (f"{HEAD}defaults:\n  input: {{shape: [1], dtype: {dtype}, range: {bounds}}}", f"mine.yaml:3: {message}")
            for dtype, bounds, message in [
                ("float32", "[true, 5]", r"range: expected \[low, high\] with low < high, got \[True, 5\]"),
                ("float32", "[0, .inf]", r"range: expected \[low, high\] with low < high, got \[0, inf\]"),
                ("uint8", "[0, 257]", r"range: expected numbers from 0 to 255 for dtype uint8, got \[0, 257\]"),
                ("int8", "[-129, 0]", r"range: expected numbers from -128 to 127 for dtype int8, got \[-129, 0\]"),
                ("float16", "[0, 1e5]", r"range: expected numbers from -65504.0 to 65504.0 for dtype float16, got"),
                ("float64", "[0, 1e300]", r"range: expected numbers .* for dtype float64, got \[0, 1e\+300\]"),
                ("float32", "[-3e38, 3e38]", "range: expected numbers .* for dtype float32, got"),
                ("int64", f"[0, {10**400}]", "range: expected numbers .* for dtype int64, got"),
                (
                    "int64",
                    "[0.2, 0.8]",
                    r"range: expected .* a whole number for dtype int64, got \[0.2, 0.8\]",
                ),
            ]
        ),
        (HEAD + "defaults:\n  input: {shape: [0, 99999999999999999999]}", "mine.yaml:3: shape: expected at most 5"),
        (HEAD + "defaults:\n  input: {tensor: [[1, 2], [3]]}", "mine.yaml:3: tensor: expected lists of numbers of one"),
        (HEAD + "defaults:\n  input: {tensor: [1], shape: [1]}", "mine.yaml:3: unknown key 'shape'"),
        (HEAD + "defaults:\n  input: 3", r"mine.yaml:3: input: expected \{shape"),
        (HEAD + "defaults:\n  weights: no", r"mine.yaml:3: weights: expected random, init, pretrained, got False$"),
        (HEAD + "defaults:\n  seed: -1", r"mine.yaml:3: seed: expected a whole number from 0 to .*, got -1"),
        (
            HEAD + f"defaults:\n  seed: {2**64}",
            r"mine.yaml:3: seed: expected a whole .* to 2\*\*64 - 1, got 18",
        ),
        (HEAD + "defaults: 0", r"mine.yaml:2: defaults: expected a mapping of settings, got 0"),
        (HEAD + "defaults: []", r"mine.yaml:2: defaults: expected a mapping of settings, got \[\]"),
        (HEAD + "rules: false", r"mine.yaml:2: rules: expected a list of rules, got False"),
        (HEAD + "rules: {}", r"mine.yaml:2: rules: expected a list of rules, got \{\}"),
        (HEAD + "defaults:\n  skip: true", r"mine.yaml:3: skip: expected the reason as text, got True"),
        (
            HEAD + "defaults:\n  kwargs: [1]",
            r"mine.yaml:3: kwargs: expected a mapping .*, got \[1\]",
        ),
        (HEAD + "defaults:\n  no: 1", r"mine.yaml:3: expected text as a key, got False"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, message: str):
    with pytest.raises(ZooError, match=message):
        load(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(ZooError, match=r"none\.yaml: .*No such file"):
        load_zoo(tmp_path / "none.yaml")


def test_anchors_and_merges_are_yaml_as_usual(tmp_path: Path):
    text = HEAD + "defaults: {input: &base {shape: [1], range: [0, 2]}}\n"
    zoo = load(tmp_path, text + "rules:\n  - {match: small, input: {<<: *base, shape: [7]}}")
    assert zoo.case("small").settings.input == TensorSpec((7,), high=2.0)
