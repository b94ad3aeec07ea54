"""Runs one model in this process: build, call, record, validate, compare and draw."""

from __future__ import annotations

import inspect
import os
import statistics
import time
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from functools import cached_property
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import torch
from torch import nn

from pytest_torchlens.audit import ModelFacts
from pytest_torchlens.audit import Subject
from pytest_torchlens.audit import audit
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.store import key_of
from pytest_torchlens.baseline.take_snapshot import ValueNumbers
from pytest_torchlens.baseline.take_snapshot import take
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.patches import module_call_listener
from pytest_torchlens.checks.catalog import plan as plan_checks
from pytest_torchlens.functions import log_forward_pass
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.measure.flops import FlopCounts
from pytest_torchlens.measure.flops import flops_of
from pytest_torchlens.measure.forward_pass import measure
from pytest_torchlens.measure.memory import ByteCounts
from pytest_torchlens.measure.memory import needed_and_moved
from pytest_torchlens.measure.once import Once
from pytest_torchlens.records import Environment
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import Measurements
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import Outcome
from pytest_torchlens.records import Severity
from pytest_torchlens.records import Stage
from pytest_torchlens.records import Status
from pytest_torchlens.records import Verdict
from pytest_torchlens.records.files import UnwritableError
from pytest_torchlens.records.options import OptionError
from pytest_torchlens.replay.calls import Listener
from pytest_torchlens.replay.calls import Listeners
from pytest_torchlens.replay.calls import NotReplayableError
from pytest_torchlens.replay.calls import replay_calls
from pytest_torchlens.run.activation_statistics import ValueStatistics
from pytest_torchlens.run.activation_statistics import activation_statistics
from pytest_torchlens.run.activation_statistics import is_odd
from pytest_torchlens.run.environment import find_environment
from pytest_torchlens.run.environment import machine_of
from pytest_torchlens.run.environment import wait_for
from pytest_torchlens.run.errors import code_of
from pytest_torchlens.run.errors import error_record
from pytest_torchlens.run.model_sources import with_sources
from pytest_torchlens.run.preserved_state import preserved_global_state
from pytest_torchlens.validate import Validation
from pytest_torchlens.validate import tolerance
from pytest_torchlens.validate import validate
from pytest_torchlens.zoo.errors import end_forks
from pytest_torchlens.zoo.errors import exit_if_forked

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_torchlens.baseline.policy import Policy
    from pytest_torchlens.capture import Recording
    from pytest_torchlens.checks.catalog import PlannedCheck
    from pytest_torchlens.checks.uncalled import Uncalled
    from pytest_torchlens.report import Graphs
    from pytest_torchlens.run.run_options import RunOptions
    from pytest_torchlens.zoo import Inputs
    from pytest_torchlens.zoo import ModelCase


def describe(value: Any, name: str = "") -> tuple[str, ...]:
    """Return one line for each tensor of a nested value: ``"0.boxes: float32[100, 4]"``.

    A single tensor without a name gives its type and shape only.
    """
    return tuple(f"{place}: {_tensor(tensor)}" if place else _tensor(tensor) for place, tensor in _leaves(value, name))


def describe_arguments(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, ...]:
    """Return one line for each tensor in the arguments, named as ``forward`` names them."""
    try:
        bound: Mapping[str, Any] = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    except TypeError:  # forward will raise the error
        bound = {**{str(index): value for index, value in enumerate(args)}, **kwargs}
    return describe(bound)


