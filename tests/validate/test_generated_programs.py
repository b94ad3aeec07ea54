"""Generated programs: none fails, none crashes, and every fault that is seeded into a fifth of them is found."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.validate.generated.figures import Figures
from tests.validate.generated.model import build
from tests.validate.generated.program import STEPS
from tests.validate.generated.program import Program
from tests.validate.generated.program import Step
from tests.validate.generated.program import generate
from tests.validate.generated.program import in_words
from tests.validate.generated.program import refused
from tests.validate.generated.program import smallest
from tests.validate.generated.verdicts import check
from tests.validate.generated.verdicts import names_in

CHUNK = 100
KINDS = {
    *("arithmetic", "dtypes", "constants", "views", "writes", "memory", "containers", "modules", "training", "random"),
    *("custom functions", "sparse", "quantised", "numbers in Python", "loops", "modes"),
}


@pytest.mark.parametrize("first", range(0, 10, 5))
def test_some_programs(first):
    figures = Figures()
    for seed in range(first, first + 5):
        figures.run(seed)
    assert figures.wrong == []
    assert figures.programs == 5
    assert figures.faults["seeded"] + figures.faults["not possible"] == 1


def test_all_kinds_are_generated():
    assert {kind.name for kind in STEPS.values()} == {*KINDS, "fault"}
    programs = [generate(seed, build) for seed in range(20)]
    assert {STEPS[name].name for program in programs for name in names_in(program)} == KINDS


def test_a_seed_gives_the_same_program_each_time():
    assert generate(3, build) == generate(3, build)
    assert generate(3, build) != generate(4, build)


def test_a_step_that_pytorch_refuses_is_named_and_one_that_does_not_fit_is_left_out():
    misfit, fits = Step("of_sparse", 1), Step("pointwise", 1)
    in_place = Program((misfit, fits, Step("loop", 0, (Step("in_place_alone", 4),))), "grad", input_requires_grad=True)
    places = {
        refused(dataclasses.replace(in_place, steps=(misfit, Step("in_place_alone", n))), build) for n in range(9)
    }
    assert places == {None, (1,)}  # a write to the leaf, or to another tensor
    assert refused(dataclasses.replace(in_place, steps=(misfit, fits)), build) is None


def test_a_program_is_shrunk_to_what_fails():
    program = generate(0, build)
    needle = Step("loop", 5, (Step("pointwise", 3), Step("several_outputs", 2)))
    program = dataclasses.replace(program, steps=(*program.steps, needle))
    least = smallest(program, lambda one: "several_outputs" in names_in(one))
    assert least == Program((needle.body[1],), "no_grad", returned=1)
    assert "arithmetic.several_outputs(" in in_words(least, build)


def test_an_unrecorded_write_is_wrong():
    program = Program((Step("weight_overwritten", 3), Step("pointwise", 3)), "no_grad")
    assert "changed during the forward pass" in " ".join(check(program).wrong)


@pytest.fixture(scope="module")
def figures():
    """Collect the figures of all chunks."""
    figures = Figures()
    yield figures
    print("", *figures.sentences(), sep="\n")  # noqa: T201


@pytest.mark.slow
@pytest.mark.sweep  # about an hour on one core: `pytest -m sweep -s tests/validate/test_generated_programs.py`
@pytest.mark.parametrize("first", range(0, 5000, CHUNK))
def test_five_thousand_programs(first, figures):
    torch.set_num_threads(1)
    before = len(figures.wrong)
    for seed in range(first, first + CHUNK):
        figures.run(seed, shrink=True)
    assert "\n\n".join(figures.wrong[before:]) == ""
