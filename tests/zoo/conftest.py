"""The shipped zoo that a test module is about, and the history of one of its models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import pytest_torchlens as tl
from pytest_torchlens.zoo import Zoo
from pytest_torchlens.zoo import load_zoo
from pytest_torchlens.zoo.catalog import shipped_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_torchlens.zoo import ModelCase


@pytest.fixture(scope="module")
def zoo(request: pytest.FixtureRequest) -> Zoo:
    """The zoo that the module names in ``ZOO``."""
    return load_zoo(shipped_folder() / f"{request.module.ZOO}.yaml")


@pytest.fixture
def history_of() -> Callable[[ModelCase], tl.ModelHistory]:
    return _history_of


def _history_of(case: ModelCase) -> tl.ModelHistory:
    model = case.build()
    args, kwargs = case.make_inputs(model)
    with torch.no_grad():
        return tl.log_forward_pass(model, list(args), kwargs)
