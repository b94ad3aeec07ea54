"""Models that try to get a wrong "passed" fail, are unproven, or stand in the documentation with the reason."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch

from pytest_torchlens.records import Status
from pytest_torchlens.records import Verdict
from pytest_torchlens.validate import validate
from tests.models import Function
from tests.validate import fooling
from tests.validate import fooling_by_behaviour
from tests.validate import fooling_past_torch
from tests.validate import fooling_through_python  # noqa: F401 - it registers models

PAGE = Path(__file__).parents[2] / "docs" / "validation.md"
GLOBALS = (fooling_past_torch.GLOBAL, fooling_past_torch.OVER_ARRAY, fooling_past_torch.UNDER_ARRAY)


@pytest.fixture(autouse=True)
def _nothing_remembered():
    fooling_by_behaviour.GATE.clear()
    for function in (fooling_by_behaviour.doubled, fooling_by_behaviour.positions, fooling_by_behaviour.twos):
        function.cache_clear()
    yield
    fooling_by_behaviour.GATE.set()
    fooling_by_behaviour.MARK.unlink(missing_ok=True)
    os.environ.pop("FOOLING", None)
    fooling.CALLS.clear()
    fooling.KEPT.clear()
    for tensor in GLOBALS:
        tensor.fill_(1)


def verdict_on(forward) -> Verdict:
    model = forward() if isinstance(forward, type) else Function(forward)
    return validate(model, (fooling_past_torch.X,)).verdict


def texts(verdict: Verdict) -> list[str]:
    failures = [failure for part in verdict.parts for failure in part.failures]
    return [*(f"{one.message}: {one.cause}" for one in failures), *(one.message for one in verdict.unproven)]


@pytest.mark.parametrize("name", fooling.MODELS)
def test_a_model_that_fools_ends_as_it_should(name):
    model = fooling.MODELS[name]
    verdict = verdict_on(model.forward)
    assert verdict.status is model.status, verdict.words
    assert any(model.says in text for text in texts(verdict)) or (model.status is Status.PASSED), texts(verdict)
    assert torch.equal(fooling_past_torch.X, torch.tensor(fooling_past_torch.DEFAULT))


def test_there_are_sixty_of_them_that_do_not_pass():
    ends = [model.status for model in fooling.MODELS.values()]
    assert sum(status is not Status.PASSED for status in ends) >= 60


def test_the_documentation_names_those_that_pass_wrongly():
    section = PAGE.read_text(encoding="utf-8").partition("## What can still fool it")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| ([^|]+?) +\| ", section, re.MULTILINE)[2:]) == sorted({*fooling.DOCUMENTED.values()})
