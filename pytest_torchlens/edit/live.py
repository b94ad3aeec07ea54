"""Edits a pass while the model runs once more: Python decides anew."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Source
from pytest_torchlens.capture import ambient
from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.calls import Frames
from pytest_torchlens.capture.calls import values_read
from pytest_torchlens.capture.functions import Function
from pytest_torchlens.capture.functions import FunctionInfo
from pytest_torchlens.capture.functions import info_of
from pytest_torchlens.capture.generators import Generators
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.memory import duplicate
from pytest_torchlens.capture.record import OnePass
from pytest_torchlens.capture.record import call_model
from pytest_torchlens.capture.record import check_thread
from pytest_torchlens.capture.record import seed_all
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.capture.tracer import Tracer
from pytest_torchlens.edit.edited_sources import EditedSources
from pytest_torchlens.edit.edited_sources import contents_before
from pytest_torchlens.edit.gradients import is_in_checkpoint
from pytest_torchlens.edit.gradients import warn_of_checkpoint
from pytest_torchlens.edit.module_state import ModuleState
from pytest_torchlens.edit.module_state import overwrite_unseen
from pytest_torchlens.edit.request import Request
from pytest_torchlens.edit.sites import Site
from pytest_torchlens.edit.sites import Sites
from pytest_torchlens.edit.sites import of_model
from pytest_torchlens.edit.sites import sites_of
from pytest_torchlens.edit.unwritten import on_unwritten_memory
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.replay import NotReplayableError
from pytest_torchlens.replay.run import is_unchanged
from pytest_torchlens.replay.run import read_by_python

_NONE: Mapping[Function, Callable[..., Any]] = MappingProxyType({})


class EditsBySite:
    """Knows which calls one request edits, in a pass that may take another way.

    Parameters
    ----------
    request
        The edits of a recorded pass.
    """

    def __init__(self, request: Request) -> None:
        self._history = request.whole.history
        self.recorded = sites_of(self._history.recording)
        self._edits = {self.recorded[number]: edits for number, edits in request.of_calls().items()}
        recorded, edited = (Counter(site.statement for site in some) for some in (self.recorded, self._edits))
        first = {site.statement: edits for site, edits in reversed(self._edits.items())}
        alone = {
            site.statement for site, edits in self._edits.items() if not edits.has_the_changes_of(first[site.statement])
        }
        self._of_all_calls = {
            statement: edits
            for statement, edits in first.items()
            if edited[statement] == recorded[statement] and statement not in alone
        }
        """Edits by statement, where all its recorded calls have the same: so have those that only this pass makes."""
        self._applied: set[Site] = set()

    def info(self, site: Site, info: FunctionInfo) -> FunctionInfo:
        """Return the facts of the function that is called at a site, edited if it is to be."""
        edits = self._edits.get(site) or self._of_all_calls.get(site.statement)
        if edits is None:
            return info
        self._applied.add(site)
        return edits.info(info)

    def check_applied(self) -> None:
        """Raise if an edited operation did not run."""
        missed = [site for site in self._edits if site not in self._applied]
        if missed:
            label = self._history.label(self.recorded.index(missed[0]))
            raise NotReplayableError(
                f"{label} did not run in the edited pass, or as part of a function that runs as a whole: nothing was "
                "edited there"
            )


class EditingTracer(Tracer):
    """Records a pass, edits calls at their sites, and runs some functions as their steps."""

    def __torch_function__(
        self, func: Function, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = self._sources.in_arguments((args, kwargs or {}))
        if func in self._bodies and func not in self._expanding:
            return self._expand(info_of(func), args, kwargs)
        return super().__torch_function__(func, types, args, kwargs)

    def _body(self, func: Function) -> Callable[..., Any]:
        return self._bodies.get(func) or super()._body(func)

    def prepare(
        self, sources: EditedSources, edits: list[EditsBySite], bodies: Mapping[Function, Callable[..., Any]]
    ) -> None:
        """Set what is to be edited, by requests that each see what those before made, and what to run as its steps."""
        self._sources = sources
        self._edits = edits
        self._bodies = bodies
        self._sites = Sites()
        self.in_checkpoint = ""
        """The first edited call inside a checkpoint."""

    def _leaf(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record one call, edited if it is to be."""
        site = self._sites.next(self.module, info.name, self._frames(1))
        number = len(self.calls)
        edited = info
        for edits in self._edits:
            edited = edits.info(site, edited)
        if edited is not info and not self.in_checkpoint and is_in_checkpoint():
            self.in_checkpoint = f"{info.name} in {site.statement.module or 'the model'}"
        result = super()._leaf(edited, args, kwargs)
        if any(call.info.name == info.name for call in self.calls[number:]):
            self._sites.count(site)
        return result

    def _frames(self, depth: int = 3) -> Frames:
        return of_model(super()._frames(depth + 1))


