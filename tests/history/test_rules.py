"""The three rules for layers, on models of a few lines with their expected layers."""

from __future__ import annotations

import pytest
from torch import nn

from pytest_torchlens.records import Status
from pytest_torchlens.validate.invariants import check_invariants
from tests.history import programs_of_branches
from tests.history import programs_of_loops
from tests.history import programs_of_modules
from tests.history import programs_of_parameters
from tests.history.loop_programs import Nested
from tests.history.loop_programs import build
from tests.history.loop_programs import layers_of
from tests.history.loop_programs import trace

PROGRAMS = {
    **programs_of_branches.PROGRAMS,
    **programs_of_loops.PROGRAMS,
    **programs_of_modules.PROGRAMS,
    **programs_of_parameters.PROGRAMS,
}
ONE_INPUT = [name for name, program in PROGRAMS.items() if len(program.inputs()) == 1]


@pytest.mark.parametrize("name", PROGRAMS)
def test_layers(name):
    program = PROGRAMS[name]
    assert layers_of(trace(build(program.code), *program.inputs())) == program.layers.split()


@pytest.mark.parametrize("name", PROGRAMS)
def test_layers_three_modules_deep(name):
    program = PROGRAMS[name]
    deep = Nested(build(program.code), 3)
    assert layers_of(trace(deep, *program.inputs())) == program.layers.split()


@pytest.mark.parametrize("name", ONE_INPUT)
def test_layers_in_a_sequential(name):
    program = PROGRAMS[name]
    assert layers_of(trace(nn.Sequential(build(program.code)), *program.inputs())) == program.layers.split()


def test_a_pass_of_another_layer_fails_the_invariants():
    history = trace(build(PROGRAMS["xyz_as_a_loop"].code), *PROGRAMS["xyz_as_a_loop"].inputs())
    assert check_invariants(history).status is Status.PASSED
    node = history.nodes[2]
    node.pass_num = 2
    verdict = check_invariants(history)
    assert verdict.status is Status.FAILED
    assert "it is not pass 2 of its layer" in [failure.message for failure in verdict.failures]
