"""Subgraphs of random programs: bit-equal without a swap, and equal to an edit of the running model with one."""

from __future__ import annotations

import contextlib
import random
import warnings

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

import pytest_torchlens as tl
from pytest_torchlens import DecisionChangedError
from pytest_torchlens import NotExportableError
from pytest_torchlens import NotReplayableError
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.leaves import walk
from tests.capture.random_programs import PROGRAMS
from tests.capture.random_programs import runs
from tests.replay import more_statements
from tests.replay.edits import edit_of

SETTINGS = hypothesis.settings(
    deadline=None,
    derandomize=True,
    max_examples=50,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.filter_too_much, hypothesis.HealthCheck.too_slow],
)
SEEN_PER_PROGRAM = 4


def halved(tensor):
    return tensor * 0.5 + 0.25


def run(program, *modes):
    """Run a program from its seed, and return its model, its inputs and what it returns."""
    model, inputs = program.build()
    torch.manual_seed(6)
    with program.mode():
        for mode in modes:
            with mode:
                return model, inputs, model(*inputs)
    return model, inputs, model(*inputs)


def fits(program):
    """Return whether a program runs, also from the seed of `run`, which may send it another way."""
    if not runs(program):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(program)
    except RuntimeError:
        return False
    return True


FITTING = PROGRAMS.filter(fits)
MORE = more_statements.PROGRAMS.filter(fits)


def recorded(program, layers_to_save):
    model, inputs = program.build()
    torch.manual_seed(6)
    with program.mode():
        return model, inputs, tl.log_forward_pass(model, list(inputs), layers_to_save=layers_to_save)


def state(model, inputs, history):
    saved = [node.value.tensor for node in history.nodes if node.value.tensor is not None]
    held = [*(tensor for _, tensor in walk(inputs)), *model.state_dict(keep_vars=True).values(), *saved]
    facts = [(fingerprint(one), -1 if one.is_inference() else one._version, one.requires_grad) for one in held]
    return facts, [parameter.grad for parameter in model.parameters()], fingerprint(torch.get_rng_state())


def digests(values):
    return [fingerprint(tensor) for tensor in values]


def swapped(subgraph, swap):
    """Return the digests of the outputs; None if the swap is refused."""
    try:
        return digests(subgraph.run(swap).values())
    except (NotReplayableError, DecisionChangedError):
        return None


def check(program, layers_to_save):
    """Check every kind of subgraph of some operations; return how many edits were compared."""
    model, inputs, history = recorded(program, layers_to_save)
    before = state(model, inputs, history)
    assert digests(history.subgraph().run().values()) == digests(t for _, t in walk(history.recording.output))
    operations = [node for node in history.nodes if node.kind == "operation"]
    compared = 0
    for node in random.Random(0).sample(operations, min(len(operations), SEEN_PER_PROGRAM)):
        expected = {node.label: node.value.fingerprint}
        for part in (history.subgraph(end=node.label), history.subgraph(operations=[node.label], end=node.label)):
            assert {label: fingerprint(tensor) for label, tensor in part.run().items()} == expected
        compared += check_edit(program, history, node)
        check_range(history, node)
    assert state(model, inputs, history) == before
    return compared


def check_range(history, node):
    """Check the part from a value to an operation: run, with a swap, and exported."""
    label, before = node.label, history.subgraph(end=node.label)
    start = random.Random(node.number).choice([*before.operations, *before.inputs, label])
    try:
        part = history.subgraph(start, label)
    except ValueError:  # another result of an operation that it depends on
        return
    expected = {label: node.value.fingerprint}
    assert {name: fingerprint(tensor) for name, tensor in part.run().items()} == expected
    if history[start].tensor_shape is not None and history[start].tensor_dtype == "float32":
        parts = [swapped(one, {start: halved}) for one in (part, before)]
        assert None in parts or parts[0] == parts[1]
    with contextlib.suppress(NotExportableError):
        part.to_fx()  # it compares what the module gives


def check_edit(program, history, node):
    mode = edit_of(history, node, halved)
    if not (node.to_output and node.value.dtype.is_floating_point) or mode is None:
        return 0
    generator = torch.get_rng_state()
    try:
        _, _, output = run(program, mode)
    except RuntimeError:  # the program does not take the edit
        return 0
    finally:
        torch.set_rng_state(generator)
    actual = swapped(history.subgraph(), {node.label: halved})
    if actual is None:
        return 0
    assert mode.done
    if output["ways"] != history.recording.output["ways"]:
        assert not mode.keeps_requires_grad  # which a program asks for; else the swap was to be refused
        return 0
    assert actual == digests(tensor for _, tensor in walk(output))
    return 1


@pytest.mark.parametrize("layers_to_save", ["all", None])
@SETTINGS
@hypothesis.given(program=FITTING)
def test_random_programs(layers_to_save, program):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(program, layers_to_save)


@SETTINGS
@hypothesis.given(program=MORE)
def test_random_programs_of_more_statements(program):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(program, "all")


@pytest.mark.slow
@pytest.mark.parametrize("programs", [FITTING, MORE], ids=["plain", "more"])
@hypothesis.settings(SETTINGS, max_examples=500)
@hypothesis.given(data=st.data())
def test_many_random_programs(programs, data):
    program = data.draw(programs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(program, "all")
        check(program, None)
