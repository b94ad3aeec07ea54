"""Records one forward pass: `record` sets up the tracer, calls the model and completes the recording."""

from __future__ import annotations

import contextlib
import random
import time
import weakref
from collections import Counter
from collections.abc import AsyncGenerator
from collections.abc import Callable
from collections.abc import Coroutine
from collections.abc import Generator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from typing import Literal

import numpy as np
import torch

from pytest_torchlens.capture.calls import Recording
from pytest_torchlens.capture.dispatch_watch import DispatchWatch
from pytest_torchlens.capture.dispatch_watch import dispatch_modes_removed
from pytest_torchlens.capture.dispatch_watch import dispatch_watch
from pytest_torchlens.capture.dispatch_watch import makes_no_values
from pytest_torchlens.capture.fingerprint import digest_of_wrapper
from pytest_torchlens.capture.fingerprint import fingerprint
from pytest_torchlens.capture.function_tracer import function_modes
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.leaves import kinds
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.capture.leaves import walk_all
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.capture.looks import named_tensors
from pytest_torchlens.capture.memory import Retention
from pytest_torchlens.capture.origins import name_constants
from pytest_torchlens.capture.patches import module_call_listener
from pytest_torchlens.capture.patches import stop_recording_in_test
from pytest_torchlens.capture.patches import tracer_here
from pytest_torchlens.capture.patches import tracing
from pytest_torchlens.capture.process_limits import GARBAGE
from pytest_torchlens.capture.process_limits import RECURSION
from pytest_torchlens.capture.saving import FunctionCopies
from pytest_torchlens.capture.saving import OptionRetention
from pytest_torchlens.capture.saving import RecentOutputs
from pytest_torchlens.capture.saving import SaveOptions
from pytest_torchlens.capture.storage import has_fake
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.capture.tensor_table import Named
from pytest_torchlens.capture.tracer import Tracer
from pytest_torchlens.capture.values import Source

__tracebackhide__ = True  # pytest leaves our frames out of the traceback of what a model raises

Keep = Literal["none", "all", "recent"] | SaveOptions | frozenset[str] | Callable[[Recording], Retention]


class TraceError(RuntimeError):
    """A recording cannot be made; the message says why and what to do."""


def record(  # noqa: PLR0913 - what to call, and how to record it, each by name
    model: torch.nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    keep: Keep = "none",
    seed: int | None = None,
    watch: bool = False,
    thorough: bool = False,
    parameters_too: bool = False,
    exhaust: bool = False,
    on_start: Callable[[Recording], object] | None = None,
) -> Recording:
    """Call ``model(*args, **kwargs)`` once and record every operation.

    The call draws the same random numbers, writes the same tensors and returns the same object as without recording.

    Parameters
    ----------
    model
        Any module.  Recording itself changes nothing in it.
    args, kwargs
        Its arguments.
    keep
        ``"all"`` saves every activation by reference, and copies it before it is overwritten.  ``"recent"`` does so
        too, lets go of the oldest when they hold more than 16 MiB, and copies 4 MiB in all.  ``"none"`` saves only
        fingerprints.
        `SaveOptions` say what to save of each activation.  A set of names saves the outputs of the functions with
        these names.  A function of the recording returns the `Retention` that decides.
    seed
        Seed for the generators of torch, NumPy and Python; None does not seed them.
    watch
        Whether to note dispatcher operations that run outside any recorded call (a few microseconds each).
    thorough
        Whether to find unrecorded writes to parameters too, by a fingerprint of each parameter that is read, and to
        note the circumstances of calls under modes.
    parameters_too
        Whether each parameter gets a fingerprint when it is first read; `thorough` does so too.
    exhaust
        Whether to run a generator that the model returns to its end; the recorded output is then the list of what it
        yields.  Otherwise it is returned as it is, and `Recording.untraced` reports it.
    on_start
        Called with the recording before the model runs.  The caller can use the recording even if the model raises.

    Raises
    ------
    TraceError
        If this thread is recording already, or `model` is not a module.
    TypeError, ValueError
        If torch does not accept `seed`.
    Exception
        Whatever the model raises, unchanged.
    """
    kwargs = {} if kwargs is None else kwargs
    check_model(model)
    _check_seed(seed)
    check_thread(model)
    one = OnePass(model, args, kwargs, keep=keep, seed=seed)
    one.add_checks(watch=watch, thorough=thorough, parameters_too=parameters_too)
    if seed is not None:
        seed_all(seed)
    if on_start is not None:
        on_start(one.recording)
    with one.active():
        output = call_model(model, args, kwargs, exhaust)
    return one.finish(model, output)


