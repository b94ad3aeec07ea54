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
from pytest_torchlens.plugin.options import ISOLATE_ABOVE
from pytest_torchlens.plugin.progress import Estimate
from pytest_torchlens.plugin.progress import Progress
from pytest_torchlens.plugin.results import RUNS_FOLDER
from pytest_torchlens.plugin.results import ReportFolder
from pytest_torchlens.plugin.results import interrupted_runs
from pytest_torchlens.plugin.results import new_folder
from pytest_torchlens.plugin.results import remove_old_runs
from pytest_torchlens.plugin.results import stamps

if TYPE_CHECKING:
    from collections.abc import Collection
    from collections.abc import Iterator
    from collections.abc import Mapping
    from collections.abc import Sequence

    from pytest_torchlens.plugin.selection import Selection
    from pytest_torchlens.plugin.settings import SweepOptions
    from pytest_torchlens.run import RunOptions


class Sweep:
    """Shares order, costs and report files between the controller and its workers.

    Parameters
    ----------
    config
        pytest's configuration.
    options
        Those of a run over many models.
    selection
        The models.
    run
        What is done with each.
    unchanged
        Node ids of models that are not audited; those of an xdist worker come from its controller.
    """

    def __init__(
        self,
        config: pytest.Config,
        options: SweepOptions,
        selection: Selection,
        run: RunOptions,
        unchanged: Sequence[str] = (),
    ) -> None:
        shared: dict[str, Any] | None = getattr(config, "workerinput", {}).get("lens")
        if shared is None:
            if options.sample:
                selection.check_families()
            digests = stamps(selection, run)
            new = ReportFolder(new_folder(config), digests)
            reports = _reports_to_resume(config, digests, new) if options.resume else new
            passed = [nodeid for nodeid in digests if reports.has_passed(nodeid)]
            shared = {"folder": str(reports.folder), "stamps": digests, "costs": known_costs(config), "passed": passed}
            shared["unchanged"] = list(unchanged)
        self._shared_values = shared
        self.reports = ReportFolder(Path(shared["folder"]), shared["stamps"])
        self.passed_before: list[str] = shared["passed"]
        """Node ids of models that passed in the resumed run."""
        self.unchanged: frozenset[str] = frozenset(shared["unchanged"])
        """Node ids of models that ``--lens-changed-since`` leaves out."""
        self.schedule = Schedule(options, shared["costs"], frozenset(self.passed_before), self.unchanged)
        self.estimate = Estimate({})
        self._config = config
        self._is_worker = hasattr(config, "workerinput")
        self._seconds: dict[str, float] = defaultdict(float)
        self._line = Progress(config, "lens")
        config.pluginmanager.register(self.schedule, "lens-schedule")
        config.pluginmanager.register(self, "lens-sweep")

    @property
    def shows_position(self) -> bool:
        """Whether the run has enough models to show each model's position."""
        return len(self._shared_values["stamps"]) > ISOLATE_ABOVE

    @property
    def _is_in_cache(self) -> bool:
        """Whether pytest's cache holds the reports; not without a cache, or if it cannot be written."""
        return self.reports.folder.parent.name == RUNS_FOLDER

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Send the shared values to an xdist worker."""
        node.workerinput["lens"] = self._shared_values

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Estimate the time of the models that are left after all deselections."""
        from pytest_torchlens.plugin.items import ModelItem

        if self._is_worker:
            self._config.workeroutput["lens_has_left_out"] = self.schedule.has_left_out  # type: ignore[attr-defined]
        models = [item for item in session.items if isinstance(item, ModelItem)]
        self.estimate = Estimate({item.nodeid: self.schedule.cost(item) for item in models})

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Estimate the time in the controller, whose workers collect."""
        models = [nodeid for nodeid in ids if nodeid in self._shared_values["stamps"]]
        costs = {nodeid: self._shared_values["costs"].get(nodeid, DEFAULT_COSTS["fast"]) for nodeid in models}
        self.estimate = Estimate(costs, len(self._config.getoption("tx", None) or [1]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a model's time, and that it has ended."""
        if self._is_worker or report.nodeid not in self._shared_values["stamps"]:
            return
        self._seconds[report.nodeid] += report.duration
        if report.when == "teardown" or report.failed:
            self.estimate.end(report.nodeid, self._seconds[report.nodeid])
            if self._config.getoption("tx", None):
                self._line.show(str(self.estimate))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Learn from an xdist worker, which selects models, whether it left out some."""
        self.schedule.has_left_out |= getattr(node, "workeroutput", {}).get("lens_has_left_out", False)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Let a run pass in which no selected model had to be audited; save the seconds of the models."""
        if self.schedule.has_left_out and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK
        if not self._is_worker:
            self._line.show("")
            if self._is_in_cache:
                save_costs(self._config, self._seconds)

    def close(self) -> None:
        """Remove the reports, unless the run was interrupted and can be resumed."""
        if self._is_worker:
            return
        if self.estimate.nodeids and self._is_in_cache:
            remove_old_runs(self._config)
        else:
            self.reports.remove()


