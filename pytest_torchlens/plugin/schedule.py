"""Which of the models run, and in what order: the cheapest first."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import zip_longest
from typing import TYPE_CHECKING

import pytest

from pytest_torchlens.plugin.items import ModelItem

if TYPE_CHECKING:
    from collections.abc import Collection
    from collections.abc import Iterator
    from collections.abc import Mapping

    from pytest_torchlens.plugin.settings import SweepOptions

GUESSES = {"fast": 5.0, "slow": 60.0, "huge": 600.0}
"""Seconds of a model that was never run here, by its size class."""


class Schedule:
    """Sorts the models of each zoo file by what they cost, and leaves out those that are not to run.

    Registered as a plugin of its own: it comes after all others have deselected what they will.

    Parameters
    ----------
    sweep
        The options.
    costs
        Seconds of each model in the last run, by node id, as far as they are known.
    done
        Node ids of models that need not run, for they passed in the run that is resumed.
    """

    def __init__(self, sweep: SweepOptions, costs: Mapping[str, float], done: Collection[str]) -> None:
        self._sweep = sweep
        self._costs = costs
        self._done = done

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Put the models that run in order, each zoo file's at its own place; tell pytest of the others."""
        models = [item for item in items if isinstance(item, ModelItem)]
        chosen = set(self._chosen(models))
        if dropped := [item for item in models if item not in chosen]:
            config.hook.pytest_deselected(items=dropped)
        by_file: dict[object, list[ModelItem]] = defaultdict(list)
        for item in sorted(chosen, key=self._rank):
            by_file[item.parent].append(item)
        sorted_ones = iter([item for parent in dict.fromkeys(one.parent for one in models) for item in by_file[parent]])
        items[:] = [
            next(sorted_ones) if isinstance(item, ModelItem) else item
            for item in items
            if not isinstance(item, ModelItem) or item in chosen
        ]

    def cost(self, item: ModelItem) -> float:
        """Return the seconds that a model will take, as far as is known."""
        return self._costs.get(item.nodeid, GUESSES[item.case.settings.size])

    def _rank(self, item: ModelItem) -> tuple[float, str]:
        return self.cost(item), item.nodeid

    def _chosen(self, models: list[ModelItem]) -> list[ModelItem]:
        found = [item for item in models if item.case.settings.size in self._sweep.sizes]
        if self._sweep.sample:
            found = sample(found, *self._sweep.sample)
        found = sorted(found, key=self._rank)[: self._sweep.limit]
        return [item for item in found if item.nodeid not in self._done]


def sample(models: list[ModelItem], count: int, seed: int) -> list[ModelItem]:
    """Return so many models, from all families as evenly as can be; the same for the same seed."""
    families: dict[tuple[str, str], list[ModelItem]] = defaultdict(list)
    for item in models:
        families[item.case.zoo, item.case.family].append(item)
    draw = random.Random(seed)  # noqa: S311 - no secret
    groups = [draw.sample(group, len(group)) for _, group in sorted(families.items())]
    draw.shuffle(groups)
    return list(_in_turn(groups))[:count]


def _in_turn(groups: list[list[ModelItem]]) -> Iterator[ModelItem]:
    for turn in zip_longest(*groups):
        yield from filter(None, turn)