class OnePass:
    """One forward pass that is being recorded.

    Parameters
    ----------
    model, args, kwargs, keep, seed
        As in `record`.
    kind
        The tracer to record with.
    stand_in
        Returns the tensor that calls read in the place of an input's, where an object holds that; None: itself.
    """

    @dispatch_modes_removed()
    def __init__(  # noqa: PLR0913 - options by name
        self,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        keep: Keep = "none",
        seed: int | None = None,
        kind: type[Tracer] = Tracer,
        stand_in: Callable[[Any], Any] | None = None,
    ) -> None:
        registered = ModelMembers.of(model)
        self.recording = _new_recording(model, registered, seed)
        addresses = {id(module): address for address, module in registered.modules.items()}
        retention = _retention(self.recording, keep)
        self.tracer = kind(self.recording, retention, keep != "none", registered.tensors, addresses)
        self._watch: DispatchWatch | None = None
        self._members = registered
        self._digests: dict[int, str] = {}
        """Fingerprints of parameters and buffers before the pass, by id, if asked for."""
        self.tracer.function_modes = function_modes()
        self.tracer.suspects = keep if isinstance(keep, frozenset) else frozenset()
        with torch._C.DisableTorchFunction():
            inputs = _inputs(registered, args, kwargs)
            inputs = inputs if stand_in is None else [(path, stand_in(tensor)) for path, tensor in inputs]
            for path, tensor in inputs:
                self.tracer.table.add_source(tensor, "input", path)
            for tensor, kind_of, name in registered.sharing_memory([tensor for _, tensor in inputs]):
                self.tracer.table.add_source(tensor, kind_of, name)

    @dispatch_modes_removed()
    def add_checks(self, *, watch: bool, thorough: bool, parameters_too: bool = False) -> None:
        """Set whether to watch the dispatcher, and of what to take fingerprints, as `record` does."""
        self._watch = self.tracer.watch = dispatch_watch(self.tracer) if watch else None
        self.tracer.table.makers = None if self._watch is None else self._watch.makers
        self.tracer.num_own_modes = int(watch)
        self.tracer.thorough = thorough
        self.tracer.table.parameters_too = thorough or parameters_too
        with torch._C.DisableTorchFunction():
            self._digests = self._members.digests() if thorough else {}
            # parameters that share memory are known already
            for source in self.recording.sources if self.tracer.table.parameters_too else ():
                known = source.value.digest or self._digests.get(id(source.live))
                source.value.digest = known or ("" if is_lazy(source.live) else fingerprint(source.live))

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Record this thread, and the threads that it starts."""
        self.tracer.table.knows_fakes = makes_no_values() or has_fake(self._tensors_before())
        self.recording.started = time.time()
        start = time.perf_counter()
        try:
            watched = self._watch or contextlib.nullcontext()
            with RECURSION.raised(), GARBAGE.raised(), watched, tracing(self.tracer):
                yield
        finally:
            self.tracer.close()
        self.recording.elapsed = time.perf_counter() - start

    def _tensors_before(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that exist before the pass: inputs, parameters, buffers."""
        yield from (source.live for source in self.recording.sources)
        yield from (tensor for tensor, _, _ in self._members.tensors.values())

    @dispatch_modes_removed()
    def finish(self, model: torch.nn.Module, output: Any) -> Recording:
        """Complete the recording with the output and the final states, and return it."""
        recording = self.recording
        recording.output = output
        if recording.stream is not None:
            recording.stream.close()
        recording.output_kinds = kinds(output)
        self.tracer.table.knows_fakes = True  # an output may be one
        with torch._C.DisableTorchFunction():
            recording.outputs = [(path, self.tracer.table.read(tensor)) for path, tensor in walk(output)]
            _check_sources(recording, self.tracer.thorough)
            recording.silent_writes += self._changed_before_read()
        recording.slots = self.tracer.table.slots
        recording.untraced += _unfinished_outputs(output)
        with torch._C.DisableTorchFunction():
            _note_parameters(recording, model)
        if self._watch is not None:
            recording.num_dispatched = len(recording.calls) + self._watch.num_operations
            recording.missed_operations = self._watch.missed_operations
        name_constants(recording, model)
        return recording

    def _changed_before_read(self) -> Iterator[str]:
        """Yield the parameters and buffers that changed before a recorded call read them, or without being read."""
        if not self._digests:
            return
        read = {id(source.live): source.value.fingerprint for source in self.recording.sources}
        after = self.recording.digests_after
        for tensor, kind, name in self._members.tensors.values():
            digest = self._digests.get(id(tensor))
            now = read[id(tensor)] if id(tensor) in read else after.setdefault(id(tensor), fingerprint(tensor))
            if digest and now not in (digest, ""):  # memory that was given back cannot be compared
                yield f"{kind} {name!r}"


