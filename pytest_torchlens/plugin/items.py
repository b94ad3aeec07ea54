"""Collects a zoo file and runs each of its models as a pytest item."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any

import pytest

from pytest_torchlens.baseline.snapshot_file import BaselineError
from pytest_torchlens.baseline.store import key_of
from pytest_torchlens.plugin.failure import failure_text
from pytest_torchlens.plugin.failure import has_model_traceback
from pytest_torchlens.plugin.failure import junit_properties
from pytest_torchlens.plugin.failure import represent
from pytest_torchlens.plugin.failure import represent_text
from pytest_torchlens.plugin.hooks import HookError
from pytest_torchlens.plugin.hooks import apply_report_hooks
from pytest_torchlens.plugin.progress import Progress
from pytest_torchlens.records import Outcome
from pytest_torchlens.records.files import UnwritableError
from pytest_torchlens.zoo import ZooError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_torchlens.plugin.session import LensSession
    from pytest_torchlens.records import ErrorRecord
    from pytest_torchlens.records import ModelReport
    from pytest_torchlens.run import Runner
    from pytest_torchlens.zoo import ModelCase


MOST_OUTPUT_LINES = 40
"""How many of the last lines that a model printed the report shows."""


class ZooFile(pytest.File):
    """A zoo's YAML file; its items are the selected models."""

    lens: LensSession

    @classmethod
    def of(cls, parent: pytest.Collector, path: Path, lens: LensSession) -> ZooFile:
        """Return the collector of a selected zoo file."""
        file: ZooFile = cls.from_parent(parent, path=path, nodeid=lens.selection.choices[path].nodeid)
        file.lens = lens
        return file

    def collect(self) -> Iterator[ModelItem]:
        """Yield the models sorted by name, so that every process has the same order."""
        from pytest_torchlens.plugin.hooked_case import with_hooks

        choice = self.lens.selection.choices[self.path]
        for name in sorted(choice.names):
            yield ModelItem.of(self, with_hooks(choice.zoo.case(name), self.config), self.lens)


class ModelItem(pytest.Item):
    """Runs and records one model of a zoo; with ``--lens-validate`` it fails if the recorded graph is wrong."""

    lens: LensSession
    case: ModelCase
    report: ModelReport | None = None
    _exception: BaseException | None = None

    @classmethod
    def of(cls, parent: ZooFile, case: ModelCase, lens: LensSession) -> ModelItem:
        """Return the item of a model, with the marks in its settings."""
        item: ModelItem = cls.from_parent(parent, name=case.name)
        item.case, item.lens = case, lens
        for mark in ("lens", *case.settings.marks):
            item.add_marker(mark)
        if case.settings.skip:
            item.add_marker(pytest.mark.skip(reason=case.settings.skip))
        if case.settings.xfail:
            item.add_marker(pytest.mark.xfail(reason=case.settings.xfail, strict=True))
        return item

    def runtest(self) -> None:
        """Run the model through all stages."""
        place = str(self.lens.sweep.estimate) if self.lens.sweep.shows_position else ""
        with Progress(self.config, self.name, place) as progress:
            report = self._run(progress)
        self.report = replace(report, nodeid=self.nodeid)
        try:
            self.report = apply_report_hooks(self.report, key_of(report.zoo, report.name), self.config)
        finally:  # a hook that raises must not lose the report
            self.lens.reports.write(self.report)
        if self.lens.options.junit_properties:
            self.user_properties.extend(junit_properties(self.report))
        if self._exception:
            raise self._exception
        if text := failure_text(self.report, self.config):
            pytest.fail(text, pytrace=False)

    def _run(self, progress: Progress) -> ModelReport:
        """Run the model; with ``--lens-against`` the other interpreter runs it first."""
        runner = self.lens.runner(self.parent.path)  # type: ignore[union-attr] # a ZooFile has a path
        if self.lens.against is None:
            return self._run_once(runner, progress)
        error = self.lens.against.run(self.case, progress)
        try:
            report = self._run_once(runner, progress)
        finally:
            self.lens.against.forget(self.case)
        return _with_reference_error(report, error) if error else _with_notes(report, self.lens.against.notes)

    def _run_once(self, runner: Runner | None, progress: Progress) -> ModelReport:
        return self._run_with(runner, progress) if runner else self._run_in_this_process(progress)

    def _run_in_this_process(self, progress: Progress) -> ModelReport:
        from pytest_torchlens.run import run_case

        result = run_case(self.case, self.lens.run_options, progress)
        self._exception = result.exception
        return result.report

    def _run_with(self, runner: Runner, progress: Progress) -> ModelReport:
        result = runner.run(self.case, progress)
        if output := result.output.strip():
            self.add_report_section(
                "call", "of the model's process", "\n".join(output.splitlines()[-MOST_OUTPUT_LINES:])
            )
        if result.skipped is not None:
            pytest.skip(result.skipped)
        return result.report

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the model's traceback, or the failure of a validation."""
        if isinstance(excinfo.value, ZooError | BaselineError | HookError | UnwritableError | pytest.UsageError):
            return str(excinfo.value)
        error = self.report.error if self.report else None
        if error and excinfo.value is self._exception:
            return represent(excinfo, error, self.path, self.config)
        if error and has_model_traceback(error) and isinstance(excinfo.value, pytest.fail.Exception):
            return represent_text(error, self.path)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[os.PathLike[str], int | None, str]:
        """Return the zoo file, its first line (pytest needs one to report a skip), and the model's name."""
        return self.path, 0, f"{self.case.zoo}:{self.name}"


def _with_reference_error(report: ModelReport, error: ErrorRecord) -> ModelReport:
    """Return the report of a model that the other interpreter could not run, unless the model failed here too."""
    fails_new = report.comparison is not None and report.comparison.fails  # without a reference it always fails
    if report.outcome is Outcome.FAILED and not fails_new:
        return report
    return replace(report, outcome=Outcome.FAILED, stage=error.stage, error=error, comparison=None)


def _with_notes(report: ModelReport, notes: tuple[str, ...]) -> ModelReport:
    """Return the report with notes added to its comparison, if it has one."""
    if report.comparison is None:
        return report
    return replace(report, comparison=replace(report.comparison, notes=(*report.comparison.notes, *notes)))
