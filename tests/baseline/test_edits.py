"""Fifteen edits of one small net: each is seen, and named at the operation where it was made."""

from __future__ import annotations

import ast
import math
from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from torch import nn

from pytest_torchlens.baseline import spelling
from pytest_torchlens.baseline.compare import compare
from pytest_torchlens.baseline.conditions import Conditions
from pytest_torchlens.baseline.snapshot_file import parse_snapshot
from pytest_torchlens.baseline.snapshot_file import to_text
from pytest_torchlens.baseline.wording import headline
from pytest_torchlens.records import Change
from tests.baseline.samples import Made
from tests.baseline.samples import Small
from tests.baseline.samples import an_input
from tests.baseline.samples import filled
from tests.baseline.samples import snapshot_of

X = an_input(2, 3, 8, 8)


class OtherConstant(Small):
    def forward(self, x):
        x = self.act(self.norm(self.conv(x)))
        x = x + self.mix(x) * 0.25
        return self.head(self.drop(x.mean((2, 3))))


class OtherFunction(Small):
    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        x = x + self.mix(x) * 0.5
        return self.head(self.drop(x.mean((2, 3))))


class OtherOrder(Small):
    def forward(self, x):
        x = self.norm(self.act(self.conv(x)))
        x = x + self.mix(x) * 0.5
        return self.head(self.drop(x.mean((2, 3))))


