"""Adds models that tests called, and histories passed to ``lens_report``, to the run's report."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import pytest

from pytest_torchlens.plugin.results import ReportFolder
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import Outcome
from pytest_torchlens.records import Stage
from pytest_torchlens.records import Status
from pytest_torchlens.records import Verdict

if TYPE_CHECKING:
    from collections.abc import Generator
    from collections.abc import Iterator

ZOO = "tests"
"""What stands for the zoo of a model that a test called."""
_PAGES = pytest.StashKey[list[str]]()


class CalledModels:
    """Keeps a report of each, in the process of the test, and has them all where the run's report is written.

    Parameters
    ----------
    gathered
        Where reports of models get from one process to the other.
    folder
        The report's folder; None where no report is asked for.
    """

    def __init__(self, gathered: ReportFolder, folder: Path | None) -> None:
        self._gathered = gathered
        self._folder = folder
        self._names: Counter[str] = Counter()
        self._keys: dict[str, None] = {}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def add(self, item: pytest.Item, name: str, history: HistoryRecord, verdict: Verdict | None) -> ModelReport:
        """Make a report of a model; where a folder is, it gets a page."""
        place = f"{item.nodeid}::{name}"
        self._names[place] += 1
        number = f" ({self._names[place]})" if self._names[place] > 1 else ""
        from pytest_torchlens.audit import Subject
        from pytest_torchlens.audit import audit

        failed = verdict is not None and verdict.status is Status.FAILED
        report = ModelReport(
            zoo=ZOO,
            name=f"{place}{number}",
            nodeid=f"{place}{number}",
            outcome=Outcome.FAILED if failed else Outcome.PASSED,
            stage=Stage.VALIDATE if failed else Stage.DONE,
            record_ms=history.elapsed_time_total * 1e3,
            history=history,
            verdict=verdict,
            findings=audit(Subject(history)),
        )
        if self._folder is not None:
            self._keep(item, report, self._folder)
        return report

    def _keep(self, item: pytest.Item, report: ModelReport, folder: Path) -> None:
        from pytest_torchlens.report import save_drawing

        self._gathered.write(save_drawing(report, folder))
        item.stash.setdefault(_PAGES, []).append(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Have the test's report tell of its pages."""
        report: Any = yield
        report.lens_pages = item.stash.get(_PAGES, [])
        told: pytest.TestReport = report
        return told

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Hear of them."""
        self._keys.update(dict.fromkeys(getattr(report, "lens_pages", ())))

    def reports(self) -> Iterator[ModelReport]:
        """Yield the reports, in the order in which tests were done."""
        found = (self._gathered.read(key) for key in self._keys)
        return (replace(report, nodeid=report.nodeid.rpartition("::")[0]) for report in found if report is not None)


def page_of(request: pytest.FixtureRequest) -> Any:
    """Return what the fixture ``lens_report`` gives."""

    def add(model: Any, input_args: Any = (), input_kwargs: Any = None, *, name: str = "") -> ModelReport:
        from pytest_torchlens.functions import get_model_metadata
        from pytest_torchlens.history.view import HistoryView

        __tracebackhide__ = True
        history = model if isinstance(model, HistoryView) else get_model_metadata(model, input_args, input_kwargs)
        called = request.config.pluginmanager.get_plugin("lens-called")
        if called is None:  # a run without any option of ours
            called = CalledModels(ReportFolder(Path(), {}), None)
        return called.add(request.node, name or history.model_name, history.record(), None)

    return add
