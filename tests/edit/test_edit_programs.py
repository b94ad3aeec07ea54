"""Edits of random programs: by replay and live they give what the running model gives with an edit by a mode."""

from __future__ import annotations

import random
import warnings

import hypothesis
import pytest
import torch

from pytest_torchlens import DecisionChangedError
from pytest_torchlens import NotReplayableError
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.leaves import walk
from tests.replay.edits import edit_of
from tests.replay.test_random_subgraphs import FITTING
from tests.replay.test_random_subgraphs import SETTINGS
from tests.replay.test_random_subgraphs import halved
from tests.replay.test_random_subgraphs import recorded
from tests.replay.test_random_subgraphs import run
from tests.replay.test_random_subgraphs import state

PER_PROGRAM = 3


def outputs_of(output):
    return [fingerprint(tensor) for _, tensor in walk(output)]


def edited(history, label, live):
    """Return the fingerprints of the outputs of an edited pass; None if the edit is refused."""
    try:
        return outputs_of(history.edit({label: halved}, live=live).recording.output)
    except (NotReplayableError, DecisionChangedError):
        return None


def with_mode(program, mode):
    """Return what the program returns when a mode edits it; None if it does not take the edit."""
    generator = torch.get_rng_state()
    try:
        return run(program, mode)[2]
    except RuntimeError:
        return None
    finally:
        torch.set_rng_state(generator)


def check(program):
    """Check some edits of a program; return how many were compared, by replay and live."""
    model, inputs, history = recorded(program, "all")
    before = state(model, inputs, history)
    nodes = [node for node in history.nodes if node.kind == "operation" and node.value.dtype.is_floating_point]
    compared = [0, 0]
    for node in random.Random(1).sample(nodes, min(len(nodes), PER_PROGRAM)):
        mode = edit_of(history, node, halved)
        output = None if mode is None else with_mode(program, mode)
        if output is None:
            continue
        replayed = edited(history, node.label, live=False)
        if replayed is not None and mode.keeps_requires_grad:
            assert replayed == outputs_of(output)
            compared[0] += 1
        assert state(model, inputs, history) == before
        contents = contents_of(model, inputs, history)
        with program.mode():
            live = edited(history, node.label, live=True)
        if live is not None:
            assert live == outputs_of(output)
            compared[1] += 1
        assert contents_of(model, inputs, history) == contents
        before = state(model, inputs, history)
    return compared


def contents_of(model, inputs, history):
    """Return the state without version counters: a live pass may write, and what it wrote is put back."""
    (facts, *others) = state(model, inputs, history)
    return [(digest, grad) for digest, _, grad in facts], others


def checked_in(examples, check):
    """Check some programs; return what each check returned."""
    results = []

    @hypothesis.settings(SETTINGS, max_examples=examples)
    @hypothesis.given(program=FITTING)
    def check_one(program):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results.append(check(program))

    check_one()
    return results


@pytest.mark.parametrize("examples", [20, pytest.param(120, marks=pytest.mark.slow)])
def test_random_programs(examples):
    replayed, live = (sum(each) for each in zip(*checked_in(examples, check), strict=True))
    assert min(replayed, live) > examples
