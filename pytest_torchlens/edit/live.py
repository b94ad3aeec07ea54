"""Edits a pass while the model runs once more: Python decides anew."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Source
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.calls import Frames
from pytest_torchlens.capture.functions import Function
from pytest_torchlens.capture.functions import FunctionInfo
from pytest_torchlens.capture.functions import info_of
from pytest_torchlens.capture.generators import Generators
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.memory import duplicate
from pytest_torchlens.capture.memory import overwrite
from pytest_torchlens.capture.record import OnePass
from pytest_torchlens.capture.record import call_model
from pytest_torchlens.capture.record import check_thread
from pytest_torchlens.capture.record import seed_all
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.capture.tracer import Tracer
from pytest_torchlens.edit.function import CallEdits
from pytest_torchlens.edit.function import with_tensors
from pytest_torchlens.edit.request import Request
from pytest_torchlens.edit.sites import Site
from pytest_torchlens.edit.sites import Sites
from pytest_torchlens.edit.sites import of_model
from pytest_torchlens.edit.sites import sites_of
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.history_options import Arguments
from pytest_torchlens.replay import NotReplayableError
from pytest_torchlens.replay.swaps import Replacement

SourceSwaps = list[tuple[Source, Replacement]]
_NONE: Mapping[Function, Callable[..., Any]] = MappingProxyType({})


class EditingTracer(Tracer):
    """Records a pass, edits calls at their sites, and runs some functions as their steps."""

    def __torch_function__(
        self, func: Function, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in self.bodies and func not in self._expanding:
            return self._expand(info_of(func), args, kwargs or {})
        return super().__torch_function__(func, types, args, kwargs)

    def _body(self, func: Function) -> Callable[..., Any]:
        return self.bodies.get(func) or super()._body(func)

    def prepare(
        self, history: ModelHistory, of_calls: Mapping[int, CallEdits], bodies: Mapping[Function, Callable[..., Any]]
    ) -> None:
        """Set which recorded calls are to be edited, and which functions to run as their steps."""
        self.bodies = bodies
        self._sites = Sites()
        self.applied: set[Site] = set()
        self.recorded_sites = sites_of(history.recording)
        self.edits = {self.recorded_sites[number]: edits for number, edits in of_calls.items()}
        recorded, edited = (Counter(site.statement for site in some) for some in (self.recorded_sites, self.edits))
        self.of_all_calls = {
            statement: edits
            for (statement, *_), edits in self.edits.items()
            if edited[statement] == recorded[statement]
        }
        """Edits by statement, where all its recorded calls are edited: so are those that only this pass makes."""

    def _leaf(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record one call, edited if it is to be."""
        site = self._sites.next(self.module, info.name, self._frames(1))
        edits = self.edits.get(site) or self.of_all_calls.get(site.statement)
        number = len(self.calls)
        if edits is None:
            result = super()._leaf(info, args, kwargs)
        else:
            result = super()._leaf(edits.info(info), args, kwargs)
            self.applied.add(site)
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
        The edits; None for none.
    bodies
        Functions that run as their steps: what runs in the place of each.

    Raises
    ------
    NotReplayableError
        If the model or its inputs are no longer there, or an edit's operation did not run.
    """
    recording, model = history.recording, history.recording.model()
    if history.edits:
        raise NotReplayableError(
            "edit: a live run begins with the model itself, without the edits of this pass: make all edits at once, "
            "as in edited.original.edit(edits, live=True)"
        )
    if model is None or history.arguments is None:
        raise NotReplayableError(f"{recording.model_name} or its inputs are no longer there: keep them to run it again")
    check_thread(model)
    sources = [] if request is None else [(source, request.swaps[key]) for key, source in request.of_sources().items()]
    args, kwargs = _arguments(history.arguments, sources)
    generators = Generators()
    one: OnePass | None = None
    with _attributes_put_back(model), _as_before(recording), _parameters_replaced(model, sources):
        held = _held_by(model, recording)
        try:
            _restore_random_state(recording)
            one = OnePass(model, args, kwargs, keep=history.options.keep, seed=recording.seed, kind=EditingTracer)
            assert isinstance(one.tracer, EditingTracer)  # noqa: S101 - for the type checker
            one.tracer.prepare(history, {} if request is None else request.of_calls(), bodies)
            if recording.seed is not None:
                seed_all(recording.seed)
            with one.active():
                output = call_model(model, args, kwargs, history.options.exhaust)
            new = one.finish(model, output)
        finally:
            generators.restore()
            if one is not None:
                _put_back_writes(one, held, recording)
    _check_applied(history, one.tracer)
    if request is not None:
        _warn_if_changed(history, request, new, one.tracer.recorded_sites)
    return new


def _check_applied(history: ModelHistory, tracer: EditingTracer) -> None:
    missed = [site for site in tracer.edits if site not in tracer.applied]
    if missed:
        label = history.label(tracer.recorded_sites.index(missed[0]))
        raise NotReplayableError(
            f"{label} did not run in the edited pass, or as part of a function that runs as a whole: nothing was "
            "edited there"
        )


def _warn_if_changed(history: ModelHistory, request: Request, recording: Recording, sites: list[Site]) -> None:
    """Warn if something that is not behind an edit differs: the model keeps something between its calls."""
    behind, _ = request.whole.descendants(request.swaps, changed=request.edges)
    behind |= {place.value.call for place, _ in request.changes}
    now = dict(zip(sites_of(recording), recording.calls, strict=True))
    for number, (site, call) in enumerate(zip(sites, history.recording.calls, strict=True)):
        other = now.get(site)
        if number in behind or number in history.recording.uninitialised or other is None:
            continue
        if [value.digest for value in call.outputs] != [value.digest for value in other.outputs]:
            warnings.warn(
                f"edit: {history.label(number)} gave other values than in the recorded pass, though no edit is before "
                f"it: {history.model_name}, or what it reads, has changed since; live=False edits the recorded pass",
                stacklevel=5,
            )
            return


def _arguments(arguments: Arguments, sources: SourceSwaps) -> Arguments:
    """Return forward's arguments, with the edited inputs."""
    inputs = [(source, swap) for source, swap in sources if source.kind == "input"]
    new = {id(source.live): swap.tensor(partial(_before, source)) for source, swap in inputs}
    return with_tensors(new, arguments[0]), with_tensors(new, arguments[1])


