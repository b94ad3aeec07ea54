"""Validates one model with one input: records it, replays and perturbs the record, and compares with a plain run.

`validate` runs the model itself.  `check_recording` checks a record that exists already.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch

from pytest_torchlens.capture import Keep
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import ambient
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.capture.process_limits import COLLECTOR
from pytest_torchlens.capture.process_limits import collecting_users_garbage
from pytest_torchlens.capture.record import ModelMembers
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.history_options import TraceOptions
from pytest_torchlens.records import PartVerdict
from pytest_torchlens.records import Status
from pytest_torchlens.records import Unproven
from pytest_torchlens.records import Verdict
from pytest_torchlens.records import close
from pytest_torchlens.replay.calls import Listener
from pytest_torchlens.validate.bounded import bound_escapes
from pytest_torchlens.validate.completeness import check_completeness
from pytest_torchlens.validate.hidden_reads import hidden_reads
from pytest_torchlens.validate.hidden_reads import runs_foreign_operators
from pytest_torchlens.validate.invariants import check_invariants
from pytest_torchlens.validate.model_runs import ModelRuns
from pytest_torchlens.validate.observer import RunDigests
from pytest_torchlens.validate.observer import compare
from pytest_torchlens.validate.observer import of_saving
from pytest_torchlens.validate.other_threads import TensorsSeen
from pytest_torchlens.validate.replay_check import Replay
from pytest_torchlens.validate.score import Where
from pytest_torchlens.validate.second_recording import changed_with_inputs
from pytest_torchlens.validate.second_recording import kept_results
from pytest_torchlens.validate.second_recording import may_leave_the_graph
from pytest_torchlens.validate.several_looks import all_ok
from pytest_torchlens.validate.several_looks import all_settled
from pytest_torchlens.validate.several_looks import is_worse
from pytest_torchlens.validate.several_looks import settled
from pytest_torchlens.validate.several_looks import worse
from pytest_torchlens.validate.unobtrusive import check_no_transform_runs
from pytest_torchlens.validate.unobtrusive import modes_disabled
from pytest_torchlens.validate.unobtrusive import warnings_ignored
from pytest_torchlens.validate.unproven import find_unproven

Listen = Callable[[ModelHistory], Listener]
PARTS = ("observer", "replay", "perturbation", "invariants", "completeness")


@dataclass(frozen=True)
class Validation:
    """A verdict and its history; true if the verdict is."""

    verdict: Verdict
    history: ModelHistory
    cut_short: bool = False
    """Whether a limit of time or memory kept a part from running to its end."""
    listener: Listener | None = None
    """What has listened to a whole replay of the history's recording; None if nothing has."""

    def __bool__(self) -> bool:
        """Return whether nothing failed."""
        return bool(self.verdict)


@COLLECTOR.raised()
def validate(  # noqa: PLR0913 - what to run, and how to check it, each by name
    model: torch.nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    parts: Collection[str] | None = None,
    seed: int | None = None,
    exhaust: bool = False,
    listen: Listen | None = None,
) -> Validation:
    """Record ``model(*args, **kwargs)`` and check the record in all `parts`.

    The model, the inputs and the random generators have their former state afterwards.

    Parameters
    ----------
    model, args, kwargs
        The model and its arguments.
    parts
        Any of ``"observer"``, ``"replay"``, ``"perturbation"``, ``"invariants"``, ``"completeness"``; None for all.
    seed
        Seed set before each run; None runs from the current state of the generators.
    exhaust
        Whether to run a generator that the model returns to its end, as in `capture.record`.
    listen
        Returns what also listens to the replay, given the history; `Validation.listener` has it at the end.

    Raises
    ------
    ValueError
        If a part is unknown.
    RuntimeError
        If the model takes a gradient through the graph of an input, which autograd frees: it cannot run twice.
        If a transform of `torch.func` is running, as `vmap`.
    Exception
        Whatever the model raises.
    """
    chosen = check_parts(parts)
    check_no_transform_runs(model)
    start = time.perf_counter()
    runs = ModelRuns(model, args, {} if kwargs is None else kwargs, seed, exhaust)
    run = _Run(runs, listen)
    try:
        history, verdicts = run.validate(chosen)
        verdicts = run.explain_by_threads(verdicts)
        if "replay" in chosen and all_ok(verdicts):
            run.look_for_detours(history.recording)
    except RuntimeError as error:
        runs.explain_used_up_graph(error)
        raise
    finally:
        runs.restore()
        runs.restore_versions()
    verdict = verdict_on(verdicts, time.perf_counter() - start, history)
    return Validation(verdict, history, listener=next((one for whole, one in run.listeners if whole is history), None))


