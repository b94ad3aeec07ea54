"""A run over many models: which are left, in what order, how far it is, and what a later run can take over."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import pytest

from pytest_torchlens.plugin.costs import keep_costs
from pytest_torchlens.plugin.costs import known_costs
from pytest_torchlens.plugin.options import MANY
from pytest_torchlens.plugin.progress import Estimate
from pytest_torchlens.plugin.progress import Progress
from pytest_torchlens.plugin.results import Gathered
from pytest_torchlens.plugin.results import folders_left
from pytest_torchlens.plugin.results import new_folder
from pytest_torchlens.plugin.results import remove_old
from pytest_torchlens.plugin.results import stamps
from pytest_torchlens.plugin.schedule import GUESSES
from pytest_torchlens.plugin.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_torchlens.plugin.selection import Selection
    from pytest_torchlens.plugin.settings import SweepOptions
    from pytest_torchlens.run import RunOptions


class Sweep:
    """Holds what the controller and its workers must agree on; a plugin of its own beside the session's."""

    def __init__(self, config: pytest.Config, options: SweepOptions, selection: Selection, run: RunOptions) -> None:
        told: dict[str, Any] | None = getattr(config, "workerinput", {}).get("lens")
        if told is None:
            if options.sample:
                selection.check_families()
            marks = stamps(selection, run)
            gathered = _resumed(config, marks) if options.resume else Gathered(new_folder(config), marks)
            done = [nodeid for nodeid in marks if gathered.has_passed(nodeid)]
            told = {"folder": str(gathered.folder), "stamps": marks, "costs": known_costs(config), "done": done}
        self._told = told
        self.gathered = Gathered(Path(told["folder"]), told["stamps"])
        self.done: list[str] = told["done"]
        """Models that passed in the run that is resumed."""
        self.schedule = Schedule(options, told["costs"], frozenset(self.done))
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
        return len(self._told["stamps"]) > MANY

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell an xdist worker what it must know."""
        node.workerinput["lens"] = self._told

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Estimate the time that the models take which are left after all deselections."""
        from pytest_torchlens.plugin.items import ModelItem

        models = [item for item in session.items if isinstance(item, ModelItem)]
        self.estimate = Estimate({item.nodeid: self.schedule.cost(item) for item in models})

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Estimate it where workers collect."""
        models = [nodeid for nodeid in ids if nodeid in self._told["stamps"]]
        costs = {nodeid: self._told["costs"].get(nodeid, GUESSES["fast"]) for nodeid in models}
        self.estimate = Estimate(costs, len(self._config.getoption("tx", None) or [1]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what a model took, and that it has ended."""
        if self._is_worker or report.nodeid not in self._told["stamps"]:
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
            self.gathered.remove()


def _resumed(config: pytest.Config, marks: dict[str, str]) -> Gathered:
    """Return the reports of the run, among those cut short, that has most of these models; a new one if none has."""
    found = [Gathered(folder, marks) for folder in folders_left(config)]
    found.append(Gathered(new_folder(config), marks))
    return max(found, key=lambda gathered: sum(map(gathered.has_passed, marks)))
