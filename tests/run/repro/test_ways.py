"""Which part of what another run has a file compares with the plain run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pytest_torchlens.checks.positions import Region
from pytest_torchlens.checks.side_by_side import Fit
from pytest_torchlens.checks.side_by_side import first_of
from pytest_torchlens.checks.side_by_side import whole
from pytest_torchlens.run.repro.ways import parts_like


def last_of_three(other: torch.Tensor, reference: torch.Tensor) -> Iterator[torch.Tensor]:
    yield other[2 * len(reference) :]
    yield other[2::3]


@pytest.mark.parametrize(
    ("fit", "other", "plain", "texts"),
    [
        (whole, (2, 3), (2, 3), [""]),
        (whole, (3, 3), (2, 3), []),
        (first_of(2), (4, 3), (2, 3), ["[:2]", "[::2]"]),
        (first_of(3), (5, 3), (5, 1), ["[:, :1]", "[:, :1]"]),
        (first_of(2), (2, 8, 3), (2, 4, 3), ["[:, :4]", "[:, ::2]"]),
        (last_of_three, (6, 4), (2, 4), ["[4:]", "[2::3]"]),
        (Region(3, 4, 7).fit, (2, 7, 5), (2, 4, 5), ["[:, 3:]"]),
        (Region(2, 4, 7).fit, (2, 7, 7), (2, 4, 4), ["[:, 2:6, 2:6]"]),
        (Region(2, 4, 7).fit_positions, (3, 4), (3, 4), [""]),
    ],
)
def test_the_parts_are_those_of_the_fit_of_the_check(
    fit: Fit, other: tuple[int, ...], plain: tuple[int, ...], texts: list[str]
) -> None:
    tensor, like = torch.rand(other), torch.rand(plain)
    parts = parts_like(tensor, like, fit)
    assert [part.text for part in parts] == texts
    views = [tensor] if other == plain else [*fit(tensor, like)]
    for part, view in zip(parts, views, strict=True):
        assert torch.equal(part.of(tensor), view)