def check_recording(recording: Recording, history: ModelHistory, parts: Collection[str] = PARTS) -> list[PartVerdict]:
    """Return the verdicts on a recording alone: those of replay, perturbation and invariants that `parts` names.

    The model and the inputs must hold the values that they had before the recorded call.
    """
    returned = [fingerprint(tensor) for _, tensor in walk(recording.output)]
    verdicts, doubted, _ = _replay(recording, history, parts, returned)
    if doubted:
        verdicts, *_ = _replay(recording, history, parts, returned, doubted)
    return [*verdicts, check_invariants(history)] if "invariants" in parts else verdicts


def check_parts(parts: Collection[str] | None) -> tuple[str, ...]:
    """Return the parts to run, in order; None selects all.

    Raises
    ------
    ValueError
        If a name is not a part of a validation; the message suggests the nearest one.
    """
    for name in parts or ():
        if name not in PARTS:
            hint = close(name, PARTS)
            raise ValueError(f"parts: expected {', '.join(PARTS)}, got {name!r}{hint and f' ({hint})'}")
    return PARTS if parts is None else tuple(name for name in PARTS if name in parts)


def verdict_on(
    parts: list[PartVerdict], seconds: float, history: ModelHistory, unpromised: frozenset[str] = frozenset()
) -> Verdict:
    """Return the verdict on the whole validation from the verdicts on its parts; `unpromised` as in `find_unproven`."""
    recording = history.recording
    unproven = find_unproven(recording, history, parts, unpromised)
    counts = {part.name: part.checked for part in parts}
    return Verdict(
        status=_status(parts, unproven),
        parts=tuple(parts),
        unproven=unproven,
        operations_checked=counts.get("replay", 0),
        edges_checked=counts.get("perturbation", 0),
        seconds=seconds,
        settings=_settings(recording),
    )


def _status(parts: list[PartVerdict], unproven: tuple[Unproven, ...]) -> Status:
    statuses = {part.status for part in parts}
    if Status.FAILED in statuses:
        return Status.FAILED
    if unproven:
        return Status.UNPROVEN
    return Status.PASSED_WITH_TOLERANCE if Status.PASSED_WITH_TOLERANCE in statuses else Status.PASSED


def _settings(recording: Recording) -> dict[str, str]:
    rows = recording.ambient.rows
    return ambient.in_words(rows[0] if rows else ambient.current())