def _tensor(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _leaves(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        yield from _leaves(dict(enumerate(value)), name)


_REPLAYS = 5


def snapshot_of(
    history: ModelHistory,
    environment: Environment,
    verdict: Verdict | None = None,
    count: Callable[[Recording], tuple[int, ...]] = flops_of,
    numbers: ValueNumbers | None = None,
) -> Snapshot:
    """Return the snapshot of a pass, with its floating-point operations and the outcome of each part of its verdict.

    Parameters
    ----------
    history
        Of the pass; the model and its inputs must still hold the values that they had before it.
    environment
        Where this process runs.
    verdict
        Of the validation; None without one.
    count
        Returns the floating-point operations of each call.
    numbers
        As in `take`.

    Raises
    ------
    ReferenceError
        If the model is gone.
    Exception
        Whatever a call raises when it is run again.
    """
    parts = verdict.parts if verdict is not None else ()
    proof = {part.name: part.status.value for part in parts if part.status is not Status.NOT_RUN}
    return take(history, environment, flops=_total(count, history.recording), proof=proof, numbers=numbers)


def _total(count: Callable[[Recording], tuple[int, ...]], recording: Recording) -> int | None:
    try:
        return sum(count(recording))
    except NotReplayableError:  # not even PyTorch's formulas fit every call
        return None


def replay_seconds(history: ModelHistory) -> float:
    """Return the time of the fastest of a few replays, for a model that must not run again."""
    return min(_replayed(history) for _ in range(_REPLAYS))


def _replayed(history: ModelHistory) -> float:
    start = time.perf_counter()
    for _ in replay_calls(history.recording):
        pass
    return time.perf_counter() - start


RUNS = 3
"""Least number of timed forward passes."""
BUDGET = 0.1
"""Seconds within which the pass of a small model is timed more often."""
MOST_RUNS = 30
NO_GRAPH = "--lens-graph could not be done"
"""Precedes the reason why a drawing is missing."""
UNFIT_GRAPH = "--lens-graph does not fit"
"""Precedes the setting that does not fit a model."""


@dataclass(frozen=True)
class CaseResult:
    """The result of one model."""

    report: ModelReport
    exception: BaseException | None = None
    """What the model or this package raised; the report has it as text."""


def run_case(
    case: ModelCase, options: RunOptions, progress: Callable[[Stage], None] = lambda stage: None
) -> CaseResult:
    """Run one model through all stages, up to the first that fails.

    Parameters
    ----------
    case
        The model, which is built here and freed at the end.
    options
        What to do with it.
    progress
        Called with each stage as it begins.

    Returns
    -------
    CaseResult
        The report, and the exception if one was raised, `SystemExit` included.  Ctrl-C and pytest's skip pass through.
        Settings of the process that the model changed are restored, and noted in the report.
    """
    if options.device:
        case = replace(case, settings=replace(case.settings, device=options.device))
    _preload(options)
    job = _Job(case, options, progress)
    start = time.perf_counter()
    exception: BaseException | None = None
    with preserved_global_state() as changes:
        try:
            with module_call_listener(None), end_forks():  # its module calls are not a test's
                job.run()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a model may raise anything
            exception = error
            job.fields.update(outcome=Outcome.FAILED, stage=job.stage, error=error_record(job.stage, error))
    job.fields["notes"] = (*job.fields.get("notes", ()), *changes)
    seconds = time.perf_counter() - start
    report = ModelReport(zoo=case.zoo, name=case.name, seconds=seconds, **job.fields)
    return CaseResult(report, exception)


def _preload(options: RunOptions) -> None:
    """Import what the later stages of this run need, before the model can change `sys.path`."""
    if options.baseline:
        import psutil  # noqa: F401
    if options.folder:
        import pytest_torchlens.report  # noqa: F401


class _Job:
    """Runs the stages of one model, and collects its report in `fields`."""

    def __init__(self, case: ModelCase, options: RunOptions, progress: Callable[[Stage], None]) -> None:
        self.case = case
        self.options = options
        self.progress = progress
        self.device = torch.device(case.settings.device)
        self.stage = Stage.BUILD
        self.fields: dict[str, Any] = {"weights": case.settings.weights}
        self.fastest = 0.0
        self.has_odd_outputs = False
        """Whether an output holds NaN or infinity."""
        self.process = os.getpid()
        self.count_flops, self.count_bytes = Once(flops_of), Once(needed_and_moved)

    def run(self) -> None:
        with torch.set_grad_enabled(self.case.settings.mode == "train"):
            self.stages()

    def stages(self) -> None:
        self.enter(Stage.BUILD)
        model = self.case.build()
        self.enter(Stage.INPUTS)
        inputs = self.case.make_inputs(model)
        self.fields["inputs"] = describe_arguments(model, *inputs)
        uncalled = self.copied(model)
        self.enter(Stage.FORWARD)
        self.forward(model, inputs)
        # New inputs, because the model may have written to the first ones.
        history = self.record(model, self.case.make_inputs(model))
        self.fields.update(history=history, record_ms=history.elapsed_time_total * 1e3)
        self.check(model, uncalled)
        if self.options.folder or self.options.graphs:
            self.enter(Stage.DRAW)
            self.describe(model, history)
            cost = self.fields.get("measurements")
            self.draw(ModelReport(zoo=self.case.zoo, name=self.case.name, history=history, measurements=cost))
        elif self.options.validate and self.needs_statistics:
            self.find_statistics(model)
        known = self.fields.get("statistics"), self.fields.get("measurements")
        self.audit(Subject(history, *known, ModelFacts.of(model)))

    def copied(self, model: nn.Module) -> Uncalled | None:
        """Return a copy of the model before it is called, if there are checks that may compare with it."""
        if not self.plan:
            return None
        from pytest_torchlens.checks.uncalled import Uncalled  # most runs have no checks

        return Uncalled.of(model, is_new=True)

    @cached_property
    def plan(self) -> tuple[PlannedCheck, ...]:
        """The checks that the options or the zoo file name."""
        return plan_checks(self.options.checks, self.case.settings.checks, self.options.own_checks)

    def check(self, model: nn.Module, uncalled: Uncalled | None) -> None:
        """Run the checks; one that fails fails the model."""
        settings, plan = self.case.settings, self.plan
        if not plan:
            return
        from pytest_torchlens.run.checks import check_model  # most runs have no checks

        self.enter(Stage.CHECK)
        other = replace(self.case, settings=replace(settings, seed=settings.seed + 1))  # nothing agrees by its seed
        inputs = self.case.make_inputs(model)
        found = check_model(model, inputs, plan, settings.seed, other.build, uncalled=uncalled)
        self.fields["checks"] = found
        if any(result.fails for result in found) and "outcome" not in self.fields:
            self.fields.update(outcome=Outcome.FAILED, stage=Stage.CHECK)

    def audit(self, subject: Subject) -> None:
        """Add the audit findings except of ignored rules; one of high severity fails the model if conditions say so."""
        reasons = dict.fromkeys(self.options.ignore, "--lens-ignore") | self.case.settings.ignore
        found = audit(subject)
        self.fields["findings"] = tuple(one for one in found if one.rule not in reasons)
        ignored = (f"audit: {one.rule} ignored: {reasons[one.rule]}" for one in found if one.rule in reasons)
        self.fields["notes"] = (*self.fields.get("notes", ()), *ignored)
        severe = any(one.severity is Severity.HIGH for one in self.fields["findings"])
        if severe and self.has_condition("high") and "outcome" not in self.fields:
            self.fields.update(outcome=Outcome.FAILED, stage=Stage.VALIDATE)

    def enter(self, stage: Stage) -> None:
        exit_if_forked(self.process, 0)  # the model may have forked and returned in the child
        self.stage = stage
        self.progress(stage)

    def forward(self, model: nn.Module, inputs: Inputs) -> None:
        """Time plain passes, with no recording: what raises here is the model's own error."""
        output = model(*inputs.args, **inputs.kwargs)
        exit_if_forked(self.process, 0)
        self.fields["outputs"] = describe(output)
        self.has_odd_outputs = any(map(is_odd, tensors(output)))
        wait_for(self.device)
        times: list[float] = []
        # In train mode each pass changes running statistics, so the number of passes is fixed.
        most = RUNS if model.training else MOST_RUNS
        while len(times) < RUNS or (sum(times) < BUDGET and len(times) < most):
            start = time.perf_counter()
            model(*inputs.args, **inputs.kwargs)
            wait_for(self.device)
            times.append(time.perf_counter() - start)
            exit_if_forked(self.process, 0)
        self.fastest = min(times)
        self.fields.update(forward_ms=statistics.median(times) * 1e3, forward_runs=len(times))

    def record(self, model: nn.Module, inputs: Inputs) -> HistoryRecord:
        if not self.options.validate:
            self.enter(Stage.RECORD)
            return log_forward_pass(
                model, inputs.args, inputs.kwargs, layers_to_save=None, random_seed=self.case.settings.seed
            ).record()
        self.enter(Stage.VALIDATE)
        settings = self.case.settings
        with tolerance(settings.tolerance):
            validation = validate(
                model, inputs.args, inputs.kwargs, parts=self.options.parts, seed=settings.seed, listen=self.listeners
            )
        self.note_measurements(validation)
        self.fields["verdict"] = validation.verdict
        self.fields["notes"] = tuple(f"not proven: {one.words}" for one in validation.verdict.unproven)
        if self.fails(validation.verdict):
            self.fields.update(outcome=Outcome.FAILED, stage=Stage.VALIDATE)
        elif self.options.baseline is not None:
            self.enter(Stage.COMPARE)
            self.compare(self.options.baseline, validation)
        return validation.history.record()

    def listeners(self, history: ModelHistory) -> Listeners:
        """Return what listens to the replay that is checked, so that nothing of it needs one of its own."""
        compares = self.options.baseline is not None
        listeners: list[Listener] = [ValueNumbers(history)] if compares else []
        listeners += [FlopCounts()] if compares or self.measures else []
        listeners += [ByteCounts(history.recording)] if self.measures else []
        return Listeners(*listeners, *([ValueStatistics(self.options.pictures)] if self.needs_statistics else []))

    def note_measurements(self, validation: Validation) -> None:
        """Note what was counted and measured in the replay that was checked."""
        history, listeners = validation.history, validation.listener
        if not isinstance(listeners, Listeners):
            return
        if flops := listeners.of(FlopCounts):
            self.count_flops.note(history.recording, flops.by_call)
        if counts := listeners.of(ByteCounts):
            self.count_bytes.note(history.recording, counts.needed_and_moved)
        if statistics := listeners.of(ValueStatistics):
            self.fields["statistics"] = statistics.of(history)

    @property
    def measures(self) -> bool:
        """Whether the costs of the pass are measured."""
        graphs = self.options.graphs
        return bool(self.options.folder or (graphs and graphs.needs_measurements))

    def fails(self, verdict: Verdict) -> bool:
        """Return whether a verdict fails the model: ``failed`` always, ``unproven`` by ``--lens-fail-on``."""
        if verdict.status is not Status.UNPROVEN:
            return verdict.status is Status.FAILED
        return self.has_condition("unproven")

    def has_condition(self, name: str) -> bool:
        """Return whether ``--lens-fail-on`` or the zoo file has one of the conditions on verdicts."""
        policy = self.options.baseline
        return policy is not None and policy.conditions(self.case.settings.fail_on).has(name)

    def pass_under_names(self, environment: Environment, names: Mapping[str, str]) -> Snapshot:
        """Return the snapshot of a pass in which weights have the random values of other names."""
        model = self.case.build(names)
        inputs = self.case.make_inputs(model)
        history = log_forward_pass(
            model, inputs.args, inputs.kwargs, layers_to_save=None, random_seed=self.case.settings.seed
        )
        return snapshot_of(history, environment)

    def compare(self, baseline: Policy, validation: Validation) -> None:
        environment = replace(find_environment(), device=self.device.type)
        try:
            listeners = validation.listener
            numbers = listeners.of(ValueNumbers) if isinstance(listeners, Listeners) else None
            snapshot = snapshot_of(validation.history, environment, validation.verdict, self.count_flops, numbers)
        except Exception as error:  # noqa: BLE001 - the model is valid; only the replay failed
            reason = f"not compared with its baseline, for it cannot be replayed: {type(error).__name__}: {error}"
            self.fields["notes"] = (*self.fields.get("notes", ()), reason)
            return
        if baseline.root:
            entry = self.case.entry_file
            builders = self.case.function_files() | ({entry} if entry else set())
            snapshot = with_sources(snapshot, validation.history, Path(baseline.root), builders)
        self.fields["flops"] = snapshot.totals.get("flops")
        key, fail_on = key_of(self.case.zoo, self.case.name), self.case.settings.fail_on
        timed = machine_of(environment), self.fastest
        random = self.case.settings.weights == "random"
        under_names = partial(self.pass_under_names, environment) if random else None
        comparison = baseline.check(
            key, snapshot, fail_on, history=validation.history, timed=timed, under_names=under_names
        )
        self.fields["comparison"] = comparison
        if comparison.fails:
            self.fields.update(outcome=Outcome.FAILED, stage=Stage.COMPARE)

    def describe(self, model: nn.Module, history: HistoryRecord) -> None:
        """Add what pages and drawings show: lines of code, statistics of activations, costs of the pass."""
        if self.options.folder:
            self.fields["code"] = code_of(history)
            self.find_statistics(model)
        if self.measures:
            self.attempt("measurements", model, partial(self.measured, model, history))
            cost = self.fields.get("measurements")
            self.fields["flops"] = cost.flops if cost and cost.operation_flops else self.fields.get("flops")

    @property
    def needs_statistics(self) -> bool:
        """Whether the report has them, or the audit needs them to name an operation."""
        return bool(self.options.folder or self.has_odd_outputs or self.has_condition("high"))

    def find_statistics(self, model: nn.Module) -> None:
        """Take the statistics of the activations, if they were not taken in the replay that was checked."""
        if "statistics" in self.fields:
            return
        seed, pictures = self.case.settings.seed, self.options.pictures
        self.attempt("statistics", model, lambda given: activation_statistics(model, given, seed, pictures))

    def attempt(self, name: str, model: nn.Module, find: Callable[[Inputs], Any]) -> None:
        """Find a part of the report by further passes; if they raise, leave it out with a note."""
        try:
            with end_forks():
                self.fields[name] = find(self.case.make_inputs(model))
        except Exception as error:  # noqa: BLE001 - a model may raise anything in one more pass
            note = f"no {name}: {type(error).__name__}: {error}"
            self.fields["notes"] = (*self.fields.get("notes", ()), note)

    def measured(self, model: nn.Module, history: HistoryRecord, inputs: Inputs) -> Measurements:
        found = measure(model, inputs.args, inputs.kwargs, None, RUNS, self.count_flops, self.count_bytes)
        if len(found.operations) != history.num_operations:
            raise RuntimeError("the model runs other operations from pass to pass")
        return found

    def draw(self, report: ModelReport) -> None:
        if self.options.folder:
            from pytest_torchlens.report import save_drawing

            try:
                report = save_drawing(report, self.options.folder)
            except UnwritableError as error:
                report = report.with_unwritten(error)
        report = _with_graph(self.options.graphs, report)
        reasons = {name: getattr(report, name) for name in ("graph_unfit", "graph_failed", "unwritten")}
        self.fields.update(graph=report.graph, notes=(*self.fields.get("notes", ()), *report.notes), **reasons)


def _with_graph(graphs: Graphs | None, report: ModelReport) -> ModelReport:
    """Draw as ``--lens-graph`` asks; return the report, with the reason if that fails."""
    try:
        reason = graphs.draw(report) if graphs else ""
    except OptionError as error:
        return replace(report, graph_unfit=str(error), notes=(*report.notes, f"{UNFIT_GRAPH}: {error}"))
    except UnwritableError as error:
        return report.with_unwritten(error)
    return replace(report, graph_failed=reason, notes=(*report.notes, f"{NO_GRAPH}: {reason}")) if reason else report