def _reports_to_resume(config: pytest.Config, digests: dict[str, str], new: ReportFolder) -> ReportFolder:
    """Return the reports of the interrupted run with most of these models; `new` if no run has any."""
    found = [ReportFolder(folder, digests) for folder in interrupted_runs(config)]
    return max([*found, new], key=lambda reports: sum(map(reports.has_passed, digests)))


DEFAULT_COSTS = {"fast": 5.0, "slow": 60.0, "huge": 600.0}
"""Assumed seconds of a model that has not run here, by its size class."""


class Schedule:
    """Sorts the models of each zoo file by cost, and deselects those that need not run.

    It is a separate plugin, so that it runs after all others have deselected items.

    Parameters
    ----------
    sweep
        The options.
    costs
        Seconds of each model in earlier runs, by node id, where known.
    passed_before
        Node ids of models that need not run, because they passed in the resumed run.
    unchanged
        Node ids of models that are not selected, because nothing of them changed.

    Attributes
    ----------
    has_left_out
        Whether a model was deselected for no other reason than that nothing of it changed.
    """

    has_left_out = False

    def __init__(
        self,
        sweep: SweepOptions,
        costs: Mapping[str, float],
        passed_before: Collection[str],
        unchanged: Collection[str] = (),
    ) -> None:
        self._sweep = sweep
        self._costs = costs
        self._passed_before = passed_before
        self._unchanged = unchanged

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Sort the models that run within their zoo file, and report the others as deselected."""
        models = [item for item in items if isinstance(item, ModelItem)]
        selection = set(self._select(models))
        if others := [item for item in models if item not in selection]:
            config.hook.pytest_deselected(items=others)
        by_file: dict[object, list[ModelItem]] = defaultdict(list)
        for item in sorted(selection, key=self._rank):
            by_file[item.parent].append(item)
        queue = iter([item for parent in dict.fromkeys(one.parent for one in models) for item in by_file[parent]])
        items[:] = [
            next(queue) if isinstance(item, ModelItem) else item
            for item in items
            if not isinstance(item, ModelItem) or item in selection
        ]

    def cost(self, item: ModelItem) -> float:
        """Return the seconds that a model will probably take."""
        return self._costs.get(item.nodeid, DEFAULT_COSTS[item.case.settings.size])

    def _rank(self, item: ModelItem) -> tuple[float, str]:
        return self.cost(item), item.nodeid

    def _select(self, models: list[ModelItem]) -> list[ModelItem]:
        of_size = [item for item in models if item.case.settings.size in self._sweep.sizes]
        found = [item for item in of_size if item.nodeid not in self._unchanged]
        self.has_left_out = len(found) < len(of_size)
        if self._sweep.sample:
            found = sample(found, *self._sweep.sample)
        found = sorted(found, key=self._rank)[: self._sweep.limit]
        return [item for item in found if item.nodeid not in self._passed_before]


def sample(models: list[ModelItem], count: int, seed: int) -> list[ModelItem]:
    """Return `count` models, as evenly from all families as possible; the same for the same seed."""
    families: dict[tuple[str, str], list[ModelItem]] = defaultdict(list)
    for item in models:
        families[item.case.zoo, item.case.family].append(item)
    draw = random.Random(seed)  # noqa: S311 - no secret
    groups = [draw.sample(group, len(group)) for _, group in sorted(families.items())]
    draw.shuffle(groups)
    return list(_round_robin(groups))[:count]


def _round_robin(groups: list[list[ModelItem]]) -> Iterator[ModelItem]:
    for turn in zip_longest(*groups):
        yield from filter(None, turn)


COSTS_KEY = "lens/costs"


def known_costs(config: pytest.Config) -> dict[str, float]:
    """Return the seconds by node id in pytest's cache."""
    cache = getattr(config, "cache", None)  # -p no:cacheprovider
    found = cache.get(COSTS_KEY, {}) if cache else {}
    return found if isinstance(found, dict) else {}


def save_costs(config: pytest.Config, costs: Mapping[str, float]) -> None:
    """Add the seconds of this run's models."""
    cache = getattr(config, "cache", None)
    if cache and costs:
        cache.set(COSTS_KEY, {**known_costs(config), **costs})