class Nested(Small):
    """The same computation, its convolutions one level deeper."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(self.conv, self.norm)
        del self.conv, self.norm

    def forward(self, x):
        x = self.act(self.stem(x))
        x = x + self.mix(x) * 0.5
        return self.head(self.drop(x.mean((2, 3))))


def _with(**modules):
    model = Small()
    for name, module in modules.items():
        setattr(model, name, module)
    return filled(model)


def _other_weights():
    model = filled(Small())
    with torch.no_grad():
        model.mix.weight[0, 0] += 1.0
    return model


EDITS = {
    "stride": (lambda: _with(conv=nn.Conv2d(3, 8, 3, 2, padding=1)), "conv/conv2d", "argument", Change.STRUCTURE),
    "kernel": (lambda: _with(conv=nn.Conv2d(3, 8, 5, padding=2)), "conv/conv2d", "has shape", Change.STRUCTURE),
    "width": (lambda: _with(head=nn.Linear(8, 5)), "head/linear", "head.weight has shape", Change.STRUCTURE),
    "dilation": (
        lambda: _with(conv=nn.Conv2d(3, 8, 3, padding=2, dilation=2)),
        "conv/conv2d",
        "5=(2, 2)",
        Change.STRUCTURE,
    ),
    "bias": (lambda: _with(mix=nn.Conv2d(8, 8, 1, bias=False)), "mix/conv2d", "mix.bias is not read", Change.STRUCTURE),
    "eps": (
        lambda: _with(norm=nn.BatchNorm2d(8, eps=1e-6)),
        "norm/batchnorm",
        "eps=1e-05 → eps=1e-06",
        Change.STRUCTURE,
    ),
    "dropout": (lambda: _with(drop=nn.Dropout(0.1)), "drop/dropout", "→", Change.STRUCTURE),
    "dtype": (lambda: filled(Small()).double(), "/input", "dtype float32 → float64", Change.INPUTS_DIFFER),
    "input size": (lambda: filled(Small()), "/input", "shape (2, 3, 8, 8) → (2, 3, 9, 9)", Change.INPUTS_DIFFER),
    "constant": (lambda: filled(OtherConstant()), "/mul", "1=0.5 → 1=0.25", Change.STRUCTURE),
    "nesting": (lambda: filled(Nested()), "stem.0/conv2d", "renamed", Change.STRUCTURE),
    "function": (lambda: filled(OtherFunction()), "/relu", "in place of act/gelu", Change.STRUCTURE),
    "train mode": (lambda: filled(Small()).train(), "norm/batchnorm", "training=True", Change.STRUCTURE),
    "weights": (_other_weights, "mix/conv2d", "other weights: mix.weight", Change.INPUTS_DIFFER),
    "order": (lambda: filled(OtherOrder()), "norm/batchnorm", "moved", Change.STRUCTURE),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_seen_and_named(edit):
    make, operation, words, change = EDITS[edit]
    model = make()
    x = an_input(2, 3, 9, 9) if edit == "input size" else X.double() if edit == "dtype" else X
    found = compare(snapshot_of(filled(Small()), X), snapshot_of(model, x))
    assert found.verdict is change
    assert found.fails
    messages = [finding.message for finding in found.findings if finding.operation == operation]
    assert any(words in message for message in messages), found.findings


class Returning(nn.Module):
    def __init__(self, packed) -> None:
        super().__init__()
        self.packed = packed

    def forward(self, x):
        return self.packed(x + 1)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (lambda y: y, lambda y: {"y": y}, "the output is dict of 1, was tensor"),
        (lambda y: y, lambda y: (y,), "the output is tuple of 1, was tensor"),
        (lambda y: {"a": y}, lambda y: {"b": y}, "the output's 'b' is tensor, was not there"),
        (lambda y: (y, y), lambda y: [y, y], "the output is list of 2, was tuple of 2"),
        (lambda y: {"a": (y,)}, lambda y: {"a": [y]}, "the output's 'a' is list of 1, was tuple of 1"),
        (lambda y: (y, None), lambda y: (y,), "the output is tuple of 1, was tuple of 2"),
    ],
)
def test_another_object_around_the_same_tensors_is_structure(before, after, message):
    x = torch.ones(2)
    first, second, again = (snapshot_of(Returning(packed), x) for packed in (before, after, after))
    found = compare(first, second)
    assert (found.verdict, found.fails) == (Change.STRUCTURE, True)
    assert [finding.message for finding in found.findings] == [message]
    assert compare(parse_snapshot(to_text(second)), again).verdict is Change.IDENTICAL


def test_outputs_are_compared_at_their_places_whatever_the_order_in_which_they_were_made():
    x = an_input(2, 4)
    before = snapshot_of(Returning(lambda y: {"a": y.exp(), "b": (y.sin(), y.cos())}), x)

    def made_in_another_order(y):
        b = (y.sin(), y.cos())
        return {"a": y.exp(), "b": b}

    moved = compare(before, snapshot_of(Returning(made_in_another_order), x))
    assert (moved.verdict, moved.outputs.same) == (Change.REFACTOR, True)
    swapped = compare(before, snapshot_of(Returning(lambda y: {"b": (y.exp(), y.cos()), "a": y.sin()}), x))
    assert (swapped.verdict, swapped.outputs.within) == (Change.STRUCTURE, False)
    messages = [finding.message for finding in swapped.findings if finding.operation.startswith("/output")]
    assert messages == ["the output's 'b.0' is /exp, was /sin", "the output's 'a' is /sin, was /exp"]


def test_outputs_in_another_order_are_told_and_pass_where_outputs_count():
    """Their values by name are the same, but `to_tuple()` and an exported model give them in another order."""
    x = an_input(2, 4)

    def returned(*names):
        def packed(y):
            made = {"a": y.exp(), "b": y.sin()}
            return {name: made[name] for name in names}

        return snapshot_of(Returning(packed), x)

    before, after = returned("a", "b"), parse_snapshot(to_text(returned("b", "a")))
    found = compare(before, after)
    assert (found.verdict, found.fails, found.outputs.same) == (Change.STRUCTURE, True, True)
    assert [finding.message for finding in found.findings] == ["order of the outputs: b, a, was a, b"]
    assert not compare(before, after, Conditions.of(["outputs"])).fails


@pytest.mark.parametrize("made", [lambda y: {"a": y, "b": y * 2}, lambda y: (y, y * 2)], ids=["names", "places"])
def test_the_same_outputs_at_each_others_places_are_no_refactor(made):
    x = an_input(2, 4)

    def swapped(y):
        found = made(y)
        return dict(zip(found, [*found.values()][::-1], strict=True)) if isinstance(found, dict) else found[::-1]

    found = compare(snapshot_of(Returning(made), x), snapshot_of(Returning(swapped), x))
    assert (found.verdict, found.fails, found.outputs.within) == (Change.STRUCTURE, True, False)


@pytest.mark.parametrize(
    "view", [lambda y: y.view(4, 2), lambda y: y.mT, lambda y: (y, y[0]), lambda y: y.mT.clone()], ids=range(4)
)
def test_how_far_an_output_is_off_is_known_of_a_view_too(view):
    """Attention's heads, a class token, a transposed result: what models return is often a view."""
    x = an_input(2, 4)
    before = snapshot_of(Returning(lambda y: view(y.exp())), x)
    found = compare(before, snapshot_of(Returning(lambda y: view((y * math.log2(math.e)).exp2())), x))
    assert (found.verdict, found.outputs.within, found.outputs.same) == (Change.REFACTOR, True, False)
    wrong = compare(before, snapshot_of(Returning(lambda y: view(y.exp() * 1.001)), x))
    assert (wrong.verdict, wrong.outputs.within) == (Change.STRUCTURE, False)
    assert wrong.outputs.error == pytest.approx(1e-3, rel=0.5)


