"""Runs one model with one input several times, each time from the same state: recorded, watched, plain."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from collections.abc import Collection
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
from pytest_torchlens.capture.process_limits import collecting_users_garbage
from pytest_torchlens.capture.record import call_model
from pytest_torchlens.capture.record import seed_all
from pytest_torchlens.validate.bounded import EndlessError
from pytest_torchlens.validate.observer import RunDigests
from pytest_torchlens.validate.outside import Outside
from pytest_torchlens.validate.score import in_short
from pytest_torchlens.validate.second_recording import nudged
from pytest_torchlens.validate.second_recording import ran_uncompiled
from pytest_torchlens.validate.second_recording import reads_constants
from pytest_torchlens.validate.second_recording import same_calls
from pytest_torchlens.validate.state import ModelState
from pytest_torchlens.validate.unobtrusive import modes_disabled

_T = TypeVar("_T")
_OnStart = Callable[[Recording], None]


class ModelRuns:
    """Runs a model with one input several times, each from the same state.

    The caller's modes are active while the model runs, and disabled during our own work.

    Parameters
    ----------
    model, args, kwargs
        The model and its arguments.
    seed
        Seed set before each run; None runs from the current state of the generators.
    exhaust
        As in `record`.

    Attributes
    ----------
    inputs
        The tensors in the arguments, by path.
    single_use
        Why the model can run only once; ``""`` if it can run again.
    is_restored
        Whether nothing of the user's has run since the state was last restored.
    """

    @modes_disabled()
    def __init__(
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        seed: int | None,
        exhaust: bool,
    ) -> None:
        self.model = model
        self.args = args
        self.kwargs = kwargs
        self.seed = seed
        self.exhaust = exhaust
        self.inputs = dict([*walk(args), *walk(kwargs)])
        self._state = ModelState(model, args, kwargs)
        self._generators = Generators()
        self._outside = Outside(model)
        self._returned: list[str] = []
        """Fingerprints of the output of the recording that counts."""
        self._has_run = self.is_restored = False
        self.single_use = ""
        if self._state.single_use:
            self.single_use = (
                f"the model cannot be run again on what can be read once: {', '.join(self._state.single_use)}"
            )

    def take_output(self, recording: Recording) -> list[str]:
        """Return the fingerprints of the model's output, drop the output, and restore the state."""
        recording.output = None
        self.restore()
        return self._returned

    def record(self, watch: bool, keep: Keep) -> tuple[Recording, RunDigests | None]:
        """Record the model, under a dispatch mode if `watch`.

        If it is to `keep` activations, for the observer, also return what the first recorded run left, which no second
        one replaces.
        """
        if self.single_use:
            recording = self._record_with_tensors_before(watch, keep)
            if ran_uncompiled(recording):  # and cannot run again
                recording.num_dispatched, recording.why_unwatched = None, _COMPILED
            return recording, None
        recording = self._record_watched(keep) if watch else self.record_once(False, keep)
        observed = self.digests(recording) if keep == "recent" else None
        if ran_uncompiled(recording):
            recording = self._record_as_compiled(recording, keep)
        return self._record_again(recording, keep) if reads_constants(recording) else recording, observed

    def _record_watched(self, keep: Keep) -> Recording:
        """Record the model under the watch; without it where PyTorch raises under any mode.

        If the model has loaded PyTorch's compiler, another watch is tried first: the compiler leaves that one alone.
        """
        compiler_was_loaded = is_compiler_loaded()
        try:
            return self.record_once(True, keep)
        except Exception as error:  # noqa: BLE001 - the model's own is raised by the recording without the watch
            self.restore()
            if is_compiler_loaded() and not compiler_was_loaded:
                return self._record_watched(keep)
            recording = self.record_once(False, keep)
            recording.why_unwatched = f"the model raises while the dispatcher is watched: {in_short(error)}"
            return recording

    def _record_as_compiled(self, watched: Recording, keep: Keep) -> Recording:
        """Return a recording without the watch if compiled code calls other functions then, else the one with it.

        PyTorch runs compiled code as it was before under a dispatch mode: what its backend made of it was not watched.
        """
        returned = self._returned
        self.restore()
        recording = self.record_once(False, keep)
        if same_calls(watched, recording):
            self._returned = returned
            return watched
        recording.why_unwatched = _COMPILED
        return recording

    def record_once(
        self, watch: bool, keep: Keep, on_start: _OnStart = lambda _: None, thorough: bool = True
    ) -> Recording:
        """Record the model, and note what it overwrites, so that it can be restored; the options are those of `record`.

        Each parameter gets a fingerprint when it is read, also if it is not to be `thorough`.
        """
        recordings: list[Recording] = []  # overwritten tensors are restored even if the model raises

        def note(begun: Recording) -> None:
            recordings.append(begun)
            on_start(begun)

        options: dict[str, Any] = {"watch": watch, "keep": keep, "thorough": thorough, "parameters_too": True}
        options |= {"exhaust": self.exhaust, "seed": self.seed}
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
        recording = self.record_once(watch, keep)
        recording.unknown_sources = before.unknown_sources(recording.sources)
        return recording

    def record_nudged(self, inputs: Collection[torch.Tensor], bound: _OnStart) -> tuple[Recording | None, bool]:
        """Record with other values in `inputs`, and return whether any has; no recording if the model raises.

        It is not thorough: such a recording is asked what calls were given, not whether anything changed silently.
        """
        self._restore_once()
        with nudged(inputs) as differ:
            try:
                return self.record_once(watch=False, keep="none", on_start=bound, thorough=False), differ
            except (Exception, EndlessError):  # noqa: BLE001 - whatever the model raises for these inputs
                return None, differ

    def plain_run(self) -> RunDigests:
        """Run the model without recording it, and return what it left."""
        if self.seed is not None:
            seed_all(self.seed)
        output = self.call()
        return RunDigests.of(self.model, self.inputs, output)

    def digests(self, recording: Recording) -> RunDigests:
        """Return what a recorded run left."""
        return RunDigests.of(self.model, self.inputs, recording.output, recording.digests_after)

    def explain_used_up_graph(self, error: RuntimeError) -> None:
        """Raise an error with the reason if `error` is that the first run used up the graph of an input."""
        with_graph = [path for path, tensor in self.inputs.items() if not tensor.is_leaf]
        if self._has_run and with_graph and _GRAPH_IS_FREED in str(error):
            raise RuntimeError(
                f"{type(self.model).__name__} ran once and cannot run again, as a validation needs: it takes "
                f"a gradient through the graph of input {', '.join(map(repr, with_graph))}, which autograd frees. "
                "Have forward pass retain_graph=True, or pass an input without a graph: x.detach()."
            ) from error

    def why_they_differ(self, how: str) -> str:
        """Return why two runs differ: the model does not repeat itself, or some state could not be restored."""
        self.restore()
        lost = self._state.unrestored(maybe=True)
        if not lost:
            changed = self._outside.changed()
            return f"{how.format('in a row' if changed else 'from one state')}: {changed or _NOT_REPEATING}"
        return f"{how.format('in a row')}, for what the model changes could not be put back: {', '.join(lost)}"

    def notes_on_state(self) -> tuple[str, ...]:
        """Restore the state, and return a note on each object for which that failed."""
        self.restore()
        return tuple(f"{name} was changed, and could not be put back" for name in self._state.unrestored())

    def call(self) -> Any:
        """Return what the model returns, without recording."""
        return self._in_own_context(call_model, self.model, self.args, self.kwargs, self.exhaust)

    def _in_own_context(self, function: Callable[..., _T], /, *args: Any, **kwargs: Any) -> _T:
        """Call a function, then restore the settings and context variables that it changed."""
        self.is_restored = False
        with ambient.in_force(ambient.current()), collecting_users_garbage():
            return contextvars.copy_context().run(function, *args, **kwargs)

    @modes_disabled()
    def restore(self) -> None:
        """Restore the state of the model, the inputs and the random generators."""
        self._state.restore()
        self._generators.restore()
        self.is_restored = True

    def _restore_once(self) -> None:
        """Restore unless nothing of the user's has run since the last time."""
        if not self.is_restored:
            self.restore()

    @modes_disabled()
    def restore_versions(self) -> None:
        """Restore the version counters of tensors, which recordings compare: after the last of them."""
        self._state.restore_versions()


_NOT_REPEATING = "the model does not repeat itself"
_GRAPH_IS_FREED = "backward through the graph a second time"
_COMPILED = "the model runs compiled code, which PyTorch runs uncompiled while the dispatcher is watched"


def _drop_activations(recording: Recording) -> None:
    for call in recording.calls:
        for value in call.outputs:
            value.tensor = None


def _values(recording: Recording) -> list[str]:
    """Return the fingerprints of all that the calls of a recording gave."""
    return [value.fingerprint for call in recording.calls if not call.uninitialised for value in call.outputs]
