"""What the tests of checks have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from pytest_torchlens.checks.catalog import CheckSetting
from pytest_torchlens.checks.catalog import PlannedCheck
from pytest_torchlens.checks.catalog import known_checks
from pytest_torchlens.checks.frame import run_checks
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.subject import Tools
from pytest_torchlens.checks.uncalled import Uncalled
from pytest_torchlens.records import CheckResult
from pytest_torchlens.run.preserved_state import preserved_global_state
from pytest_torchlens.validate.state import ModelState


class TwoLayers(nn.Module):
    """Two linear layers with seeded weights, for a forward of a test's own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 8)
        self.last = nn.Linear(8, 4)


class Waves(TwoLayers):
    """Layers with waves between them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y = y.sin()  # waves
        return self.last(y)  # type: ignore[no-any-return]


class Approximate(Waves):
    """Takes a cheaper function while it is exported."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = nn.functional.gelu(x, approximate="tanh" if torch.compiler.is_exporting() else "none")  # the function
        return self.last(x.sin())  # type: ignore[no-any-return]


class Branching(Waves):
    """Branches on a value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if y.sum() > 0:  # the branch
            y = y * 2
        return self.last(y)  # type: ignore[no-any-return]


def subject_of(model: nn.Module, *args: Any, seed: int | None = 0, **kwargs: Any) -> Subject:
    """Return a subject of these inputs."""
    uncalled = Uncalled.of(model, is_new=False)
    tools = Tools(snapshot=ModelState, preserved=preserved_global_state, uncalled=uncalled)
    return Subject(model, args, kwargs, tools=tools, seed=seed)


def check(name: str, model: nn.Module, *args: Any, **options: Any) -> CheckResult:
    """Return the result of one check of a model."""
    with torch.no_grad():
        (result,) = run_checks(
            subject_of(model, *args), [PlannedCheck(known_checks()[name], CheckSetting(options=options))]
        )
    return result


def line_of(result: CheckResult) -> str:
    """Return the text of the line that a result names."""
    assert result.failure is not None
    place = result.failure.source_place
    assert place is not None
    return Path(place.file).read_text(encoding="utf-8").splitlines()[place.line - 1].strip()
