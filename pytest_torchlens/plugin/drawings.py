"""What a run tells of the drawings that ``--lens-graph`` asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_torchlens.run import NO_GRAPH
from pytest_torchlens.run import UNFIT_GRAPH

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Iterator

    from pytest_torchlens.records import ModelReport


def fit_none(models: Iterable[ModelReport]) -> bool:
    """Whether what was asked for fits none of the models that could have been drawn."""
    drawable = [model for model in models if model.history is not None]
    return bool(drawable) and all(_reasons(model, UNFIT_GRAPH) for model in drawable)


def missing(models: tuple[ModelReport, ...]) -> Iterator[str]:
    """Say of how many models there is no drawing, with the first reason of each kind."""
    for kind in (UNFIT_GRAPH, NO_GRAPH):
        reasons = [reason for model in models for reason in _reasons(model, kind)]
        if reasons:
            yield f"no graph of {len(reasons)} of {len(models)} model{'s' * (len(models) != 1)}: {kind}{reasons[0]}"


def _reasons(model: ModelReport, kind: str) -> list[str]:
    return [note.removeprefix(kind) for note in model.notes if note.startswith(kind)]