RECORDS = "it records a model itself"


@dataclass(frozen=True)
class ModelMembers:
    """The modules of a model by address, and its buffers and parameters by id, each by its first name."""

    modules: dict[str, torch.nn.Module]
    tensors: Named

    @classmethod
    def of(cls, model: torch.nn.Module) -> ModelMembers:
        """Return the modules, parameters and buffers that a model has now."""
        modules = dict(named_modules(model))
        tensors: Named = {}
        for kind, where in (("buffer", "_buffers"), ("parameter", "_parameters")):
            for name, tensor in named_tensors(modules.items(), where):
                tensors.setdefault(id(tensor), (tensor, kind, name))
        return cls(modules, tensors)

    def digests(self) -> dict[int, str]:
        """Return the fingerprint of each parameter and buffer by id, except of lazy ones."""
        return {key: fingerprint(entry[0]) for key, entry in self.tensors.items() if not is_lazy(entry[0])}

    def sharing_memory(self, inputs: list[torch.Tensor]) -> list[tuple[torch.Tensor, str, str]]:
        """Return the parameters and buffers that share memory: a write to one changes all, even those not yet read."""
        keys = [(storage_key(entry[0]), entry) for entry in self.tensors.values() if not is_lazy(entry[0])]
        uses = Counter([key for key, _ in keys])
        uses.update(map(storage_key, inputs))
        return [entry for key, entry in keys if key and uses[key] > 1]


def call_model(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], exhaust: bool) -> Any:
    """Call a model; with `exhaust`, turn a generator that it returns into a list."""
    with module_call_listener(None):  # the test does not make this call
        output = model(*args, **kwargs)
    return list(output) if exhaust and isinstance(output, Generator) else output


def _unfinished_outputs(output: Any) -> list[str]:
    """Return a message for each generator, coroutine or iterator in the output: what it runs later is not recorded."""
    return [_unfinished_message(item) for _, item in walk_all(output) if is_a(item, _LAZY_TYPES)]


def _unfinished_message(item: Any) -> str:
    if is_a(item, Generator):
        return "it returned a generator: what that yields was not recorded (exhaust=True does)"
    return f"it returned a {type(item).__name__}: what that will run was not recorded"


_LAZY_TYPES = (Coroutine, AsyncGenerator, Generator, map, filter, zip)


def _retention(recording: Recording, keep: Keep) -> Retention:
    if isinstance(keep, SaveOptions):
        return OptionRetention(recording, keep)
    if keep == "recent":
        return RecentOutputs()
    if callable(keep):
        return keep(recording)
    return FunctionCopies(recording, keep) if isinstance(keep, frozenset) else Retention()


