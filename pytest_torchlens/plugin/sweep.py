"""A run over many models: which ones run, in what order, and how long it takes.

pytest's cache stores the seconds of each model, so that a later run starts with the cheapest.
"""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import pytest

from pytest_torchlens.plugin.items import ModelItem
from pytest_torchlens.plugin.options import MANY
from pytest_torchlens.plugin.progress import Estimate
from pytest_torchlens.plugin.progress import Progress
from pytest_torchlens.plugin.results import ReportFolder
from pytest_torchlens.plugin.results import folders_left
from pytest_torchlens.plugin.results import new_folder
from pytest_torchlens.plugin.results import remove_old
from pytest_torchlens.plugin.results import stamps

if TYPE_CHECKING:
    from collections.abc import Collection
    from collections.abc import Iterator
    from collections.abc import Mapping
    from collections.abc import Sequence

    from pytest_torchlens.plugin.selection import Selection
    from pytest_torchlens.plugin.settings import SweepOptions
    from pytest_torchlens.run import RunOptions


KEY = "lens/costs"


def known_costs(config: pytest.Config) -> dict[str, float]:
    """Return seconds by node id, as far as pytest's cache knows."""
    cache = getattr(config, "cache", None)  # -p no:cacheprovider
    found = cache.get(KEY, {}) if cache else {}
    return found if isinstance(found, dict) else {}


def keep_costs(config: pytest.Config, costs: Mapping[str, float]) -> None:
    """Add what models took in this run."""
    cache = getattr(config, "cache", None)
    if cache and costs:
        cache.set(KEY, {**known_costs(config), **costs})


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


class Sweep:
    """Holds what the controller and its workers must agree on; a plugin of its own beside the session's."""

    def __init__(self, config: pytest.Config, options: SweepOptions, selection: Selection, run: RunOptions) -> None:
        shared: dict[str, Any] | None = getattr(config, "workerinput", {}).get("lens")
        if shared is None:
            if options.sample:
                selection.check_families()
            marks = stamps(selection, run)
            reports = _resumed(config, marks) if options.resume else ReportFolder(new_folder(config), marks)
            done = [nodeid for nodeid in marks if reports.has_passed(nodeid)]
            shared = {"folder": str(reports.folder), "stamps": marks, "costs": known_costs(config), "done": done}
        self._shared = shared
        self.reports = ReportFolder(Path(shared["folder"]), shared["stamps"])
        self.done: list[str] = shared["done"]
        """Models that passed in the run that is resumed."""
        self.schedule = Schedule(options, shared["costs"], frozenset(self.done))
        self.estimate = Estimate({})
        self._config = config
        self._is_worker = hasattr(config, "workerinput")
        self._seconds: dict[str, float] = defaultdict(float)
        self._line = Progress(config, "lens")
        config.pluginmanager.register(self.schedule, "lens-schedule")
        config.pluginmanager.register(self, "lens-sweep")

    @property
    def tells_places(self) -> bool:
        """Whether there are so many models that a reader wants to know how far the run is."""
        return len(self._shared["stamps"]) > MANY

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell an xdist worker what it must know."""
        node.workerinput["lens"] = self._shared

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Estimate the time that the models take which are left after all deselections."""
        from pytest_torchlens.plugin.items import ModelItem

        models = [item for item in session.items if isinstance(item, ModelItem)]
        self.estimate = Estimate({item.nodeid: self.schedule.cost(item) for item in models})

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Estimate it where workers collect."""
        models = [nodeid for nodeid in ids if nodeid in self._shared["stamps"]]
        costs = {nodeid: self._shared["costs"].get(nodeid, GUESSES["fast"]) for nodeid in models}
        self.estimate = Estimate(costs, len(self._config.getoption("tx", None) or [1]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what a model took, and that it has ended."""
        if self._is_worker or report.nodeid not in self._shared["stamps"]:
            return
        self._seconds[report.nodeid] += report.duration
        if report.when == "teardown" or report.failed:
            self.estimate.end(report.nodeid, self._seconds[report.nodeid])
            if self._config.getoption("tx", None):
                self._line.show(str(self.estimate))

    def pytest_sessionfinish(self) -> None:
        """Keep what the models took."""
        if not self._is_worker:
            self._line.show("")
            keep_costs(self._config, self._seconds)

    def close(self) -> None:
        """Remove the reports, unless the run was cut short and can be resumed."""
        if self._is_worker:
            return
        if self.estimate.nodeids and getattr(self._config, "cache", None):
            remove_old(self._config)
        else:
            self.reports.remove()


def _resumed(config: pytest.Config, marks: dict[str, str]) -> ReportFolder:
    """Return the reports of the run, among those cut short, that has most of these models; a new one if none has."""
    found = [ReportFolder(folder, marks) for folder in folders_left(config)]
    found.append(ReportFolder(new_folder(config), marks))
    return max(found, key=lambda reports: sum(map(reports.has_passed, marks)))