def _parameter(known) -> tuple[str, object]:
    """Return a parameter of PyTorch's own: name and default, one number for several that are equal."""
    default = known.default_value
    default = (default or [None])[0] if isinstance(default, list) else default
    return "input" if known.name == "self" else known.name, default


@pytest.mark.parametrize("function", spelling.PARAMETERS)
def test_the_signatures_by_which_spellings_are_told_are_those_of_pytorch(function):
    name = {"logsoftmax": "log_softmax", "maskedfill": "masked_fill"}.get(function, function)
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    known = [[*map(_parameter, schema.arguments)] for schema in schemas]
    ours = [(parameter, ast.literal_eval(text) if text else None) for parameter, text in spelling.PARAMETERS[function]]
    assert ours in [parameters[: len(ours)] for parameters in known]


WEIGHT = torch.ones(4, 3, 3, 3)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lambda x: x.mean((2, 3)), lambda x: torch.mean(x, dim=[2, 3])),
        (nn.functional.gelu, lambda x: nn.functional.gelu(x, approximate="none")),
        (lambda x: x.flatten(1), lambda x: torch.flatten(x, end_dim=-1, start_dim=1)),
        (lambda x: nn.functional.softmax(x, -1), lambda x: x.softmax(dim=-1)),
        (lambda x: torch.cat([x, x]), lambda x: torch.cat(tensors=[x, x], dim=0)),
        (lambda x: torch.conv2d(x, WEIGHT, None, (1, 1), 1), lambda x: torch.conv2d(input=x, weight=WEIGHT, padding=1)),
        (lambda x: nn.functional.softplus(x, 1.0, 20), nn.functional.softplus),
        (lambda x: x.clamp(0), lambda x: torch.clamp(x, min=0, max=None)),
        (lambda x: x.topk(2)[0], lambda x: torch.topk(x, k=2, dim=-1, sorted=True)[0]),
    ],
    ids=["mean", "gelu", "flatten", "softmax", "cat", "conv2d", "softplus", "clamp", "topk"],
)
def test_one_call_in_two_spellings_is_the_same_call(before, after):
    first, second = (snapshot_of(Returning(call), X) for call in (before, after))
    assert compare(first, second).verdict is Change.IDENTICAL
    assert first.steps != second.steps


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (lambda x: x.mean(2), lambda x: x.mean(dim=3), "argument 1=2 → dim=3"),
        (lambda x: torch.conv2d(x, WEIGHT, stride=2), lambda x: torch.conv2d(x, WEIGHT, None, 1), "stride=2 → 3=1"),
        (nn.functional.gelu, lambda x: nn.functional.gelu(input=x, approximate="tanh"), "none → approximate='tanh'"),
        (lambda x: torch.max_pool2d(x, 2), lambda x: torch.max_pool2d(x, 2, ceil_mode=True), "none → ceil_mode=True"),
    ],
    ids=["dimension", "stride", "approximation", "unseen"],
)
def test_another_value_in_another_spelling_is_another_call(before, after, message):
    found = compare(snapshot_of(Returning(before), X), snapshot_of(Returning(after), X))
    assert found.verdict is Change.STRUCTURE
    assert [message in finding.message for finding in found.findings if "argument" in finding.message] == [True]