def check_model(model: object) -> None:
    """Raise `TraceError` if `model` is not a module."""
    if not isinstance(model, torch.nn.Module):
        hint = "; make one of it, as model()" if isinstance(model, type) and issubclass(model, torch.nn.Module) else ""
        raise TraceError(f"expected a torch.nn.Module to record, got {type(model).__name__}: {model!r:.80}{hint}")


def _check_seed(seed: object) -> None:
    if seed is None:
        return
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TypeError(f"random_seed: expected an integer, or None for no seeding, got {seed!r:.80}")
    if not _LEAST_SEED <= seed <= _GREATEST_SEED:
        raise ValueError(f"random_seed: expected a seed from -2**63 to 2**64 - 1, got {seed}")


_LEAST_SEED, _GREATEST_SEED = -(2**63), 2**64 - 1


def check_thread(model: torch.nn.Module) -> None:
    """Raise `TraceError` if this thread is recording already.  A recording by `Autotrace` is stopped instead."""
    stop_recording_in_test(RECORDS)
    if tracer_here() is not None:
        raise TraceError(
            f"cannot record {type(model).__name__}: this thread is already recording a forward pass. "
            "Finish the outer recording first; its history has the inner model's operations too."
        )


def _new_recording(model: torch.nn.Module, registered: ModelMembers, seed: int | None) -> Recording:
    return Recording(
        model_name=type(model).__name__,
        modules={name: type(module).__name__ for name, module in registered.modules.items()},
        model=weakref.ref(model),
        seed=seed,
    )


def _note_parameters(recording: Recording, model: torch.nn.Module) -> None:
    """Note the parameters that exist after the pass: forward may create some, and replace others."""
    by_name = dict(named_parameters(model))
    read = [source for source in recording.sources if source.kind == "parameter"]
    moved = [one for one in read if by_name.get(one.name) is not one.live]
    if moved:  # it may have several names, of which another one is the first now
        every = dict(named_parameters(model, duplicates=True))
        recording.replaced_parameters = {one.name for one in moved if every.get(one.name) is not one.live}
    for name, parameter in by_name.items():
        lazy = is_lazy(parameter)
        recording.parameters[name] = torch.Size() if lazy else parameter.shape
        recording.parameter_bytes += 0 if lazy else parameter.nbytes
        if parameter.requires_grad:
            recording.trainable.append(name)


def _inputs(registered: ModelMembers, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, torch.Tensor]]:
    """Return each input tensor once, with its path."""
    by_id: dict[int, tuple[str, torch.Tensor]] = {}
    for path, tensor in [*walk(args), *walk(kwargs)]:
        if id(tensor) not in registered.tensors:
            by_id.setdefault(id(tensor), (path, tensor))
    return list(by_id.values())


def seed_all(seed: int) -> None:
    """Seed the global generators of torch, Python and NumPy."""
    torch.manual_seed(seed)
    random.seed(int(seed))
    np.random.seed(seed % 2**32)  # noqa: NPY002 - models draw from the global generator


def _check_sources(recording: Recording, thorough: bool) -> None:
    """Note the final state of sources that calls overwrote, and the sources that changed without a recorded write.

    Unless it is to be `thorough`, the version counters of parameters tell whether they did.
    """
    after = recording.digests_after
    for source in recording.sources:
        if source.written:
            after[id(source.live)] = source.final = fingerprint(source.live)
    sources = [source for source in recording.sources if not source.written]
    recording.silent_writes = [source.label for source in sources if _changed_silently(source, after, thorough)]


def _changed_silently(source: Source, after: dict[int, str], thorough: bool) -> bool:
    if source.kind == "parameter" and not (thorough and source.value.digest):
        return source.version >= 0 and source.live._version != source.version
    if source.wrapper is not None and source.wrapper.tensors:
        return digest_of_wrapper(source.wrapper.tensors) != source.value.fingerprint
    after[id(source.live)] = now = fingerprint(source.live)
    return now != source.value.fingerprint
