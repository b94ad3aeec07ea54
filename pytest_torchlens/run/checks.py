"""Gives the checks what they take from this layer: a model's state, fresh instances of it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from torch import nn

from pytest_torchlens.checks.catalog import PlannedCheck
from pytest_torchlens.checks.evidence import Evidence
from pytest_torchlens.checks.frame import run_checks
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.subject import Tools
from pytest_torchlens.checks.uncalled import Uncalled
from pytest_torchlens.records import CheckResult
from pytest_torchlens.run.pickle_child import run_in_child
from pytest_torchlens.run.preserved_state import preserved_global_state
from pytest_torchlens.validate.state import ModelState


def check_model(  # noqa: PLR0913 - the model, and what this layer knows of it
    model: nn.Module,
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    plan: Sequence[PlannedCheck],
    seed: int | None = None,
    build: Callable[[], nn.Module] | None = None,
    witness: Callable[[Evidence], object] = lambda evidence: None,
    uncalled: Uncalled | None = None,
) -> tuple[CheckResult, ...]:
    """Run checks of a model, and leave it, its inputs, the generators and settings of the process as they were.

    The settings are put back after each pass, and once more at the end.

    Parameters
    ----------
    model
        The model, in the mode in which it is to be checked.
    inputs
        Positional and keyword arguments.
    plan
        The checks.
    seed
        Seed before each pass; None begins each from the present state of the generators.
    build
        Makes a fresh instance of the model; None if nobody knows how.
    witness
        Gets what a failed check accuses.
    uncalled
        A copy of the model from before its first call; None for one of the model as it is now.
    """
    with preserved_global_state():
        tools = Tools(
            snapshot=ModelState,
            preserved=preserved_global_state,
            build=build,
            child=run_in_child,
            witness=witness,
            uncalled=uncalled or Uncalled.of(model, is_new=False),
        )
        subject = Subject(model, *inputs, tools=tools, seed=seed)
        return run_checks(subject, plan)