class _Run:
    """Comes to the verdicts on a model: records it, replays the record, and runs the model plain.

    The caller's modes are disabled during replays.
    """

    def __init__(self, runs: ModelRuns, listen: Listen | None) -> None:
        self._runs = runs
        self._listen = listen
        self.listeners: list[tuple[ModelHistory, Listener]] = []
        """Each history that was replayed to the end with a listener, and this listener."""

    def validate(self, parts: tuple[str, ...]) -> tuple[ModelHistory, list[PartVerdict]]:
        """Return the history and the verdicts on `parts`.

        Completeness runs the model under a dispatch mode.  A few kernels take another path under it
        (`torch.linalg.svdvals` computes the vectors too; an LSTM under autocast computes in another dtype).  So if
        another part fails or cannot settle what it saw, all parts but completeness run again without the mode.  If that
        passes and a second run under the mode does not, the mode is to blame for the parts that fail under it both
        times, and the run without it counts.  In all other cases what the first run saw stays.
        """
        first = self._validate_once(parts)
        unwatched = tuple(part for part in parts if part != "completeness")
        if self._runs.single_use or len(unwatched) == len(parts) or all_settled(first[1][:-1]):
            return first
        again = self._validate_again(unwatched)
        if again is None:
            return first
        history, plain = again
        former, completeness = first[1][:-1], first[1][-1]
        if not any(map(is_worse, former, plain)):
            return history, [*plain, completeness]
        third = self._validate_again(parts)
        if third is None:
            return history, [*map(worse, plain, former), completeness]
        verdicts = [*map(settled, former, plain, third[1]), completeness]
        is_to_blame = any(map(is_worse, former, verdicts))
        return (history if is_to_blame else first[0]), verdicts

    def _validate_again(self, parts: tuple[str, ...]) -> tuple[ModelHistory, list[PartVerdict]] | None:
        """Return the history and verdicts of one more look; None if the model raises now, so that it shows nothing."""
        self._runs.restore()
        try:
            return self._validate_once(parts)
        except Exception:  # noqa: BLE001 - whatever the model raises; what was seen before stays
            return None

    def explain_by_threads(self, verdicts: list[PartVerdict]) -> list[PartVerdict]:
        """Return failed verdicts that name the thread, outside the recording, that made or wrote an argument."""
        if all_ok(verdicts) or self._runs.single_use or threading.active_count() == 1:
            return verdicts
        self._runs.restore()
        members = ModelMembers.of(self._runs.model).tensors.values()
        named = {f"{kind} {name!r}": tensor for tensor, kind, name in members}
        seen = TensorsSeen(named | {f"input {path!r}": tensor for path, tensor in self._runs.inputs.items()})
        try:
            with seen.active():
                self._runs.call()
        except Exception:  # noqa: BLE001 - a model may reject subclasses of tensors
            return verdicts
        return [dataclasses.replace(one, failures=tuple(map(seen.findings.explain, one.failures))) for one in verdicts]

    def _validate_once(self, parts: tuple[str, ...]) -> tuple[ModelHistory, list[PartVerdict]]:
        keep: Keep = "recent" if self._observes(parts) else "none"
        recording, observed = self._runs.record("completeness" in parts, keep)
        returned = self._runs.take_output(recording)
        history = ModelHistory(recording, TraceOptions(layers_to_save=None))
        # a mode may change what a function computes: it is used where a second look without one is taken in doubt
        with_mode = "completeness" in parts and not self._runs.single_use and not recording.compiled
        self._runs.is_restored = False  # a replay may run code of the user's
        verdicts, doubted, listener = _replay(
            recording, history, parts, returned, listener=self._listener_to(history), with_mode=with_mode
        )
        if listener is not None:
            self.listeners.append((history, listener))
        if doubted and not self._runs.single_use:
            verdicts = self._repeat_with_saved_values(parts, doubted, recording.silent_writes)
        if "invariants" in parts:
            with modes_disabled():
                verdicts.append(check_invariants(history))
        if observed is not None:  # runs the model, so it comes last
            verdicts.insert(0, self._observe(observed, recording))
        elif "observer" in parts:
            verdicts.insert(0, _not_applicable(self._runs.single_use))
        if "completeness" in parts:
            with modes_disabled():
                verdicts.append(check_completeness(recording, history))
        return history, verdicts

    def _listener_to(self, history: ModelHistory) -> Listener | None:
        try:
            return None if self._listen is None else self._listen(history)
        except Exception:  # noqa: BLE001 - as in `Replay`: not the model's failure
            return None

    def _observes(self, parts: tuple[str, ...]) -> bool:
        return "observer" in parts and not self._runs.single_use

    def _repeat_with_saved_values(
        self, parts: tuple[str, ...], doubted: frozenset[str], silent_writes: list[str]
    ) -> list[PartVerdict]:
        """Record and replay again, saving the values of functions that differed, until no further function differs.

        `silent_writes` are those of the first recording: what could not be restored does not change again.
        """
        doubts: frozenset[str] = frozenset()
        while not doubted <= doubts:
            doubts |= doubted
            recording = self._runs.record_once(watch=False, keep=doubts)
            recording.silent_writes = silent_writes = [*dict.fromkeys(silent_writes + recording.silent_writes)]
            returned = self._runs.take_output(recording)
            verdicts, doubted, _ = _replay(recording, ModelHistory(recording), parts, returned, doubts)
            self._runs.restore()
        return verdicts

    def _observe(self, traced: RunDigests, recording: Recording) -> PartVerdict:
        """Compare the recorded run with a plain one; not applicable if two plain runs differ.

        The recorded run saved activations, as users' recordings do.
        """
        uninitialised = _uninitialised_outputs(recording)
        self._runs.restore()
        plain = self._runs.plain_run()
        verdict = compare(traced, plain, uninitialised)
        if verdict.status.ok:
            return dataclasses.replace(verdict, notes=self._runs.notes_on_state())
        self._runs.restore()
        itself = compare(plain, self._runs.plain_run(), uninitialised)
        if not itself.status.ok:
            return _not_applicable(self._runs.why_they_differ("two plain runs {} differ"))
        saving, not_saving = (self._agrees_again(recording, keep, plain) for keep in ("recent", "none"))
        return of_saving(verdict) if not_saving and saving is False else verdict

    def _agrees_again(self, former: Recording, keep: Keep, plain: RunDigests) -> bool | None:
        """Return whether one more recorded run agrees with a plain one; None if the model raises now."""
        self._runs.restore()
        try:
            recording = self._runs.record_once(former.num_dispatched is not None, keep)
        except Exception:  # noqa: BLE001 - whatever the model raises; what was seen before stays
            return None
        return compare(self._runs.digests(recording), plain, _uninitialised_outputs(recording)).status.ok

    def look_for_detours(self, recording: Recording) -> None:
        """Record once more, with slightly other inputs if possible, and note what went past the graph."""
        with_foreign = runs_foreign_operators(recording)
        if self._runs.single_use or not (with_foreign or may_leave_the_graph(recording)):
            return
        bound = functools.partial(bound_escapes, usual=len(recording.escapes))
        other, differ = self._runs.record_nudged(self._runs.inputs.values(), bound)
        if other is None:  # the model may not accept other inputs
            other, differ = self._runs.record_nudged((), bound)
        if other is not None:
            changed = changed_with_inputs(recording, other) if differ else []
            recording.detours += [*changed, *kept_results(recording, other)]
        if with_foreign and differ:
            recording.detours += hidden_reads(recording)


@modes_disabled()
@warnings_ignored()
@collecting_users_garbage()
def _replay(  # noqa: PLR0913 - as `Replay`
    recording: Recording,
    where: Where,
    parts: Collection[str],
    returned: list[str],
    doubts: frozenset[str] = frozenset(),
    listener: Listener | None = None,
    with_mode: bool = False,
) -> tuple[list[PartVerdict], frozenset[str], Listener | None]:
    """Return the verdicts of the replay, the functions whose values differ from the recorded ones, and the listener."""
    if not {"replay", "perturbation"} & set(parts):
        return [], doubts, None
    replay = Replay(recording, where, parts, doubts, listener=listener, with_mode=with_mode)
    return replay.verdicts(returned), replay.doubtful, replay.listener


def _not_applicable(reason: str) -> PartVerdict:
    return PartVerdict(name="observer", status=Status.NOT_APPLICABLE, reason=reason)


def _uninitialised_outputs(recording: Recording) -> set[str]:
    """Return the paths of outputs that are uninitialised memory as `torch.empty` returned it."""
    values = {path: value_of(output) for path, output in recording.outputs}
    return {path for path, value in values.items() if value.call in recording.uninitialised}