class Masked(nn.Module):
    """A call on three buffers, of which the first is one of two masks."""

    def __init__(self, call, mask, dtype) -> None:
        super().__init__()
        self.call, self.mask = call, mask
        self.register_buffer("first", torch.tensor([0, 1, 1], dtype=dtype))
        self.register_buffer("second", torch.tensor([0, 1, 1], dtype=dtype))
        self.register_buffer("other", torch.tensor([0.2, 0.7, 0.9]))

    def forward(self, x):
        return self.call(getattr(self, self.mask), self.other) + x


@pytest.mark.parametrize(
    ("call", "dtype"),
    [
        (lambda mask, other: torch.where(mask, input=other, other=other), torch.bool),
        (lambda mask, other: torch.searchsorted(mask, input=other), torch.float32),
        (lambda mask, other: torch.where(condition=mask, input=other, other=other), torch.bool),
    ],
    ids=["known", "unknown", "names alone"],
)
def test_an_argument_named_input_that_is_not_the_first_hides_no_other(call, dtype):
    first, second = (snapshot_of(Masked(call, name, dtype), torch.ones(3)) for name in ("first", "second"))
    messages = [finding.message for finding in compare(first, second).findings]
    assert any("second is read in place of first" in message for message in messages), messages


def test_another_weight_is_seen_also_where_the_call_names_it():
    before = snapshot_of(filled(Made(lambda model, x: torch.conv2d(x, model.conv.weight))), X)
    after = filled(Made(lambda model, x: torch.conv2d(x, weight=model.conv.weight)))
    assert compare(before, snapshot_of(after, X)).verdict is Change.IDENTICAL
    with torch.no_grad():
        after.conv.weight.mul_(2)
    found = compare(before, snapshot_of(after, X))
    assert [(f.change, f.message) for f in found.findings] == [(Change.INPUTS_DIFFER, "other weights: conv.weight")]


def test_a_function_that_becomes_a_module_renames_no_other():
    before = snapshot_of(filled(Made(lambda model, x: model.norm(nn.functional.gelu(model.conv(x))))), X)
    after = snapshot_of(filled(Made(lambda model, x: model.norm(model.act(model.conv(x))))), X)
    for first, second, where in (
        (before, after, "called in module act, was in the model itself"),
        (after, before, "called in the model itself, was in module act"),
    ):
        found = compare(first, second)
        assert found.verdict is Change.REFACTOR
        assert [f.message for f in found.findings] == [f"{where}; 1 operation in it matched; computes the same"]


def test_an_activation_in_place_is_a_refactor():
    made = [filled(Made(lambda model, x, way=way: nn.functional.relu(model.conv(x), inplace=way))) for way in (0, 1)]
    found = compare(*(snapshot_of(model, X) for model in made))
    assert found.verdict is Change.REFACTOR
    assert [finding.message for finding in found.findings] == ["in place False → True"]


class DeadUnit(nn.Module):
    """Its second unit is below zero for every input, so that what is behind it does not show."""

    def __init__(self, column: float) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
        fill = {self.a.weight: 1.0, self.a.bias: 0.0, self.b.weight: 1.0, self.b.bias: 0.5}
        with torch.no_grad():
            for parameter, value in fill.items():
                parameter.fill_(value)
            self.a.bias[1] = -100.0
            self.b.weight[:, 1] = column

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def test_other_weights_that_the_output_does_not_show_are_seen():
    x = torch.ones(1, 2)
    found = compare(snapshot_of(DeadUnit(1.0), x), snapshot_of(DeadUnit(2.0), x))
    assert (found.verdict, found.fails) == (Change.INPUTS_DIFFER, True)
    assert [(f.operation, f.message) for f in found.findings] == [("b/linear", "other weights: b.weight")]
    assert found.counts == {"identical": 4, "inputs-differ": 1}


def test_other_weights_are_seen_on_an_input_of_zeros():
    other = DeadUnit(1.0)
    with torch.no_grad():
        other.a.weight *= 2
    found = compare(snapshot_of(DeadUnit(1.0), torch.zeros(1, 2)), snapshot_of(other, torch.zeros(1, 2)))
    assert [(f.change, f.message) for f in found.findings] == [(Change.INPUTS_DIFFER, "other weights: a.weight")]


