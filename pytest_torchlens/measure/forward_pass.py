"""Measures what a forward pass, its operations and its modules cost, and states how each number was measured."""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from functools import partial
from typing import Any
from typing import TypeGuard

import torch

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import record
from pytest_torchlens.capture.fingerprint import fingerprint
from pytest_torchlens.capture.generators import Generators
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.capture.memory import duplicate
from pytest_torchlens.capture.memory import overwrite
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.history_options import TraceOptions
from pytest_torchlens.history.history_options import arguments_of
from pytest_torchlens.measure.flops import flops_of
from pytest_torchlens.measure.memory import LiveStorages
from pytest_torchlens.measure.memory import measured_peak
from pytest_torchlens.measure.memory import needed_and_moved
from pytest_torchlens.measure.times import same_calls
from pytest_torchlens.measure.times import seconds_on_cuda
from pytest_torchlens.measure.times import times_of
from pytest_torchlens.records import Measurements
from pytest_torchlens.records import ModuleMeasurements
from pytest_torchlens.replay.calls import NotReplayableError

ByBytes = tuple[tuple[int, ...], tuple[int, ...]]
"""What `needed_and_moved` returns."""
Costs = dict[str, tuple[Any, ...]]
"""The cost of each call, by field of `ModuleMeasurements`."""
_FLOPS = (
    "PyTorch's formulas (torch.utils.flop_counter), and ours for fused kernels, over the replay; multiply-add is two"
)
_BYTES_MOVED = "each tensor argument read once and whole, each result written once; a view moves nothing"
_LIVE = "storages alive in a recorded pass, each until Python let go of it; no parameters, buffers, inputs, workspaces"
_NEEDED = "storages of the replay, each up to its last use"
_OTHERWISE = "the model ran other operations the second time"
_EVENTS = "CUDA events around each call of one replay"


def measure_forward_pass(
    model: torch.nn.Module,
    input_args: Any = (),
    input_kwargs: dict[str, Any] | None = None,
    *,
    history: ModelHistory | None = None,
    passes: int = 5,
) -> Measurements:
    """Measure time, memory and floating-point operations of a forward pass.

    The model runs at most ``10 + 23 * passes`` times, ``10 + 4 * passes`` if a pass takes 10 ms or longer.  Its
    recorded operations run twice.  Afterwards buffers, parameters and inputs that the passes changed have their former
    values, and the random generators of PyTorch, NumPy and Python their former states; nothing else is written to.

    Parameters
    ----------
    model
        Any `torch.nn.Module`, measured in its present state and gradient mode.
    input_args, input_kwargs
        A tensor, or a list or tuple of the positional arguments, and the keyword arguments.
    history
        A recorded pass of this model with these inputs.  It then has the measurements, and can be drawn with
        ``color_by="flops"``.  None (default) records one.
    passes
        Number of plain and of recorded passes to time; 5 by default.

    Returns
    -------
    Measurements
        Times in seconds and sizes in bytes, with one entry for each recorded call.  If calls cannot be run again, the
        fields that need it are empty, and ``methods`` has the reason.

    Raises
    ------
    ValueError
        If `passes` is less than 1.
    Exception
        Whatever the model raises.

    Examples
    --------
    >>> import torch, pytest_torchlens as tl
    >>> tl.measure_forward_pass(torch.nn.Linear(2, 3), torch.ones(1, 2)).flops
    12
    """
    return measure(model, input_args, input_kwargs, history, passes)


def measure(  # noqa: PLR0913 - as `measure_forward_pass`
    model: torch.nn.Module,
    input_args: Any,
    input_kwargs: dict[str, Any] | None,
    history: ModelHistory | None,
    passes: int,
    count_flops: Callable[[Recording], tuple[int, ...]] = flops_of,
    count_bytes: Callable[[Recording], ByBytes] = needed_and_moved,
) -> Measurements:
    """Measure as `measure_forward_pass` does; the last two count operations, and bytes, of a recording."""
    if passes < 1:
        raise ValueError(f"passes: expected at least 1, got {passes}")
    args, kwargs = arguments_of(model, input_args, input_kwargs)
    inputs = tensors((args, kwargs))
    with _preserve_state(model, inputs):
        model(*args, **kwargs)  # what the model creates in its first pass exists from now on
        history = history or ModelHistory.of(model, (args, kwargs), TraceOptions(None))
        history.measurements = _Pass(model, args, kwargs, history).measure(passes, count_flops, count_bytes)
    return history.measurements


