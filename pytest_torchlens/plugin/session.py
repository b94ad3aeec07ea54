"""The session plugin: collects models and their results, writes the reports and prints the summary."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from datetime import timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import pytest

from pytest_torchlens.plugin.called_models import CalledModels
from pytest_torchlens.plugin.checks import check_zoo_files
from pytest_torchlens.plugin.checks import names_own_check
from pytest_torchlens.plugin.first_call import FIRST_CALL
from pytest_torchlens.plugin.hooks import add_environment_facts
from pytest_torchlens.plugin.hooks import has_model_hooks
from pytest_torchlens.plugin.options import ISOLATE_ABOVE
from pytest_torchlens.plugin.results import PytestOutcome
from pytest_torchlens.plugin.results import missing_report
from pytest_torchlens.plugin.results import outcome_of
from pytest_torchlens.plugin.results import with_outcome
from pytest_torchlens.plugin.selection import Selection
from pytest_torchlens.plugin.settings import LensOptions
from pytest_torchlens.plugin.sweep import Sweep
from pytest_torchlens.records import TESTS_ZOO
from pytest_torchlens.records import Outcome
from pytest_torchlens.records import RunReport
from pytest_torchlens.records import Stage
from pytest_torchlens.records import left_out_calls
from pytest_torchlens.records.files import UnwritableError

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterable

    from pytest_torchlens.baseline.policy import Policy
    from pytest_torchlens.plugin.items import ZooFile
    from pytest_torchlens.plugin.settings import CiOptions
    from pytest_torchlens.plugin.unused_baselines import UnusedBaselines
    from pytest_torchlens.records import Environment
    from pytest_torchlens.records import LeftOutCalls
    from pytest_torchlens.records import ModelReport
    from pytest_torchlens.run import Against
    from pytest_torchlens.run import Isolation
    from pytest_torchlens.run import Runner
    from pytest_torchlens.run import RunOptions


class LensSession:
    """Holds the state of the run; registered as a plugin only if the run is about models."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.options = LensOptions.of(config)
        self.selection = Selection(config, self.options.zoos)
        check_zoo_files(self.selection.choices.values(), self.options.own_checks)
        self.is_worker = hasattr(config, "workerinput")
        if self.options.against and not self.selection.models:
            raise pytest.UsageError("--lens-against needs models of a zoo: add --lens-zoo ZOO:NAME")
        run_options = self._run_options(self.options.baseline)
        self.sweep = Sweep(config, self.options.sweep, self.selection, run_options, self._unchanged_models())
        self.reports = self.sweep.reports
        self.called_models = CalledModels(self.reports, self.options.report, self.options.wants_called_models)
        config.pluginmanager.register(self.called_models, "lens-called-models")
        self._collected_files: set[Path] = set()
        resumed = PytestOutcome(Outcome.PASSED, "in the run that was resumed")
        self._outcomes: dict[str, PytestOutcome] = dict.fromkeys(self.sweep.passed_before, resumed)
        self._report: RunReport | None = None
        self._table = None if self.is_worker else self.options.sweep.open_table()
        self._table_rows: set[str] = set()
        self._errors: list[str] = []
        self._report_failed = False
        self._isolation: Isolation | None = None
        self._unused_baselines: UnusedBaselines | None = None

    def _unchanged_models(self) -> list[str]:
        """Return the node ids that ``--lens-changed-since`` leaves out; an xdist worker gets them from its controller.

        Raises
        ------
        pytest.UsageError
            If no model of a zoo is named, or git cannot tell.
        """
        name, policy = self.options.changed_since, self.options.baseline
        if name is None or policy is None or self.is_worker:
            return []
        if not self.selection.models:
            raise pytest.UsageError("--lens-changed-since needs models of a zoo: add --lens-zoo ZOO:NAME")
        from pytest_torchlens.plugin.changed_models import ChangedModels

        changed = ChangedModels.of(self.config, name, self.selection, policy.store, self.options.device)
        self.config.pluginmanager.register(changed, "lens-changed-models")
        return changed.left_out

    @cached_property
    def against(self) -> Against | None:
        """The other interpreter that runs the models too; None without ``--lens-against``."""
        if self.options.against is None:
            return None
        from pytest_torchlens.run import Against

        options = replace(self._run_options(self.options.baseline), checks=("none",), own_checks=())
        return Against(self.options.against, options, self.options.sweep.limits())

    @property
    def run_options(self) -> RunOptions:
        """What to do with each model."""
        return self._run_options(self.against.policy if self.against else self.options.baseline)

    def _run_options(self, baseline: Policy | None) -> RunOptions:
        from pytest_torchlens.run import RunOptions

        options = self.options
        return RunOptions(
            validate=options.validate,
            parts=options.parts,
            folder=options.report,
            pictures=options.pictures,
            graphs=options.graphs,
            baseline=baseline,
            checks=options.checks,
            own_checks=options.own_checks,
            ignore=options.ignore,
            device=options.device,
        )

    @cached_property
    def _hook_runner(self) -> Runner | None:
        """The runner that a hook returns."""
        limits = self.options.sweep.limits()
        runner: Runner | None = self.config.hook.pytest_lens_make_runner(
            config=self.config, options=self.run_options, limits=limits
        )
        return runner

    def runner(self, file: Path) -> Runner | None:
        """Return the runner of a zoo file's models; None if they run in this process.

        Raises
        ------
        pytest.UsageError
            If models run in other processes, and a conftest file loaded since the session began has hooks on models.
        """
        self._reject_model_hooks()
        if self._hook_runner is not None:
            return self._hook_runner
        sweep = self.options.sweep
        choice = self.selection.choices[file]
        many = len(choice.names) > ISOLATE_ABOVE
        if not (many if sweep.isolate is None else sweep.isolate) or has_model_hooks(self.config):
            return None
        if names_own_check(self.options.checks, choice, self.options.own_checks):
            if sweep.isolate:
                raise pytest.UsageError(
                    "--lens-isolate runs models in processes that load no conftest.py, so the checks that the hook "
                    "pytest_lens_checks returns would not run: remove the option, or do not ask for them"
                )
            return None
        if self._isolation is None:
            from pytest_torchlens.run import Isolation

            self._isolation = Isolation(self.run_options, sweep.limits())
        return self._isolation

    def pytest_sessionstart(self) -> None:
        """Call the environment hooks; here a wrong result can still be a usage error."""
        self._reject_model_hooks()
        if not self.is_worker and self.selection.models:
            self._environment = add_environment_facts(self._environment, self.config)

    def _reject_model_hooks(self) -> None:
        option = "--lens-isolate" if self.options.sweep.isolate else "--lens-against" if self.options.against else ""
        if option and has_model_hooks(self.config):
            raise pytest.UsageError(
                f"{option} runs models in processes that load no conftest.py, so the hooks pytest_lens_configure_model "
                "and pytest_lens_make_inputs would not be called: remove the option or the hooks"
            )

    @cached_property
    def _environment(self) -> Environment:
        from pytest_torchlens.run import find_environment

        return find_environment()

    def pytest_report_header(self) -> str | None:
        """Say what the run is about."""
        if not self.selection.models and self.options.checks:
            return "lens: no model is named (--lens-zoo ZOO:NAME); --lens-checks are those of the fixture lens_same"
        if not self.selection.models:
            others = map(self.config.pluginmanager.hasplugin, (FIRST_CALL, "lens-autotrace-summary"))  # with headers
            return None if any(others) else "lens: no model is named (--lens-zoo ZOO:NAME), so there is nothing to do"
        import torch

        what = "record only (--lens-validate proves the graphs)"
        if self.options.validate:
            what = f"validate {', '.join(self.options.parts or ['all parts'])}"
        count = len(self.selection.models)
        resumed = f", {len(self.sweep.passed_before)} of them done before" if self.options.sweep.resume else ""
        return f"lens: {count} model{'s' * (count != 1)}{resumed}, torch {torch.__version__}, {what}"

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> ZooFile | None:
        """Collect the selected zoo files, in whatever way pytest finds them."""
        return self._zoo_file(parent, file_path) if file_path in self.selection.choices else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Collect the zoo files that pytest did not find.

        With ``pytest . --lens-zoo=timm`` pytest gets only the folder, and it does not look into a virtual environment
        in it, where the shipped zoo may be.
        """
        for path in self.selection.choices:
            if path not in self._collected_files:
                items.extend(session.genitems(self._zoo_file(session, path)))

    def _zoo_file(self, parent: pytest.Collector, path: Path) -> ZooFile:
        from pytest_torchlens.plugin.items import ZooFile

        self._collected_files.add(path)
        return ZooFile.of(parent, path, self)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Store pytest's outcome of each model; under xdist the controller gets all reports."""
        if self.is_worker:
            report.lens_unwritten = self.reports.take_unwritten()  # type: ignore[attr-defined] # xdist sends it
        else:
            self.reports.add_unwritten(getattr(report, "lens_unwritten", ()))
        if self.is_worker or report.nodeid not in self.selection.models:
            return
        if outcome := outcome_of(report):
            self._outcomes[report.nodeid] = outcome
            if outcome.outcome is Outcome.PASSED:
                self.reports.mark_passed(report.nodeid)
        if report.when == "teardown":
            self._add_table_row(report.nodeid)

    def _add_table_row(self, nodeid: str) -> None:
        if self._table and nodeid not in self._table_rows:
            self._table_rows.add(nodeid)
            self._add_to_table(self._model_report(nodeid))

    def _add_to_table(self, report: ModelReport) -> None:
        from pytest_torchlens.report.results_table import TableError

        if self._table:
            try:
                self._table.add(report, self._environment)
            except (OSError, TableError) as error:  # such as a full disk: the run continues
                self._table = None
                self._errors.append(f"--lens-table: {error}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Collect the reports of all models that ran, even in an interrupted run, and write the pages."""
        left_out = self._left_out()
        if self.is_worker or not (self._outcomes or self.called_models or left_out):
            return
        if self.sweep.passed_before and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK  # all selected models had passed before
        self._report = RunReport(
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            command=" ".join(["pytest", *map(str, self.config.invocation_params.args)]),
            environment=self._environment,
            models=tuple(report.brief() for report in self._model_reports()),
            left_out=left_out,
        )
        for nodeid in self._outcomes:  # an xdist worker that died sent no last report
            self._add_table_row(nodeid)
        for report in self.called_models.reports():
            self._add_to_table(report)
        self._errors += _unwritten(self._report.models)
        self._write(self._report)
        self._check_drawings(session, self._report.models)
        self._find_unused_baselines(session)
        if self._errors and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _left_out(self) -> tuple[LeftOutCalls, ...]:
        """Return the calls in tests that were not validated; none if no file is to have them."""
        summary: Any = self.config.pluginmanager.get_plugin("lens-autotrace-summary")
        wanted = self.options.report or self.options.ci.json
        return left_out_calls(summary.left_out()) if summary is not None and wanted else ()

    def _find_unused_baselines(self, session: pytest.Session) -> None:
        if self.options.baseline is not None and self.options.against is None:
            from pytest_torchlens.plugin.unused_baselines import UnusedBaselines

            ran = {*self._outcomes, *self.sweep.unchanged}
            try:
                self._unused_baselines = UnusedBaselines.of(self.options.baseline, self.selection, ran)
            except UnwritableError as error:
                self._errors.append(f"--lens-update=unused: {error}")
                return
            if self._unused_baselines.fails and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _check_drawings(self, session: pytest.Session, models: tuple[ModelReport, ...]) -> None:
        """End with pytest's exit code for usage errors if ``--lens-graph`` fits no model of the run."""
        if self.options.graphs and session.exitstatus == pytest.ExitCode.OK and fits_no_model(models):
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def _model_reports(self) -> Iterator[ModelReport]:
        for nodeid in self.selection.models:
            if nodeid in self._outcomes:
                yield self._model_report(nodeid)
        yield from self.called_models.reports()

    def _model_report(self, nodeid: str) -> ModelReport:
        outcome = self._outcomes[nodeid]
        if report := self.reports.read(nodeid):
            return with_outcome(report, outcome)
        return missing_report(nodeid, *self.selection.models[nodeid], outcome)

    def _write(self, report: RunReport) -> None:
        from pytest_torchlens.report import write_site

        if folder := self.options.report:
            self._report_failed = not self._try(
                "--lens-report", lambda: write_site(report, self._model_reports(), folder)
            )
        for name, write in file_writers(report, self.options.ci):
            self._try(name, write)

    def _try(self, name: str, write: Callable[[], object]) -> bool:
        """Write a file, and return whether that worked: hours of audits must not end in an internal error."""
        try:
            write()
        except UnwritableError as error:
            self._errors.append(f"{name}: {error}")
        except Exception as error:  # noqa: BLE001 - such as a model's data that no page can show
            self._errors.append(f"{name}: not written: {type(error).__name__}: {error}")
        else:
            return True
        return False

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table of models, errors, and the report's path; with ``-q`` the failed models, or one line."""
        if self._report is None or not (self._report.models or self.options.report or self._errors):
            return
        from pytest_torchlens.report import is_bad
        from pytest_torchlens.report import one_line
        from pytest_torchlens.report import terminal_table
        from pytest_torchlens.report import verbose_text

        is_quiet = terminalreporter.verbosity < 0
        if is_quiet and not self._has_failed(self._report.models):
            if line := one_line(self._report.models):
                terminalreporter.write_line(f"lens: {line}")
            self._print_github_lines(terminalreporter, self._report)
            return
        terminalreporter.section("lens")
        ascii_only = "utf" not in (sys.stdout.encoding or "").lower()
        width = self.config.get_terminal_writer().fullwidth
        models = self._report.models
        told = tuple(filter(is_bad, models)) if is_quiet else models
        if told:
            table = terminal_table(
                models, width, ascii_only, top=0 if is_quiet else None, told=self._told_above(models)
            )
            terminalreporter.write_line(table)
        for report in self._model_reports() if terminalreporter.verbosity > 0 else ():
            terminalreporter.write_line(verbose_text(report, terminalreporter.verbosity, ascii=ascii_only))
        for error in self._errors:
            terminalreporter.write_line(f"ERROR: {error}", red=True)
        if self.options.report and not self._report_failed:
            terminalreporter.write_line(f"report: {(self.options.report / 'index.html').absolute().as_uri()}")
        self._print_baselines(terminalreporter, told)
        if self.options.graphs:
            self._print_drawings(terminalreporter, self.options.graphs.folder, self._report.models)
        self._print_github_lines(terminalreporter, self._report)

    def _told_above(self, models: tuple[ModelReport, ...]) -> set[int]:
        """Return the ids of the reports of failed models whose failure pytest tells in full, with what to do."""
        if self.config.getoption("tbstyle", "auto") == "no":
            return set()
        ours = (report for report in models if report.error is None or report.error.stage is not Stage.DONE)
        return {id(report) for report in ours if report.zoo != TESTS_ZOO}

    def _has_failed(self, models: tuple[ModelReport, ...]) -> bool:
        """Whether the run fails, or lacks a file, for a reason that the summary gives."""
        from pytest_torchlens.report import is_bad

        unused = self._unused_baselines is not None and self._unused_baselines.fails
        no_graph = bool(self.options.graphs) and fits_no_model(models)
        return bool(self._errors) or unused or no_graph or any(map(is_bad, models))

    def _print_github_lines(self, reporter: pytest.TerminalReporter, report: RunReport) -> None:
        for line in github_lines(report, self.config.rootpath):
            reporter.write_line(line)

    def _print_baselines(self, reporter: pytest.TerminalReporter, models: tuple[ModelReport, ...]) -> None:
        from pytest_torchlens.baseline.wording import summary
        from pytest_torchlens.plugin.settings import command_options

        compared = [(f"{model.zoo}:{model.name}", model.comparison) for model in models if model.comparison]
        options = command_options(self.config)
        for line in [*summary(compared, options), *(self._unused_baselines.lines() if self._unused_baselines else ())]:
            reporter.write_line(line)

    def _print_drawings(self, reporter: pytest.TerminalReporter, folder: Path, models: tuple[ModelReport, ...]) -> None:
        """Print where the drawings are, and why some models have none."""
        unfit = fits_no_model(models)
        if not unfit:
            reporter.write_line(f"graphs: {folder.absolute().as_uri()}")
        for line in missing_drawings(models):
            reporter.write_line(f"ERROR: {line}" if unfit else line, red=unfit, yellow=not unfit)

    def pytest_unconfigure(self) -> None:
        """Remove temporary folders and end worker processes."""
        with contextlib.ExitStack() as open_things:  # all are closed, even if one raises
            open_things.callback(self.sweep.close)
            for runner in (self._isolation, vars(self).get("_hook_runner"), vars(self).get("against")):
                if runner is not None:  # it was created before, so it is running
                    open_things.callback(runner.close)


def fits_no_model(models: Iterable[ModelReport]) -> bool:
    """Whether ``--lens-graph`` fits none of the models that could have been drawn."""
    drawable = [model for model in models if model.history is not None]
    return bool(drawable) and all(model.graph_unfit for model in drawable)


def missing_drawings(models: tuple[ModelReport, ...]) -> Iterator[str]:
    """Yield how many models have no drawing, with the first reason of each kind."""
    from pytest_torchlens.run import NO_GRAPH
    from pytest_torchlens.run import UNFIT_GRAPH

    unfit, failed = ([model.graph_unfit for model in models], [model.graph_failed for model in models])
    for kind, texts in ((UNFIT_GRAPH, unfit), (NO_GRAPH, failed)):
        if reasons := [*filter(None, texts)]:
            yield f"no graph of {len(reasons)} of {len(models)} model{'s' * (len(models) != 1)}: {kind}: {reasons[0]}"


def file_writers(run: RunReport, options: CiOptions) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what writes each file for a CI, and the summary of a GitHub step, with the name of its option."""
    from pytest_torchlens.records import to_json
    from pytest_torchlens.records import write_atomically
    from pytest_torchlens.records.files import append
    from pytest_torchlens.report import markdown

    if path := options.json:
        yield "--lens-json", lambda: write_atomically(path, to_json(run, indent=1))
    if page := options.markdown:
        yield "--lens-report-md", lambda: write_atomically(page, markdown(run))
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        yield (
            "GITHUB_STEP_SUMMARY",
            lambda: append(Path(summary), markdown(run).encode(errors="backslashreplace")),
        )


_MOST_UNWRITTEN = 5


def _unwritten(models: Iterable[ModelReport]) -> Iterator[str]:
    """Yield a line for each file of a model that could not be written."""
    lines = [text for model in models for text in model.unwritten]
    yield from lines[:_MOST_UNWRITTEN]
    if (more := len(lines) - _MOST_UNWRITTEN) > 0:
        yield f"and {more} more files of models could not be written"


def github_lines(run: RunReport, root: Path) -> Iterator[str]:
    """Yield the lines that annotate a GitHub job; nothing elsewhere."""
    from pytest_torchlens.report import github_annotations

    if os.environ.get("GITHUB_ACTIONS") == "true":
        yield from github_annotations(run.models, root)
