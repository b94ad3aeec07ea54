"""Validates one model with one input: records it, replays and perturbs the record, and compares with a plain run.

`validate` runs the model itself.  `check_recording` checks a record that exists already.
"""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any
from typing import TypeVar

import torch

from pytest_torchlens.capture import Keep
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import ambient
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture import record
from pytest_torchlens.capture.dispatch_watch import is_compiler_loaded
from pytest_torchlens.capture.generators import Generators
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.capture.origins import TensorsBefore
from pytest_torchlens.capture.record import ModelMembers
from pytest_torchlens.capture.record import call_model
from pytest_torchlens.capture.record import seed_all
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.history_options import TraceOptions
from pytest_torchlens.records import PartVerdict
from pytest_torchlens.records import Status
from pytest_torchlens.records import Unproven
from pytest_torchlens.records import Verdict
from pytest_torchlens.records import close
from pytest_torchlens.replay.calls import Listener
from pytest_torchlens.validate.bounded import EndlessError
from pytest_torchlens.validate.bounded import bound_escapes
from pytest_torchlens.validate.completeness import check_completeness
from pytest_torchlens.validate.hidden_reads import hidden_reads
from pytest_torchlens.validate.hidden_reads import runs_foreign_operators
from pytest_torchlens.validate.invariants import check_invariants
from pytest_torchlens.validate.observer import RunDigests
from pytest_torchlens.validate.observer import compare
from pytest_torchlens.validate.observer import of_saving
from pytest_torchlens.validate.other_threads import TensorsSeen
from pytest_torchlens.validate.outside import Outside
from pytest_torchlens.validate.replay_check import Replay
from pytest_torchlens.validate.score import Where
from pytest_torchlens.validate.score import in_short
from pytest_torchlens.validate.second_recording import changed_with_inputs
from pytest_torchlens.validate.second_recording import kept_results
from pytest_torchlens.validate.second_recording import may_leave_the_graph
from pytest_torchlens.validate.second_recording import nudged
from pytest_torchlens.validate.second_recording import ran_uncompiled
from pytest_torchlens.validate.second_recording import reads_constants
from pytest_torchlens.validate.second_recording import same_calls
from pytest_torchlens.validate.several_looks import all_ok
from pytest_torchlens.validate.several_looks import all_settled
from pytest_torchlens.validate.several_looks import is_worse
from pytest_torchlens.validate.several_looks import settled
from pytest_torchlens.validate.several_looks import worse
from pytest_torchlens.validate.state import ModelState
from pytest_torchlens.validate.unobtrusive import check_no_transform_runs
from pytest_torchlens.validate.unobtrusive import modes_disabled
from pytest_torchlens.validate.unobtrusive import warnings_ignored
from pytest_torchlens.validate.unproven import find_unproven

