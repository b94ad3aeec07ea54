"""Adds models that tests called, and histories passed to ``lens_report``, to the run's report."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import pytest

from pytest_torchlens.plugin.results import ReportFolder
from pytest_torchlens.records import TESTS_ZOO
from pytest_torchlens.records import AuditFinding
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import Outcome
from pytest_torchlens.records import Stage
from pytest_torchlens.records import Status
from pytest_torchlens.records import Verdict
from pytest_torchlens.records.files import UnwritableError

if TYPE_CHECKING:
    from collections.abc import Generator
    from collections.abc import Iterator

_PAGES_KEY = pytest.StashKey[list[str]]()


class CalledModels:
    """Writes a report of each model in the process of its test, and reads all of them in the controller.

    Parameters
    ----------
    files
        The report files that processes share.
    folder
        The folder of the run's report; None without one.
    wanted
        Whether a file of the run is to have the models.
    """

    def __init__(self, files: ReportFolder, folder: Path | None, wanted: bool) -> None:
        self._files = files
        self._folder = folder
        self.wanted = wanted
        self._names: Counter[str] = Counter()
        self._tests: dict[str, str] = {}
        """Node id of the test, by the key of a model's report."""

    def __bool__(self) -> bool:
        return bool(self._tests)

    def add(
        self,
        item: pytest.Item,
        name: str,
        history: HistoryRecord,
        verdict: Verdict | None,
        severe: tuple[AuditFinding, ...] = (),
    ) -> ModelReport:
        """Make a report of a model; the files of the run that are asked for get it, and a report a page of it."""
        place = f"{item.nodeid}::{name}"
        self._names[place] += 1
        number = f" ({self._names[place]})" if self._names[place] > 1 else ""
        from pytest_torchlens.audit import Subject
        from pytest_torchlens.audit import audit

        failed = verdict is not None and verdict.status is Status.FAILED
        report = ModelReport(
            zoo=TESTS_ZOO,
            name=f"{place}{number}",
            nodeid=f"{place}{number}",
            outcome=Outcome.FAILED if failed else Outcome.PASSED,
            stage=Stage.VALIDATE if failed else Stage.DONE,
            record_ms=history.elapsed_time_total * 1e3,
            history=history,
            verdict=verdict,
            findings=(*severe, *audit(Subject(history))),
        )
        if self.wanted:
            self._write(item, report)
        return report

    def _write(self, item: pytest.Item, report: ModelReport) -> None:
        if self._folder is not None:
            report = _with_drawing(report, self._folder)
        self._files.write(report)
        item.stash.setdefault(_PAGES_KEY, []).append(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the keys of the models' reports to the test's report."""
        report = yield
        self.attach(item, report)
        return report

    def attach(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Add the keys of the reports of a test's models to its report, which brings them to the controller."""
        report.lens_pages = [*item.stash.get(_PAGES_KEY, ())]  # type: ignore[attr-defined] # xdist sends it

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Store the keys, with the test's node id."""
        self._tests.update(dict.fromkeys(getattr(report, "lens_pages", ()), report.nodeid))

    def reports(self) -> Iterator[ModelReport]:
        """Yield the reports, in the order in which the tests ended."""
        for key, test in self._tests.items():
            if report := self._files.read(key):
                yield replace(report, nodeid=test)


def _with_drawing(report: ModelReport, folder: Path) -> ModelReport:
    from pytest_torchlens.report import save_drawing

    try:
        return save_drawing(report, folder)
    except UnwritableError as error:
        return report.with_unwritten(error)


def lens_report_function(request: pytest.FixtureRequest) -> Any:
    """Return the value of the fixture ``lens_report``."""

    def add(model: Any, input_args: Any = (), input_kwargs: Any = None, *, name: str = "") -> ModelReport:
        from pytest_torchlens.functions import get_model_metadata
        from pytest_torchlens.history.view import HistoryView

        __tracebackhide__ = True
        history = model if isinstance(model, HistoryView) else get_model_metadata(model, input_args, input_kwargs)
        called_models = request.config.pluginmanager.get_plugin("lens-called-models")
        if called_models is None:  # a run without --lens options
            called_models = CalledModels(ReportFolder(Path(), {}), None, wanted=False)
        return called_models.add(request.node, name or history.model_name, history.record(), None)

    return add