def _before(source: Source) -> torch.Tensor:
    """Return a copy of a source as it was before the pass."""
    return duplicate(source.value.tensor if source.value.tensor is not None else source.live)


@contextlib.contextmanager
def _parameters_replaced(model: torch.nn.Module, sources: SourceSwaps) -> Iterator[None]:
    """Put edited parameters and buffers into the model, wherever they are, and the former ones back."""
    new = {
        id(source.live): swap.tensor(partial(_before, source))
        for source, swap in sources
        if source.kind in ("parameter", "buffer")
    }
    homes = [home for module in model.modules() for home in (module._parameters, module._buffers)]
    former = [(home, name, tensor) for home in homes for name, tensor in home.items() if id(tensor) in new]
    for home, name, tensor in former:
        home[name] = new[id(tensor)]  # type: ignore[assignment]
    try:
        yield
    finally:
        for home, name, tensor in former:
            home[name] = tensor  # type: ignore[assignment]


@contextlib.contextmanager
def _as_before(recording: Recording) -> Iterator[None]:
    """Begin with what the recorded pass wrote to, such as running statistics, as it was before, and put it back."""
    written = _written(recording)
    former = [(source.live, duplicate(source.live)) for source in written]
    _overwrite([(source.live, _before(source)) for source in written])
    try:
        yield
    finally:
        _overwrite(former)


Contents = list[tuple[torch.Tensor, torch.Tensor]]
"""Tensors, and copies of what they held."""


def _held_by(model: torch.nn.Module, recording: Recording) -> Contents:
    """Return the contents of inputs and buffers, which a pass may change in ways that are not recorded (``.data``)."""
    inputs = [source.live for source in recording.sources if source.kind == "input"]
    return [(tensor, duplicate(tensor)) for tensor in (*inputs, *model.buffers())]


@contextlib.contextmanager
def _attributes_put_back(model: torch.nn.Module) -> Iterator[None]:
    """Put back the attributes, buffers, parameters and submodules of all modules that the pass sets anew."""
    former = [
        (home, dict(home))
        for module in model.modules()
        for home in (vars(module), module._buffers, module._parameters, module._modules)
    ]
    try:
        yield
    finally:
        for home, attributes in former:
            if home.keys() != attributes.keys() or any(home[name] is not each for name, each in attributes.items()):
                home.clear()
                home.update(attributes)


def _put_back_writes(one: OnePass, held: Contents, former: Recording) -> None:
    """Put back what the edited pass wrote to, and keep its activations and outputs as they are."""
    contents = [(source.live, _before(source)) for source in _written(one.recording)]
    contents += [(now, then) for now, then in held if fingerprint(now) != fingerprint(then)]
    overwritten = [*(tensor for tensor, _ in contents), *(source.live for source in _written(former))]
    keys = {*map(storage_key, overwritten)} - {0}

    def apart(leaf: Any) -> Any:
        return duplicate(leaf) if is_a(leaf, torch.Tensor) and storage_key(leaf) in keys else leaf

    with torch._C.DisableTorchFunction():
        one.tracer.table.before_write(overwritten)
        one.recording.output = substitute(one.recording.output, apart)
    _overwrite(contents)


def _written(recording: Recording) -> list[Source]:
    """Return the inputs, parameters, buffers and constants that a pass overwrote."""
    return [source for source in recording.sources if source.written]


def _overwrite(contents: Contents) -> None:
    """Overwrite tensors; autograd does not see it, for in the end all hold what they held."""
    for tensor, held in contents:
        counted = contextlib.nullcontext() if tensor.is_inference() else _unsafe_preserve_version_counter(tensor)
        with counted:
            overwrite(tensor, held)


def _restore_random_state(recording: Recording) -> None:
    """Set each generator to the state in which the recorded pass first drew from it."""
    drawn = [call.random for call in recording.calls if call.random is not None]
    for random in {id(random.generator): random for random in reversed(drawn)}.values():
        random.generator.set_state(random.state)