_T = TypeVar("_T")
_OnStart = Callable[[Recording], None]
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
    run = _Run(model, args, {} if kwargs is None else kwargs, seed, exhaust, listen)
    try:
        history, verdicts = run.validate(chosen)
        verdicts = run.explain_by_threads(verdicts)
        if "replay" in chosen and all_ok(verdicts):
            run.look_for_detours(history.recording)
    except RuntimeError as error:
        run.explain_used_up_graph(error)
        raise
    finally:
        run.restore()
        run.restore_versions()
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
    """Runs a model with one input several times, each from the same state.

    The caller's modes are active while the model runs, and disabled during our own work, replays included.
    """

    @modes_disabled()
    def __init__(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        seed: int | None,
        exhaust: bool,
        listen: Listen | None,
    ) -> None:
        self.model = model
        self.args = args
        self.kwargs = kwargs
        self.seed = seed
        self.exhaust = exhaust
        self.listeners: list[tuple[ModelHistory, Listener]] = []
        """Each history that was replayed to the end with a listener, and this listener."""
        self._listen = listen
        self._state = ModelState(model, args, kwargs)
        self._generators = Generators()
        self._outside = Outside(model)
        self._inputs = dict([*walk(args), *walk(kwargs)])
        self._has_run = self._is_restored = False
        self._returned: list[str] = []
        self._single_use = ""
        """Why the model can run only once; ``""`` if it can run again."""
        if self._state.single_use:
            self._single_use = (
                f"the model cannot be run again on what can be read once: {', '.join(self._state.single_use)}"
            )

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
        if self._single_use or len(unwatched) == len(parts) or all_settled(first[1][:-1]):
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
        self.restore()
        try:
            return self._validate_once(parts)
        except Exception:  # noqa: BLE001 - whatever the model raises; what was seen before stays
            return None

    def explain_by_threads(self, verdicts: list[PartVerdict]) -> list[PartVerdict]:
        """Return failed verdicts that name the thread, outside the recording, that made or wrote an argument."""
        if all_ok(verdicts) or self._single_use or threading.active_count() == 1:
            return verdicts
        self.restore()
        members = {f"{kind} {name!r}": tensor for tensor, kind, name in ModelMembers.of(self.model).tensors.values()}
        seen = TensorsSeen(members | {f"input {path!r}": tensor for path, tensor in self._inputs.items()})
        try:
            with seen.active():
                self._in_own_context(call_model, self.model, self.args, self.kwargs, self.exhaust)
        except Exception:  # noqa: BLE001 - a model may reject subclasses of tensors
            return verdicts
        return [dataclasses.replace(one, failures=tuple(map(seen.findings.explain, one.failures))) for one in verdicts]

    def explain_used_up_graph(self, error: RuntimeError) -> None:
        """Raise an error with the reason if `error` is that the first run used up the graph of an input."""
        with_graph = [path for path, tensor in self._inputs.items() if not tensor.is_leaf]
        if self._has_run and with_graph and _GRAPH_IS_FREED in str(error):
            raise RuntimeError(
                f"{type(self.model).__name__} ran once and cannot run again, as a validation needs: it takes "
                f"a gradient through the graph of input {', '.join(map(repr, with_graph))}, which autograd frees. "
                "Have forward pass retain_graph=True, or pass an input without a graph: x.detach()."
            ) from error

    def _validate_once(self, parts: tuple[str, ...]) -> tuple[ModelHistory, list[PartVerdict]]:
        keep: Keep = "recent" if self._observes(parts) else "none"
        recording, observed = self._record("completeness" in parts, keep)
        returned = self._take_output(recording)
        history = ModelHistory(recording, TraceOptions(layers_to_save=None))
        # a mode may change what a function computes: it is used where a second look without one is taken in doubt
        with_mode = "completeness" in parts and not self._single_use and not recording.compiled
        self._is_restored = False  # a replay may run code of the user's
        verdicts, doubted, listener = _replay(
            recording, history, parts, returned, listener=self._listener_to(history), with_mode=with_mode
        )
        if listener is not None:
            self.listeners.append((history, listener))
        if doubted and not self._single_use:
            verdicts = self._repeat_with_saved_values(parts, doubted, recording.silent_writes)
        if "invariants" in parts:
            with modes_disabled():
                verdicts.append(check_invariants(history))
        if observed is not None:  # runs the model, so it comes last
            verdicts.insert(0, self._observe(observed, recording))
        elif "observer" in parts:
            verdicts.insert(0, _not_applicable(self._single_use))
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
        return "observer" in parts and not self._single_use

    def _take_output(self, recording: Recording) -> list[str]:
        """Return the fingerprints of the model's output, drop the output, and restore the state."""
        recording.output = None
        self.restore()
        return self._returned

    def _repeat_with_saved_values(
        self, parts: tuple[str, ...], doubted: frozenset[str], silent_writes: list[str]
    ) -> list[PartVerdict]:
        """Record and replay again, saving the values of functions that differed, until no further function differs.

        `silent_writes` are those of the first recording: what could not be restored does not change again.
        """
        doubts: frozenset[str] = frozenset()
        while not doubted <= doubts:
            doubts |= doubted
            recording = self._record_once(watch=False, keep=doubts)
            recording.silent_writes = silent_writes = [*dict.fromkeys(silent_writes + recording.silent_writes)]
            returned = self._take_output(recording)
            verdicts, doubted, _ = _replay(recording, ModelHistory(recording), parts, returned, doubts)
            self.restore()
        return verdicts

    def _record(self, watch: bool, keep: Keep) -> tuple[Recording, RunDigests | None]:
        """Record the model, under a dispatch mode if `watch`.

        If it is to `keep` activations, for the observer, also return what the first recorded run left, which no second
        one replaces.
        """
        if self._single_use:
            recording = self._record_with_tensors_before(watch, keep)
            if ran_uncompiled(recording):  # and cannot run again
                recording.num_dispatched, recording.why_unwatched = None, _COMPILED
            return recording, None
        recording = self._record_watched(keep) if watch else self._record_once(False, keep)
        observed = self._digests(recording) if keep == "recent" else None
        if ran_uncompiled(recording):
            recording = self._record_as_compiled(recording, keep)
        return self._record_again(recording, keep) if reads_constants(recording) else recording, observed

    def _record_watched(self, keep: Keep) -> Recording:
        """Record the model under the watch; without it where PyTorch raises under any mode.

        If the model has loaded PyTorch's compiler, another watch is tried first: the compiler leaves that one alone.
        """
        compiler_was_loaded = is_compiler_loaded()
        try:
            return self._record_once(True, keep)
        except Exception as error:  # noqa: BLE001 - the model's own is raised by the recording without the watch
            self.restore()
            if is_compiler_loaded() and not compiler_was_loaded:
                return self._record_watched(keep)
            recording = self._record_once(False, keep)
            recording.why_unwatched = f"the model raises while the dispatcher is watched: {in_short(error)}"
            return recording

    def _record_as_compiled(self, watched: Recording, keep: Keep) -> Recording:
        """Return a recording without the watch if compiled code calls other functions then, else the one with it.

        PyTorch runs compiled code as it was before under a dispatch mode: what its backend made of it was not watched.
        """
        returned = self._returned
        self.restore()
        recording = self._record_once(False, keep)
        if same_calls(watched, recording):
            self._returned = returned
            return watched
        recording.why_unwatched = _COMPILED
        return recording

    def _record_once(self, watch: bool, keep: Keep, on_start: _OnStart = lambda _: None) -> Recording:
        recordings: list[Recording] = []  # overwritten tensors are restored even if the model raises

        def note(begun: Recording) -> None:
            recordings.append(begun)
            on_start(begun)

        options = {"watch": watch, "keep": keep, "exhaust": self.exhaust, "seed": self.seed, "thorough": True}
        try:
            recording = self._in_own_context(record, self.model, self.args, self.kwargs, on_start=note, **options)
        finally:
            for one in recordings:
                self._state.note(one)
        self._has_run = True
        with modes_disabled():
            self._returned = [fingerprint(tensor) for _, tensor in walk(recording.output)]
        if keep == "recent":
            _drop_activations(recording)
        return recording

    def _record_again(self, first: Recording, keep: Keep) -> Recording:
        """Record once more, and list all existing tensors first, to tell constants from tensors made during the pass.

        `torch.Tensor([1.0])` calls no function that the recorder sees, but the dispatcher allocates its memory.  If the
        two runs differ, the first counts.
        """
        returned = self._returned
        self.restore()
        recording = self._record_with_tensors_before(first.num_dispatched is not None, keep)
        recording.why_unwatched = first.why_unwatched
        recording.silent_writes = [*dict.fromkeys(first.silent_writes + recording.silent_writes)]
        if _values(recording) == _values(first):
            return recording
        self._returned = returned
        if len(recording.sources) == len(first.sources):
            unknown = set(map(id, recording.unknown_sources))
            pairs = zip(first.sources, recording.sources, strict=True)
            first.unknown_sources = [source for source, other in pairs if id(other) in unknown]
        return first

    def _record_with_tensors_before(self, watch: bool, keep: Keep) -> Recording:
        """Record, and note which constants did not exist before the pass."""
        before = TensorsBefore()
        recording = self._record_once(watch, keep)
        recording.unknown_sources = before.unknown_sources(recording.sources)
        return recording

    def _observe(self, traced: RunDigests, recording: Recording) -> PartVerdict:
        """Compare the recorded run with a plain one; not applicable if two plain runs differ.

        The recorded run saved activations, as users' recordings do.
        """
        uninitialised = _uninitialised_outputs(recording)
        self.restore()
        plain = self._plain_run()
        verdict = compare(traced, plain, uninitialised)
        if verdict.status.ok:
            return dataclasses.replace(verdict, notes=self._unrestored_notes())
        self.restore()
        itself = compare(plain, self._plain_run(), uninitialised)
        if not itself.status.ok:
            return _not_applicable(self._not_repeating("two plain runs {} differ"))
        saving, not_saving = (self._agrees_again(recording, keep, plain) for keep in ("recent", "none"))
        return of_saving(verdict) if not_saving and saving is False else verdict

    def _agrees_again(self, former: Recording, keep: Keep, plain: RunDigests) -> bool | None:
        """Return whether one more recorded run agrees with a plain one; None if the model raises now."""
        self.restore()
        try:
            recording = self._record_once(former.num_dispatched is not None, keep)
        except Exception:  # noqa: BLE001 - whatever the model raises; what was seen before stays
            return None
        return compare(self._digests(recording), plain, _uninitialised_outputs(recording)).status.ok

    def _digests(self, recording: Recording) -> RunDigests:
        return RunDigests.of(self.model, self._inputs, recording.output, recording.digests_after)

    def look_for_detours(self, recording: Recording) -> None:
        """Record once more, with slightly other inputs if possible, and note what went past the graph."""
        with_foreign = runs_foreign_operators(recording)
        if self._single_use or not (with_foreign or may_leave_the_graph(recording)):
            return
        bound = functools.partial(bound_escapes, usual=len(recording.escapes))
        other, differ = self._record_nudged(self._inputs.values(), bound)
        if other is None:  # the model may not accept other inputs
            other, differ = self._record_nudged((), bound)
        if other is not None:
            changed = changed_with_inputs(recording, other) if differ else []
            recording.detours += [*changed, *kept_results(recording, other)]
        if with_foreign and differ:
            recording.detours += hidden_reads(recording)

    def _record_nudged(self, inputs: Collection[torch.Tensor], bound: _OnStart) -> tuple[Recording | None, bool]:
        """Record with other values in `inputs`, and return whether any has; no recording if the model raises."""
        self._restore_once()
        with nudged(inputs) as differ:
            try:
                return self._record_once(watch=False, keep="none", on_start=bound), differ
            except (Exception, EndlessError):  # noqa: BLE001 - whatever the model raises for these inputs
                return None, differ

    def _not_repeating(self, how: str) -> str:
        """Return why two runs differ: the model does not repeat itself, or some state could not be restored."""
        self.restore()
        lost = self._state.unrestored(maybe=True)
        if not lost:
            changed = self._outside.changed()
            return f"{how.format('in a row' if changed else 'from one state')}: {changed or _NOT_REPEATING}"
        return f"{how.format('in a row')}, for what the model changes could not be put back: {', '.join(lost)}"

    def _unrestored_notes(self) -> tuple[str, ...]:
        self.restore()
        return tuple(f"{name} was changed, and could not be put back" for name in self._state.unrestored())

    def _plain_run(self) -> RunDigests:
        if self.seed is not None:
            seed_all(self.seed)
        output = self._in_own_context(call_model, self.model, self.args, self.kwargs, self.exhaust)
        return RunDigests.of(self.model, self._inputs, output)

    def _in_own_context(self, function: Callable[..., _T], /, *args: Any, **kwargs: Any) -> _T:
        """Call a function, then restore the settings and context variables that it changed."""
        self._is_restored = False
        with ambient.in_force(ambient.current()):
            return contextvars.copy_context().run(function, *args, **kwargs)

    @modes_disabled()
    def restore(self) -> None:
        """Restore the state of the model, the inputs and the random generators."""
        self._state.restore()
        self._generators.restore()
        self._is_restored = True

    def _restore_once(self) -> None:
        """Restore unless nothing of the user's has run since the last time."""
        if not self._is_restored:
            self.restore()

    @modes_disabled()
    def restore_versions(self) -> None:
        """Restore the version counters of tensors, which recordings compare: after the last of them."""
        self._state.restore_versions()


@modes_disabled()
@warnings_ignored()
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


_NOT_REPEATING = "the model does not repeat itself"
_GRAPH_IS_FREED = "backward through the graph a second time"


def _drop_activations(recording: Recording) -> None:
    for call in recording.calls:
        for value in call.outputs:
            value.tensor = None


_COMPILED = "the model runs compiled code, which PyTorch runs uncompiled while the dispatcher is watched"


def _not_applicable(reason: str) -> PartVerdict:
    return PartVerdict(name="observer", status=Status.NOT_APPLICABLE, reason=reason)


def _values(recording: Recording) -> list[str]:
    """Return the fingerprints of all that the calls of a recording gave."""
    return [value.fingerprint for call in recording.calls if not call.uninitialised for value in call.outputs]


def _uninitialised_outputs(recording: Recording) -> set[str]:
    """Return the paths of outputs that are uninitialised memory as `torch.empty` returned it."""
    values = {path: value_of(output) for path, output in recording.outputs}
    return {path for path, value in values.items() if value.call in recording.uninitialised}
