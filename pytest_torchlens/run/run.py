"""One model as one job: built, called, recorded, validated, drawn, in this process."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import torch
from torch import nn

from pytest_torchlens.audit import ModelFacts
from pytest_torchlens.audit import Subject
from pytest_torchlens.audit import audit
from pytest_torchlens.baseline.store import key_of
from pytest_torchlens.capture.patches import listening
from pytest_torchlens.draw import OptionError
from pytest_torchlens.functions import log_forward_pass
from pytest_torchlens.measure import measure_forward_pass
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import Measurements
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import Outcome
from pytest_torchlens.records import Stage
from pytest_torchlens.records import Status
from pytest_torchlens.report import Graphs
from pytest_torchlens.report import save_drawing
from pytest_torchlens.run.describe import describe
from pytest_torchlens.run.describe import describe_arguments
from pytest_torchlens.run.environment import find_environment
from pytest_torchlens.run.environment import machine_of
from pytest_torchlens.run.environment import wait_for
from pytest_torchlens.run.errors import code_of
from pytest_torchlens.run.errors import error_record
from pytest_torchlens.run.preserved_state import left_as_found
from pytest_torchlens.run.snapshot import snapshot_of
from pytest_torchlens.run.statistics import activation_statistics
from pytest_torchlens.validate import Validation
from pytest_torchlens.validate import tolerance
from pytest_torchlens.validate import validate
from pytest_torchlens.zoo.forks import end_if_forked
from pytest_torchlens.zoo.forks import forks_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_torchlens.baseline.policy import Policy
    from pytest_torchlens.zoo import Inputs
    from pytest_torchlens.zoo import ModelCase

RUNS = 3
"""Timed forward passes, at least."""
BUDGET = 0.1
"""Seconds in which a small model's pass is timed more often."""
MOST_RUNS = 30
NO_GRAPH = "--lens-graph could not be done: "
"""How a note begins that says why a drawing is missing."""
UNFIT_GRAPH = "--lens-graph does not fit: "
"""How a note begins that says what in the model there is no such thing as."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What is done with each model."""

    validate: bool = False
    parts: tuple[str, ...] | None = None
    """Parts of the validation; None for all."""
    folder: Path | None = None
    """The report's folder; None where no report is asked for."""
    graphs: Graphs | None = None
    """Drawings besides those of the report; None where none are asked for."""
    baseline: Policy | None = None
    """How baselines are treated; None where nothing is compared."""
    device: str = ""
    """Where models run (``"cuda"``, ``"cuda:1"``); empty for where their zoo says."""


@dataclass(frozen=True)
class CaseResult:
    """What came of one model."""

    report: ModelReport
    exception: BaseException | None = None
    """What the model, or the engine, raised; its text stands in the report as well."""


def run_case(
    case: ModelCase, options: RunOptions, progress: Callable[[Stage], None] = lambda stage: None
) -> CaseResult:
    """Run one model through all stages, up to the first that fails.

    Parameters
    ----------
    case
        The model; it is built here, and let go of at the end.
    options
        What is to be done.
    progress
        Called with each stage as it begins.

    Returns
    -------
    CaseResult
        The report, and the exception where one was raised, `SystemExit` included.  Ctrl-C and a test runner's skip
        pass through.  Settings of the process are left as they were found; what the model changed is a note.
    """
    if options.device:
        case = replace(case, settings=replace(case.settings, device=options.device))
    job = _Job(case, options, progress)
    start = time.perf_counter()
    exception: BaseException | None = None
    with left_as_found() as changes:
        try:
            with listening(None), forks_end():  # what it calls is no call of a test's
                job.run()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a model may raise anything
            exception = error
            job.found.update(outcome=Outcome.FAILED, stage=job.stage, error=error_record(job.stage, error))
    job.found["notes"] = (*job.found.get("notes", ()), *changes)
    seconds = time.perf_counter() - start
    report = ModelReport(zoo=case.zoo, name=case.name, seconds=seconds, **job.found)
    return CaseResult(report, exception)