def test_the_same_net_is_identical():
    found = compare(snapshot_of(filled(Small()), X), snapshot_of(filled(Small()), X))
    assert (found.verdict, found.fails, found.findings, found.axes) == (Change.IDENTICAL, False, (), ())


def test_all_inside_a_renamed_module_is_still_matched():
    inner = filled(Small())
    found = compare(snapshot_of(inner, X), snapshot_of(nn.Sequential(inner), X))
    (finding,) = found.findings
    assert finding.message.startswith("renamed: module (the model) is now 0;")
    assert found.counts == {"identical": len(snapshot_of(inner, X).steps)}


class Two(nn.Module):
    """A function of what two layers give."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.function(self.left(x), self.right(x))


@pytest.mark.parametrize(
    ("function", "why", "change"),
    [
        (torch.add, "; add gives the same for both orders", Change.REFACTOR),
        (torch.maximum, "; maximum gives the same for both orders", Change.REFACTOR),
        (torch.sub, "", Change.STRUCTURE),
        (lambda a, b: torch.add(a, b, alpha=2), "", Change.STRUCTURE),
        (lambda a, b: a.add_(b), "", Change.REFACTOR),
    ],
    ids=["add", "maximum", "sub", "alpha", "in place"],
)
def test_swapped_operands_are_called_that(function, why, change):
    x = an_input(2, 4)
    swapped = filled(Two(lambda a, b: function(b, a)))
    found = compare(snapshot_of(filled(Two(function)), x), snapshot_of(swapped, x))
    message = f"operands swapped: right/linear and left/linear{why}"
    assert [f.message for f in found.findings if f.change is change] == [message]
    assert (found.verdict, found.fails) == (change, True)


class Scaled(nn.Module):
    def __init__(self, name) -> None:
        super().__init__()
        self.name = name
        setattr(self, name, nn.Parameter(torch.ones(4)))

    def forward(self, x):
        return x * getattr(self, self.name)


def test_a_renamed_parameter_is_called_that():
    found = compare(snapshot_of(Scaled("gamma"), X[..., :4]), snapshot_of(Scaled("weight"), X[..., :4]))
    assert [f.message for f in found.findings] == ["renamed: gamma is now weight; computes the same"]
    assert headline(found) == "refactor at /mul; 1 of 3 operations differ; outputs identical"


@pytest.mark.parametrize("step", [1, -1])
def test_a_weight_that_nothing_reads_follows_the_innermost_renamed_module(step):
    def made(outer, inner):
        layers = nn.Sequential(OrderedDict([("act", nn.ReLU()), (inner, nn.Linear(8, 8))][::step]))
        layers.get_submodule(inner).register_buffer("steps", torch.zeros(1))
        return snapshot_of(filled(nn.Sequential(OrderedDict([(outer, layers), ("last", nn.Linear(8, 8))]))), X)

    before, after = made("old", "linear"), made("new", "dense")
    messages = [finding.message for finding in compare(before, after).findings]
    assert any("renamed: module old.linear is now new.dense" in message for message in messages), messages
    assert not any("nothing reads" in message for message in messages), messages


def test_weights_that_follow_a_new_name_are_said_to():
    before, after = (nn.Sequential(OrderedDict({name: nn.Linear(8, 8)})) for name in ("old", "new"))
    found = compare(snapshot_of(filled(before), X), snapshot_of(filled(after), X))
    assert [f.message for f in found.findings] == [
        "renamed: module old is now new; 1 operation in it matched",
        "other weights: new.weight, new.bias (a new name, and a zoo's random weights follow the names)",
    ]


def test_the_headline_says_how_many_differ():
    clean = snapshot_of(filled(Small()), X)
    (block,) = clean.measured.values()
    on_a_gpu = replace(block, environment=replace(block.environment, device="cuda"))
    elsewhere = replace(clean, measured={"cuda 1 thread": on_a_gpu})
    renamed, same = nn.Sequential(filled(Small())), "all 11 operations compute the same"
    for before, after, text in (
        (clean, clean, f"identical; {same}"),
        (clean, snapshot_of(renamed, X), f"refactor at 0.conv/conv2d; {same}; outputs identical"),
        (elsewhere, clean, "environment; all 11 operations are the same, their numbers not compared"),
    ):
        assert headline(compare(before, after)) == text