class _Pass:
    """One model with one input."""

    def __init__(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], history: ModelHistory
    ) -> None:
        self._run = partial(model, *args, **kwargs)
        self._again = partial(record, model, args, kwargs)
        self._history = history
        self._recording = history.recording
        self._methods: dict[str, str] = {}
        candidates = itertools.chain(_parameters(model), tensors((args, kwargs)))
        self._device = next((tensor.device for tensor in candidates), torch.device("cpu"))

    def measure(
        self,
        passes: int,
        count_flops: Callable[[Recording], tuple[int, ...]],
        count_bytes: Callable[[Recording], ByBytes],
    ) -> Measurements:
        flops = self._if_replayable("operation_flops", _FLOPS, partial(count_flops, self._recording)) or ()
        measure_bytes = partial(count_bytes, self._recording)
        needed, moved = self._if_replayable("needed_peak_bytes", _NEEDED, measure_bytes) or ((), ())
        self._methods["operation_bytes_moved"] = _BYTES_MOVED if moved else self._methods["needed_peak_bytes"]
        labels = tuple(self._history.label(number) for number in range(len(self._recording.calls)))
        times = self._times(passes)
        costs = {"seconds": times["operation_seconds"], "flops": flops, "bytes_moved": moved}
        return Measurements(
            operations=labels,
            operation_flops=flops,
            operation_bytes_moved=moved,
            needed_peak_bytes=max(needed, default=None),
            modules=by_module(self._recording, costs),
            methods=self._methods,
            **times,
            **self._memory(labels, needed),
        )

    def _memory(self, labels: tuple[str, ...], needed: tuple[int, ...]) -> dict[str, Any]:
        with LiveStorages() as alive:
            again = self._again(on_start=alive.follow)
        live, self._methods["live_bytes"] = alive.curve(), _LIVE
        if not same_calls(again, self._recording):
            live, self._methods["live_bytes"] = needed, f"{_OTHERWISE}; so {self._methods['needed_peak_bytes']}"
        measured, self._methods["measured_peak_bytes"] = measured_peak(self._run, self._device)
        return {
            "live_bytes": live,
            "peak_bytes": max(live, default=0),
            "peak_operation": labels[live.index(max(live))] if live else "",
            "measured_peak_bytes": measured,
        }

    def _if_replayable(self, field: str, method: str, find: Callable[[], Any]) -> Any:
        """Return the result of `find`; None if the calls cannot be run again, which the method then states."""
        try:
            with torch._C.DisableTorchFunction():
                value = find()
        except NotReplayableError as error:
            self._methods[field] = f"not known: {error}"
            return None
        self._methods[field] = method
        return value

    def _times(self, passes: int) -> dict[str, Any]:
        times = times_of(self._run, self._again, self._recording, passes)
        self._methods["forward_seconds"] = "timeit, in turn with the recorded passes: median and quartiles"
        self._methods["operation_seconds"] = times.method
        on_device = None
        if self._device.type == "cuda":
            on_device = self._if_replayable("operation_seconds", _EVENTS, partial(seconds_on_cuda, self._recording))
        return {
            "operation_seconds": on_device or times.operations,
            "forward_seconds": times.median,
            "forward_spread": times.spread,
            "forward_runs": times.runs,
            "num_threads": times.threads,
            "overhead_seconds": times.overhead,
        }


def by_module(recording: Recording, costs: Costs) -> tuple[ModuleMeasurements, ...]:
    """Return the summed costs of all calls of each module, the model itself first."""
    sums: dict[str, dict[str, Any]] = {call.address: defaultdict(int) for call in recording.module_calls}
    for number, call in enumerate(recording.calls):
        addresses = list(dict.fromkeys(around.address for around in call.module.stack())) if call.module else []
        for name, each in costs.items():
            for address in addresses if each else ():
                sums[address][name] += each[number]
            if each and addresses:
                sums[addresses[0]][f"self_{name}"] += each[number]
    return tuple(ModuleMeasurements(address=address, **fields) for address, fields in sums.items())


@contextlib.contextmanager
def _preserve_state(model: torch.nn.Module, inputs: Iterable[torch.Tensor]) -> Iterator[None]:
    """Restore the buffers, parameters, inputs and random generators that passes change; write to no others.

    The caller's autograd graph may hold these tensors, and a write would invalidate it.
    """
    members = [(part, dict(part._buffers)) for _, part in named_modules(model)]
    held = itertools.chain(_parameters(model), *(buffers.values() for _, buffers in members), inputs)
    before = [(tensor, fingerprint(tensor), duplicate(tensor)) for tensor in held if _is_real(tensor)]
    generators = Generators()
    try:
        yield
    finally:
        generators.restore()
        for part, buffers in members:
            part._buffers.update(buffers)
        for tensor, digest, contents in before:
            if fingerprint(tensor) != digest:
                overwrite(tensor, contents)


def _parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for _, parameter in named_parameters(model)]


def _is_real(tensor: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
    return tensor is not None and not is_lazy(tensor)
