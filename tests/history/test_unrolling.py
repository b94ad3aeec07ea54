"""Properties of every loop: random bodies, unrolled, next to other models, renamed."""

from __future__ import annotations

import linecache
import textwrap

import torch
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from torch import nn

from tests.history.loop_programs import Nested
from tests.history.loop_programs import trace
from tests.models import Function
from tests.models import short_label

UNARY = ["cos", "sin", "tanh", "sigmoid", "exp", "relu", "abs", "neg", "square", "atan", "erf", "sinh"]
BINARY = ["+", "-", "*"]


@st.composite
def bodies(draw):
    """Draw a loop body over a variable ``x`` and the input ``a``: each step reads earlier steps, each function once.

    The last step is the new ``x``; it depends on the old one by a chain through all steps.
    """
    functions = draw(st.permutations(UNARY))[: draw(st.integers(2, 8))]
    lines = ["t0 = x"]
    for step, function in enumerate(functions, 1):
        lines.append(f"t{step} = torch.{function}(t{step - 1})")
        if step > 1 and draw(st.booleans()):
            operator, other = draw(st.sampled_from(BINARY)), draw(st.sampled_from(["a", f"t{step - 2}"]))
            lines.append(f"t{step} = t{step} {operator} {other}")
    return [*lines, f"x = t{len(functions)}"]


def compiled(body, passes, style):
    """Return a function that runs a body a number of times, as a loop or written out."""
    looped = [f"for _ in range({passes}):", *(f"    {line}" for line in body)]
    inner = looped if style == "loop" else body * passes
    source = "def forward(x):\n    a = x\n" + textwrap.indent("\n".join(inner), "    ") + "\n    return x\n"
    name = f"/unrolled/{abs(hash(source))}.py"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space = {"torch": torch}
    exec(compile(source, name, "exec"), space)  # noqa: S102 - the test wrote it
    return Function(space["forward"])


def passes_of(history):
    """Return for each operation of the graph its layer's passes and its own, in execution order."""
    return [(short_label(op).partition(":")[0], op.pass_num) for op in history if op.func_applied]


@given(body=bodies(), passes=st.integers(2, 5), style=st.sampled_from(["loop", "written out"]))
@settings(max_examples=80, deadline=None)
def test_a_body_run_n_times_gives_n_passes_of_each_operation(body, passes, style):
    history = trace(compiled(body, passes, style), torch.rand(2))
    steps = len([line for line in body if "torch" in line or any(f" {op} " in line for op in BINARY)])
    found = passes_of(history)
    once = [layer for layer, _ in found[:steps]]
    assert len(set(once)) == steps
    assert found == [(layer, number) for number in range(1, passes + 1) for layer in once]


@given(
    body=bodies(), passes=st.integers(2, 4), style=st.sampled_from(["loop", "written out"]), levels=st.integers(0, 3)
)
@settings(max_examples=40, deadline=None)
def test_inside_other_modules_the_layers_are_the_same(body, passes, style, levels):
    alone = trace(compiled(body, passes, style), torch.rand(2))
    deep = trace(nn.Sequential(Nested(compiled(body, passes, style), levels)), torch.rand(2))
    assert passes_of(deep) == passes_of(alone)


class Beside(nn.Module):
    """A model, and other operations unrelated to it."""

    def __init__(self, model, others):
        super().__init__()
        self.model = model
        self.others = nn.ModuleList(nn.Linear(2, 2) for _ in range(others))

    def forward(self, x, y):
        for other in self.others:
            y = torch.cos(other(y))
        return self.model(x), y


@given(
    body=bodies(), passes=st.integers(2, 4), style=st.sampled_from(["loop", "written out"]), others=st.integers(0, 3)
)
@settings(max_examples=40, deadline=None)
def test_unrelated_parts_change_nothing(body, passes, style, others):
    alone = trace(compiled(body, passes, style), torch.rand(2))
    history = trace(Beside(compiled(body, passes, style), others), torch.rand(2), torch.rand(2))
    inside = [op for op in history if "model" in op.containing_module_origin_nested]
    beside = [op for op in history if op.func_applied and op not in inside]
    assert [op.pass_num for op in inside] == [number for _, number in passes_of(alone)]
    assert [op.layer_passes_total for op in beside] == [1] * (2 * others)


@st.composite
def masks(draw):
    """Draw for each step of a body the passes that run it; all passes run one of the steps."""
    passes, steps = draw(st.integers(2, 6)), draw(st.integers(1, 5))
    found = [draw(st.lists(st.booleans(), min_size=passes, max_size=passes)) for _ in range(steps)]
    found.insert(draw(st.integers(0, steps)), [True] * passes)
    return found


def with_steps_left_out(steps, first):
    """Return a function whose loop runs each step in the passes that its mask selects."""
    lines = [f"    if {mask}[i]: x = {name}" for name, mask in steps.items()]
    source = "\n".join(
        ["def forward(x, fc=None):", *first, f"  for i in range({len(mask_of(steps))}):", *lines, "  return x"]
    )
    name = f"/left_out/{abs(hash(source))}.py"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space = {"torch": torch}
    exec(compile(source, name, "exec"), space)  # noqa: S102 - the test wrote it
    return space["forward"]


def mask_of(steps):
    return next(iter(steps.values()))


@given(masks=masks(), with_layer=st.booleans())
@settings(max_examples=100, deadline=None)
def test_passes_that_leave_steps_out_are_passes_of_one_loop(masks, with_layer):
    always = masks.index([True] * len(masks[0]))
    names = [f"torch.{function}(x)" for function in UNARY[: len(masks)]]
    if with_layer:
        names[always] = "fc(x)"
    forward = with_steps_left_out(dict(zip(names, masks, strict=True)), [])
    model = WithLayer(forward) if with_layer else Function(forward)
    history = trace(model, torch.rand(1, 3))
    found = {}
    for op in history:
        if op.func_applied:
            found.setdefault(op.layer_type, set()).add((op.layer_label, op.layer_passes_total))
    for name, mask in zip(names, masks, strict=True):
        kind = "linear" if name == "fc(x)" else name.removeprefix("torch.").removesuffix("(x)")
        assert [total for _, total in found.get(kind, ())] == [sum(mask)] * any(mask), (kind, history.layer_labels)


class WithLayer(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.function = forward

    def forward(self, x):
        return self.function(x, self.fc)


@given(kinds=st.lists(st.integers(0, 2), min_size=1, max_size=8), passes=st.integers(2, 4))
@settings(max_examples=40, deadline=None)
def test_layers_with_parameters_run_n_times(kinds, passes):
    model = Recurrent(kinds, passes)
    history = trace(model, torch.rand(1, 3))
    found = [(op.pass_num, op.layer_passes_total) for op in history if op.func_applied]
    steps = len(found) // passes
    assert found == [(number, passes) for number in range(1, passes + 1) for _ in range(steps)]
    assert len({op.layer_label for op in history if op.func_applied}) == steps


class Recurrent(nn.Module):
    """Linear layers, activations and skip connections, run several times."""

    def __init__(self, kinds, passes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in kinds)
        self.kinds, self.passes = kinds, passes

    def forward(self, x):
        for _ in range(self.passes):
            for layer, kind in zip(self.layers, self.kinds, strict=True):
                y = layer(x)
                x = torch.relu(y) if kind == 0 else x + y if kind == 1 else torch.tanh(y) * 2
        return x