class _Job:
    """The stages of one model; `found` holds the fields of its report that are known so far."""

    def __init__(self, case: ModelCase, options: RunOptions, progress: Callable[[Stage], None]) -> None:
        self.case = case
        self.options = options
        self.progress = progress
        self.device = torch.device(case.settings.device)
        self.stage = Stage.BUILD
        self.found: dict[str, Any] = {"weights": case.settings.weights}
        self.fastest = 0.0
        self.process = os.getpid()

    def run(self) -> None:
        with torch.set_grad_enabled(self.case.settings.mode == "train"):
            self.stages()

    def stages(self) -> None:
        self.enter(Stage.BUILD)
        model = self.case.build()
        self.enter(Stage.INPUTS)
        inputs = self.case.make_inputs(model)
        self.found["inputs"] = describe_arguments(model, *inputs)
        self.enter(Stage.FORWARD)
        self.forward(model, inputs)
        # Made anew: the model may have written into those it was called with.
        history = self.record(model, self.case.make_inputs(model))
        self.found.update(history=history, record_ms=history.elapsed_time_total * 1e3)
        if self.options.folder or self.options.graphs:
            self.enter(Stage.DRAW)
            self.describe(model, history)
            cost = self.found.get("measurements")
            self.draw(ModelReport(zoo=self.case.zoo, name=self.case.name, history=history, measurements=cost))
        known = self.found.get("statistics"), self.found.get("measurements")
        self.found["findings"] = audit(Subject(history, *known, ModelFacts.of(model)))

    def enter(self, stage: Stage) -> None:
        end_if_forked(self.process, 0)  # one that the model never ended
        self.stage = stage
        self.progress(stage)

    def forward(self, model: nn.Module, inputs: Inputs) -> None:
        """Time plain passes; what raises here is the model's own, with nothing of ours near it."""
        output = model(*inputs.args, **inputs.kwargs)
        end_if_forked(self.process, 0)
        self.found["outputs"] = describe(output)
        wait_for(self.device)
        times: list[float] = []
        # In train mode each pass changes running statistics: as many passes each time, for the same values.
        most = RUNS if model.training else MOST_RUNS
        while len(times) < RUNS or (sum(times) < BUDGET and len(times) < most):
            start = time.perf_counter()
            model(*inputs.args, **inputs.kwargs)
            wait_for(self.device)
            times.append(time.perf_counter() - start)
            end_if_forked(self.process, 0)
        self.fastest = min(times)
        self.found.update(forward_ms=statistics.median(times) * 1e3, forward_runs=len(times))

    def record(self, model: nn.Module, inputs: Inputs) -> HistoryRecord:
        if not self.options.validate:
            self.enter(Stage.RECORD)
            return log_forward_pass(
                model, inputs.args, inputs.kwargs, layers_to_save=None, random_seed=self.case.settings.seed
            ).record()
        self.enter(Stage.VALIDATE)
        settings = self.case.settings
        with tolerance(settings.tolerance):
            validation = validate(model, inputs.args, inputs.kwargs, parts=self.options.parts, seed=settings.seed)
        self.found["verdict"] = validation.verdict
        unjudged = [part for part in validation.verdict.parts if part.status is Status.NOT_APPLICABLE]
        self.found["notes"] = tuple(f"{part.name} not judged: {part.reason}" for part in unjudged)
        if not validation.verdict:
            self.found.update(outcome=Outcome.FAILED, stage=Stage.VALIDATE)
        elif self.options.baseline is not None:
            self.enter(Stage.COMPARE)
            self.compare(self.options.baseline, validation)
        return validation.history.record()

    def compare(self, baseline: Policy, validation: Validation) -> None:
        environment = replace(find_environment(), device=self.device.type)
        try:
            snapshot = snapshot_of(validation.history, environment, validation.verdict)
        except Exception as error:  # noqa: BLE001 - the record holds as far as it was asked for; only the replay failed
            reason = f"not compared with its baseline, for it cannot be replayed: {type(error).__name__}: {error}"
            self.found["notes"] = (*self.found.get("notes", ()), reason)
            return
        self.found["flops"] = snapshot.totals.get("flops")
        key, fail_on = key_of(self.case.zoo, self.case.name), self.case.settings.fail_on
        timed = machine_of(environment), self.fastest
        comparison = baseline.check(key, snapshot, fail_on, history=validation.history, timed=timed)
        self.found["comparison"] = comparison
        if comparison.fails:
            self.found.update(outcome=Outcome.FAILED, stage=Stage.COMPARE)

    def describe(self, model: nn.Module, history: HistoryRecord) -> None:
        """Find what pages and drawings tell besides: lines of code, what activations were like, what the pass cost."""
        seed, graphs = self.case.settings.seed, self.options.graphs
        if self.options.folder:
            self.found["code"] = code_of(history)
            self.attempt("statistics", model, lambda given: activation_statistics(model, given, seed))
        if self.options.folder or (graphs and graphs.needs_measurements):
            self.attempt("measurements", model, partial(_measured, model, history))
            cost = self.found.get("measurements")
            self.found["flops"] = cost.flops if cost and cost.operation_flops else self.found.get("flops")

    def attempt(self, name: str, model: nn.Module, find: Callable[[Inputs], Any]) -> None:
        """Find a part of the report by further passes; a model that cannot make them has done what was asked for."""
        try:
            with forks_end():
                self.found[name] = find(self.case.make_inputs(model))
        except Exception as error:  # noqa: BLE001 - a model may raise anything in one more pass
            note = f"no {name}: {type(error).__name__}: {error}"
            self.found["notes"] = (*self.found.get("notes", ()), note)

    def draw(self, report: ModelReport) -> None:
        if self.options.folder:
            report = save_drawing(report, self.options.folder)
        notes = (*self.found.get("notes", ()), *report.notes, *_notes_on_graph(self.options.graphs, report))
        self.found.update(graph=report.graph, notes=notes)


def _measured(model: nn.Module, history: HistoryRecord, inputs: Inputs) -> Measurements:
    found = measure_forward_pass(model, inputs.args, inputs.kwargs, passes=RUNS)
    if len(found.operations) != history.num_operations:
        raise RuntimeError("the model runs other operations from pass to pass")
    return found


def _notes_on_graph(graphs: Graphs | None, report: ModelReport) -> list[str]:
    """Draw as ``--lens-graph`` asks, and return what to say where that could not be done."""
    try:
        reason = graphs.draw(report) if graphs else ""
    except OptionError as error:
        return [f"{UNFIT_GRAPH}{error}"]
    return [f"{NO_GRAPH}{reason}"] if reason else []
