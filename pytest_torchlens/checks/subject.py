"""The model that is checked: runs and records it, each time from the same state, which it has again afterwards."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from typing import Protocol
from typing import TypeVar

import torch
from torch import nn

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture import record
from pytest_torchlens.capture.generators import Generators
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.capture.looks import named_buffers
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.capture.patches import module_call_listener
from pytest_torchlens.capture.record import Keep
from pytest_torchlens.capture.record import seed_all
from pytest_torchlens.capture.saving import SaveOptions
from pytest_torchlens.checks.catalog import DEFAULT_SECONDS
from pytest_torchlens.checks.evidence import Evidence
from pytest_torchlens.checks.uncalled import Uncalled
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.history_options import TraceOptions

_T = TypeVar("_T")
PLAIN = ("outputs",)
OTHER_VALUES = ("outputs on other values",)
"""Keys of `Subject.once`, for passes that several checks need."""
Outputs = dict[str, torch.Tensor]
"""Detached copies of the tensors in a model's output, by their path."""


class Snapshot(Protocol):
    """What a pass may change, as it was before."""

    def note(self, recording: Recording) -> None:
        """Note the former values of what a recorded pass overwrote."""

    def restore(self) -> None:
        """Put all back."""

    def restore_versions(self) -> None:
        """Put version counters back, after all values."""


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What a layer above gives to the checks.

    Attributes
    ----------
    snapshot
        Takes the state of a model and its arguments.
    preserved
        Puts back the settings of the process that a block changed.
    build
        Makes a fresh instance of the model; None if nobody knows how.
    child
        Gives a job of `checks.unpickled` to another process, within so many seconds, and returns its answer; None if
        no process is to be started.
    witness
        Gets what a failed check accuses.
    uncalled
        A copy of the model from before its first call; None if it cannot be copied.
    """

    snapshot: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Snapshot]
    preserved: Callable[[], contextlib.AbstractContextManager[object]]
    build: Callable[[], nn.Module] | None = None
    child: Callable[[bytes, float], bytes] | None = None
    witness: Callable[[Evidence], object] = lambda evidence: None
    uncalled: Uncalled | None = None


class NotApplicableError(Exception):
    """A check does not apply to a model; the message is the reason."""


class WrongOptionError(Exception):
    """An option of a check has a value that nothing here knows; the message names the option and what is known."""


class OutOfTimeError(NotApplicableError):
    """A check took longer than it may."""


class NoMemoryError(NotApplicableError):
    """The memory that there is does not suffice."""


def lacks_memory(error: Exception) -> bool:
    """Return whether an error says that memory does not suffice: of a GPU, or of the machine."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in str(error)


class ModelRaisedError(Exception):
    """The model raised when it was run in another way.

    Attributes
    ----------
    way
        How it was run: ``"on a batch of 2"``.
    error
        What it raised.
    calls
        Number of calls that were recorded before it raised; -1 if it was not recorded.
    recording
        What was recorded before it raised; None if it was not recorded.
    """

    def __init__(self, way: str, error: Exception, recording: Recording | None = None) -> None:
        super().__init__(f"the model raised {type(error).__name__}{f' {way}' if way else ''}: {error}")
        self.way = way
        self.error = error
        self.recording = recording
        self.calls = -1 if recording is None else len(recording.calls)