def run_again(
    history: ModelHistory, request: Request | None = None, bodies: Mapping[Function, Callable[..., Any]] = _NONE
) -> Recording:
    """Run the model once more from where the recorded pass began, and leave it as it is now.

    Parameters
    ----------
    history
        The pass.
    request
        The edits, beside those that the pass has; None for no more.
    bodies
        Functions that run as their steps: what runs in the place of each.

    Raises
    ------
    NotReplayableError
        If the model or its inputs are no longer there, or an edit's operation did not run.
    """
    recording = (history.original or history).recording
    model = recording.model()
    if model is None or history.arguments is None:
        raise NotReplayableError(f"{recording.model_name} or its inputs are no longer there: keep them to run it again")
    check_thread(model)
    requests = [*history.requests, *([] if request is None else [request])]
    edits = [*map(EditsBySite, requests)]
    settings = recording.ambient.at_start
    with ambient.in_force(settings):
        sources = EditedSources(recording, requests)
    args, kwargs = sources.in_arguments(history.arguments)
    generators, state = Generators(), ModuleState(model, history.arguments, [one.live for one in _written(recording)])
    one: OnePass | None = None
    try:
        sources.put_into(model)
        overwrite_unseen([(source.live, contents_before(source)) for source in _written(recording)])
        _restore_random_state(recording)
        options: dict[str, Any] = {"kind": EditingTracer, "stand_in": sources.in_place_of}
        one = OnePass(model, args, kwargs, keep=history.options.keep, seed=recording.seed, **options)
        assert isinstance(one.tracer, EditingTracer)  # noqa: S101 - for the type checker
        one.tracer.prepare(sources, edits, bodies)
        if recording.seed is not None:
            seed_all(recording.seed)
        with ambient.in_force(settings), one.active():
            output = call_model(model, args, kwargs, history.options.exhaust)
        new = one.finish(model, output)
    finally:
        generators.restore()
        if one is not None:
            _keep_apart(one, state)
        state.restore()
    for each in edits:
        each.check_applied()
    if request is not None:
        _warn_if_changed(history, request, new, edits[-1].recorded, state)
    if one.tracer.in_checkpoint:
        warn_of_checkpoint(new, one.tracer.in_checkpoint, stacklevel=5)
    return new


def _warn_if_changed(
    history: ModelHistory, request: Request, recording: Recording, sites: list[Site], state: ModuleState
) -> None:
    """Warn if something that is not behind an edit differs: the model changed, or keeps something between its calls."""
    first = history.original or history
    changed = next((source for source in first.recording.sources if not is_unchanged(source)), None)
    if changed is not None:
        warnings.warn(
            f"edit: {changed.label} has changed since the recorded pass, and a live pass reads what it holds now; "
            "live=False edits the recorded pass",
            stacklevel=5,
        )
        return
    behind, affected = request.whole.descendants(request.swaps, changed=request.edges)
    behind |= {place.value.call for place, _ in request.changes}
    edited = {
        (source.kind, source.name) for each in [*history.requests, request] for source in each.of_sources().values()
    }
    now = dict(zip(sites_of(recording), recording.calls, strict=True))
    unwritten = on_unwritten_memory(history.recording)
    first_read = _first_read(history.recording, affected)
    for number, (site, call) in enumerate(zip(sites, history.recording.calls, strict=True)):
        other = now.get(site)
        if other is None or number in unwritten:
            continue
        if name := _kept(history.recording, call, recording, other, edited, state):
            what = f"reads {name!r}, which holds something else than in the recorded pass"
        elif number not in behind and number < first_read and _digests(call) != _digests(other):
            what = "gave other values than in the recorded pass, though no edit is before it"
        else:
            continue
        warnings.warn(
            f"edit: {history.label(number)} {what}: {history.model_name}, or what it reads, has changed since; "
            "live=False edits the recorded pass",
            stacklevel=5,
        )
        return


def _digests(call: Call) -> list[int | str]:
    return [value.digest for value in call.outputs]


def _first_read(recording: Recording, affected: set[int]) -> int:
    """Return the number of the call before which Python first read a value that an edit may change.

    From there on Python may bring the change anywhere: into a number, a list, an array of NumPy.
    """
    reads = (one.call for one in recording.escapes if any(id(value) in affected for value in read_by_python(one)))
    return min(reads, default=len(recording.calls))


def _kept(
    before: Recording, call: Call, after: Recording, other: Call, edited: set[tuple[str, str]], state: ModuleState
) -> str:
    """Return the attribute whose tensor a call reads with other values than in the recorded pass; ``""`` if none is."""
    then = dict(values_read(call))
    for path, value in values_read(other):
        was = then.get(path)
        if was is None or was.call >= 0 or value.call >= 0 or value.digest in ("", was.digest) or was.digest == "":
            continue
        source, former = after.sources[value.position], before.sources[was.position]
        if not edited.isdisjoint({(source.kind, source.name), (former.kind, former.name)}):
            continue
        if name := state.name_of(source.live):
            return name
    return ""


def _keep_apart(one: OnePass, state: ModuleState) -> None:
    """Copy the activations and outputs of the edited pass that are in memory which is about to be put back."""
    for source in _written(one.recording):
        state.add(source.live, contents_before(source))
    overwritten = [tensor for tensor, _ in state.changed()]
    keys = {*map(storage_key, overwritten)} - {0}

    def apart(leaf: Any) -> Any:
        return duplicate(leaf) if is_a(leaf, torch.Tensor) and storage_key(leaf) in keys else leaf

    with torch._C.DisableTorchFunction():
        one.tracer.table.before_write(overwritten)
        one.recording.output = substitute(one.recording.output, apart)


def _written(recording: Recording) -> list[Source]:
    """Return the inputs, parameters, buffers and constants that a pass overwrote."""
    return [source for source in recording.sources if source.written]


def _restore_random_state(recording: Recording) -> None:
    """Set each generator to the state in which the recorded pass first drew from it."""
    drawn = [call.random for call in recording.calls if call.random is not None]
    for random in {id(random.generator): random for random in reversed(drawn)}.values():
        random.generator.set_state(random.state)