class Subject:
    """A model and the inputs it is called with.

    Parameters
    ----------
    model, args, kwargs
        The model and its arguments.  It runs in the mode it is in, with the gradient mode of the caller.
    tools
        What a layer above gives.
    seed
        Seed before each pass; None begins each from the state that the random generators have now.
    weights
        Copies of the model's parameters, if there are some already.
    """

    def __init__(
        self,
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None = None,
        *,
        tools: Tools,
        seed: int | None = None,
        weights: Weights | None = None,
    ) -> None:
        self.model = model
        self.args = args
        self.kwargs = dict(kwargs or {})
        self.tools = tools
        self.seed = seed
        self.deadline = time.monotonic() + DEFAULT_SECONDS
        """When the check that runs now must end, in seconds of `time.monotonic`."""
        self.plain_error: ModelRaisedError | None = None
        """What the model raises in a plain pass, if a check has found that it does."""
        self.redrawn = False
        """Whether its weights were drawn anew."""
        self.draw = 0
        """How other values are drawn for its inputs: the number of a way in `checks.draws`."""
        self.wholes: dict[int, torch.Tensor] = {}
        """The tensors of the batch that those of its inputs are taken from, by id of these."""
        self._made: dict[tuple[Any, ...], Any] = {}
        self._draws = False
        """Whether a pass has drawn random numbers in the model's own mode."""
        self._modes = _modes_of(model)
        self._generators = Generators()
        self._weights = Weights.of(model) if weights is None else weights

    @property
    def is_training(self) -> bool:
        """Whether the model, or a module in it, is in train mode."""
        return any(module.training for _, module in named_modules(self.model))

    def check_time(self) -> None:
        """Raise `OutOfTimeError` if the check that runs now has used up its time."""
        if time.monotonic() > self.deadline:
            raise OutOfTimeError("it did not end within its limit of time; 'seconds' among its options sets another")

    # -- passes --------------------------------------------------------------------------------------------------

    def call(self, args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None, way: str = "") -> Outputs:
        """Return the outputs of one plain pass.

        Parameters
        ----------
        args, kwargs
            The arguments; None for those of the subject.
        way
            How the model is run, for the message: ``"on a batch of 2"``.

        Raises
        ------
        ModelRaisedError
            If the model raises.
        NoMemoryError
            If the memory does not suffice.
        OutOfTimeError
            If no time is left.
        """
        with self.runs(args, kwargs, way) as run:
            return run()

    @contextlib.contextmanager
    def runs(
        self,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        way: str = "",
        *,
        function: Callable[..., Any] | None = None,
    ) -> Iterator[Callable[..., Outputs]]:
        """Give a function that calls the model, or `function`; what its calls change stays until the block ends.

        The function takes arguments and keyword arguments that differ from these, if any.
        """
        given = self._given(args, kwargs)

        def run(*others: Any) -> Outputs:
            self.check_time()
            self._begin()
            before, own_mode = Generators().digests(), _modes_of(self.model) == self._modes
            with _named(way):
                args, kwargs = others or given
                output = (function or self.model)(*args, **kwargs)
            self._draws |= own_mode and Generators().digests() != before
            return outputs_of(output)

        with self._kept(*given), module_call_listener(None):
            yield run

    def record(
        self,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        way: str = "",
        *,
        save: bool | SaveOptions = False,
    ) -> ModelHistory:
        """Return the history of one pass; `save` saves its activations, as the options say.

        Raises
        ------
        ModelRaisedError, NoMemoryError, OutOfTimeError
            As in `call`.
        """
        with self.recordings(args, kwargs, way, save=save) as run:
            return run()

    @contextlib.contextmanager
    def recordings(
        self,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        way: str = "",
        *,
        save: bool | SaveOptions = False,
    ) -> Iterator[Callable[..., ModelHistory]]:
        """Give a function that records a call, like that of `runs`."""
        given = self._given(args, kwargs)
        started: list[Recording] = []

        def run(*others: Any) -> ModelHistory:
            self.check_time()
            self._begin()
            started.clear()
            with _named(way, started):
                recording = record(self.model, *(others or given), keep=_keep(save), on_start=started.append)
            snapshot.note(recording)
            return ModelHistory(recording, TraceOptions(layers_to_save="all" if save else None))

        with self._kept(*given) as snapshot, module_call_listener(None):
            yield run

    @cached_property
    def history(self) -> ModelHistory:
        """The recorded pass on the inputs of the subject, without activations."""
        return self.record()

    @cached_property
    def outputs(self) -> Outputs:
        """The outputs of a plain pass on the inputs of the subject."""
        return self.once(PLAIN, self.call)

    @cached_property
    def exact(self) -> Outputs:
        """The outputs in float64 of the pass on the inputs of the subject.

        Raises
        ------
        NotApplicableError
            If the pass cannot be run in float64.
        """
        from pytest_torchlens.checks.exact import exact_outputs  # it needs a subject itself

        return exact_outputs(self, self.history).outputs

    def once(self, key: tuple[Any, ...], make: Callable[[], _T]) -> _T:
        """Return what `make` returns; at the first call with `key` only, so that checks share passes."""
        if key not in self._made:
            self._made[key] = make()
        made: _T = self._made[key]
        return made

    @property
    def draws(self) -> str:
        """What draws random numbers in a pass: the label of the first operation; empty if nothing does."""
        _ = self.outputs
        if not self._draws:
            return ""
        calls = self.history.recording.calls
        return next((self.history.label(number) for number, call in enumerate(calls) if call.random), "forward")

    def with_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Subject:
        """Return a subject of the same model with other inputs."""
        return self._like(self.model, args, kwargs, self._weights)

    def of(self, model: nn.Module) -> Subject:
        """Return a subject of a copy of the model, whose weights are nobody's, with the same inputs."""
        return self._like(model, self.args, self.kwargs, Weights([]), self.wholes)

    def around(self, model: nn.Module) -> Subject:
        """Return a subject of a module around the model, which has its weights, with the same inputs."""
        return self._like(model, self.args, self.kwargs, self._weights, self.wholes)

    def _like(
        self,
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        weights: Weights,
        wholes: dict[int, torch.Tensor] | None = None,
    ) -> Subject:
        other = Subject(model, args, kwargs, tools=self.tools, seed=self.seed, weights=weights)
        other.deadline, other.redrawn, other.draw = self.deadline, self.redrawn, self.draw
        other.wholes = wholes or {}
        return other

    def _given(
        self, args: tuple[Any, ...] | None, kwargs: dict[str, Any] | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (self.args, self.kwargs) if args is None else (args, kwargs or {})

    def _begin(self) -> None:
        """Set the random generators to where each pass begins, and drop the weights that autocast keeps."""
        torch.clear_autocast_cache()
        self._generators.restore()
        if self.seed is not None:
            seed_all(self.seed)

    @contextlib.contextmanager
    def _kept(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Snapshot]:
        snapshot = self.tools.snapshot(self.model, args, kwargs)
        try:
            with self.tools.preserved():
                yield snapshot
        finally:
            self._weights.note_pass()
            snapshot.restore()
            self._weights.restore()
            snapshot.restore_versions()
            self._generators.restore()
            torch.clear_autocast_cache()

    # -- state ---------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, str]:
        """Return the fingerprint of each parameter and buffer, and the mode of each module, by a readable name."""
        with torch._C.DisableTorchFunction():
            parameters = {f"parameter {name!r}": tensor for name, tensor in named_parameters(self.model)}
            buffers = {f"buffer {name!r}": tensor for name, tensor in named_buffers(self.model)}
            digests = {
                name: fingerprint(tensor) for name, tensor in (parameters | buffers).items() if not is_lazy(tensor)
            }
        modes = {f"mode of {name or 'the model'}": str(module.training) for name, module in named_modules(self.model)}
        return digests | modes

    def restore_weights(self) -> None:
        """Put back parameters that were overwritten, whoever did it."""
        self._weights.restore(thorough=True)


def _modes_of(model: nn.Module) -> list[bool]:
    return [module.training for _, module in named_modules(model)]


def _keep(save: bool | SaveOptions) -> Keep:
    return save if isinstance(save, SaveOptions) else "all" if save else "none"


class Weights:
    """Copies of a model's parameters, which a snapshot leaves to the recorder."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            self._copies = [(tensor, tensor.detach().clone(), _version(tensor)) for tensor in parameters]
        self._writes_silently: bool | None = None
        """Whether passes write to parameters past their version counters; None before the first pass."""

    @classmethod
    def of(cls, model: nn.Module) -> Weights:
        """Copy all parameters of a model."""
        return cls(tensor for _, tensor in named_parameters(model) if not is_lazy(tensor))

    def note_pass(self) -> None:
        """Note after the first pass, before anything is put back, whether it wrote past the version counters."""
        if self._writes_silently is None:
            with torch._C.DisableTorchFunction():
                self._writes_silently = any(
                    _version(tensor) == version and fingerprint(tensor) != fingerprint(copy)
                    for tensor, copy, version in self._copies
                )

    def restore(self, *, thorough: bool = False) -> None:
        """Copy back the parameters that changed; `thorough` compares those, too, whose version counter stayed."""
        every = thorough or self._writes_silently is not False
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for tensor, copy, version in self._copies:
                if (every or _version(tensor) != version) and fingerprint(tensor) != fingerprint(copy):
                    tensor.detach().copy_(copy)


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def outputs_of(output: Any) -> Outputs:
    """Return copies of the tensors in what a model returned."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        return {path: tensor.detach().clone() for path, tensor in walk(output)}


@contextlib.contextmanager
def _named(way: str, started: list[Recording] | None = None) -> Iterator[None]:
    """Raise what the model raises as a `ModelRaisedError`, and as a `NoMemoryError` if it has too little of that."""
    try:
        yield
    except Exception as error:
        if lacks_memory(error):
            raise NoMemoryError(f"the memory does not suffice {way}".rstrip()) from error
        raise ModelRaisedError(way, error, started[0] if started else None) from error
