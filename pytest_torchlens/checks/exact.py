"""Runs a recorded pass in float64, in step with the pass itself: what each operation would give without rounding.

Where an operation decides (an argmax, a comparison, a mask), the float64 pass takes the decision of the recorded one,
so that both go the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import torch

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.memory import overwrite
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.checks.fills import fill_of
from pytest_torchlens.checks.fills import with_infinite_fill
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Outputs
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.replay import Player
from pytest_torchlens.replay.player import Arguments

EXACT = {torch.complex64: torch.complex128, torch.complex32: torch.complex128}
EXACT |= dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64)
CASTS = frozenset(["float", "half", "bfloat16", "double"])
"""Methods that cast to one type; they take no dtype, which could be replaced."""

CASTS_TO = frozenset(["to", "type", "type_as", "_to_copy"])
"""Functions that may cast to any."""


def in_float64(leaf: Any) -> Any:
    """Return a tensor or dtype in float64 (complex128); anything else unchanged."""
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().to(EXACT.get(leaf.dtype, leaf.dtype))
    return EXACT.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf


class ExactPlayer(Player):
    """Replays a recording in float64.

    Attributes
    ----------
    rounded
        Numbers of the calls that ran in their own dtype: random ones, opaque ones, and those without float64.
    """

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        self.rounded: set[int] = set()
        for source in recording.sources:
            slot = source.value.slot
            self.replace(slot, in_float64(self.at(slot)))

    def result(self, call: Call, arguments: Arguments) -> Any:
        """Return what the function returns, in float64."""
        if call.info.name in CASTS:
            tensor = arguments[0][0]
            return tensor.double() if is_discrete(tensor) else in_float64(tensor)
        if call.random is None and not call.info.opaque:
            try:
                args, kwargs = substitute(arguments[0], _dtype), substitute(arguments[1], _dtype)
                return substitute(super().result(call, (args, kwargs)), _made_in_float64)
            except (RuntimeError, TypeError, NotImplementedError, ValueError):
                if call.writes:  # it may have written in part
                    raise
        return self._rounded_result(call, arguments)

    def _rounded_result(self, call: Call, arguments: Arguments) -> Any:
        """Run a call in its own dtypes, and carry over what it wrote."""
        self.rounded.add(id(call))
        originals: dict[int, torch.Tensor] = {}
        dtypes = {id(tensor): dtype for tensor, dtype in _recorded_dtypes(self, call)}

        def lowered(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or leaf.dtype is dtypes.get(id(leaf), leaf.dtype):
                return leaf
            low = leaf.to(dtypes[id(leaf)])
            originals[id(low)] = leaf
            return low

        args, kwargs = substitute(arguments[0], lowered), substitute(arguments[1], lowered)
        result = super().result(call, (args, kwargs))
        for low in tensors((args, kwargs)):
            if id(low) in originals and call.writes:
                originals[id(low)].copy_(low)
        return substitute(result, lambda leaf: originals.get(id(leaf), in_float64(leaf)))

    def _fill_memory(self, number: int, outputs: tuple[torch.Tensor, ...], kept: int) -> None:
        for output, contents in zip(outputs, self.recording.uninitialised.get(number, ()), strict=False):
            if not kept and output.shape == contents.shape:
                overwrite(output, contents)


def _dtype(leaf: Any) -> Any:
    return EXACT.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf


def _made_in_float64(leaf: Any) -> Any:
    """Return a tensor that a function made in another dtype, as factories do, in float64; others as they are."""
    return in_float64(leaf) if isinstance(leaf, torch.Tensor) and leaf.dtype in EXACT else leaf


def _recorded_dtypes(player: Player, call: Call) -> Iterator[tuple[torch.Tensor, torch.dtype]]:
    for _, read in edges_in(call):
        value = value_of(read)
        yield player.at(value.slot), value.dtype


class Step(NamedTuple):
    """One call of a pass, run as recorded and in float64."""

    number: int
    call: Call
    outputs: tuple[torch.Tensor, ...]
    exact: tuple[torch.Tensor, ...]
    own_error: float | None
    """The error that the call makes by itself, as a part of the RMS; None if it is not known."""


def steps(recording: Recording, player: Player, exact: ExactPlayer, *, own_errors: bool = False) -> Iterator[Step]:
    """Run both players in step, and yield each call; a decision of the recorded pass counts in the other."""
    for number, call in enumerate(recording.calls):
        own = OwnError(player, call) if own_errors else None
        returned, outputs = player.play(number, call, player.arguments(call))
        exact_returned, exact_outputs = exact.play(number, call, exact.arguments(call))
        for output, other in zip(outputs, exact_outputs, strict=True):
            if is_discrete(output) and output.shape == other.shape:
                overwrite(other, output)
        yield Step(number, call, outputs, exact_outputs, own.of(outputs) if own else None)
        player.store(number, call, returned)
        exact.store(number, call, exact_returned)


def is_discrete(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds whole numbers or truth values."""
    return not (tensor.is_floating_point() or tensor.is_complex())


def can_be_judged(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds real numbers, and is not sparse."""
    return tensor.is_floating_point() and tensor.layout is torch.strided


class OwnError:
    """Measures the error that one operation makes by itself, on the inputs that it has; made before the call runs."""

    def __init__(self, player: Player, call: Call) -> None:
        self._exact: tuple[torch.Tensor, ...] = ()
        is_real = any(value.dtype.is_floating_point for value in call.outputs)
        if not is_real or call.random is not None or call.info.opaque:
            return
        try:
            args, kwargs = player.arguments(call)
            args, kwargs = substitute(args, _copied), substitute(kwargs, _copied)
            returned = player.run(call, (args, kwargs))
        except Exception:  # noqa: BLE001 - functions without float64
            return
        self._exact = returned if call.returned else ()

    def of(self, outputs: tuple[torch.Tensor, ...]) -> float | None:
        """Return the largest error of the outputs, as a part of their RMS; None if it is not known."""
        known = [
            relative_error(one, two)
            for one, two in zip(outputs, self._exact, strict=False)
            if one.shape == two.shape and one.is_floating_point() and one.numel()
        ]
        return max(known, default=None)


def _copied(leaf: object) -> object:
    made = in_float64(leaf)
    return made.clone() if isinstance(made, torch.Tensor) and made.dtype is getattr(leaf, "dtype", None) else made


def relative_error(value: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the RMS error of finite numbers as a part of their RMS; infinite if only the exact ones are finite."""
    if not can_be_judged(value) or not can_be_judged(exact) or value.shape != exact.shape:
        return 0.0
    one, two = value.detach().double(), exact.detach().double()
    one, two = with_infinite_fill(fill_of(one), one, two)
    if not math.isfinite(float(two.abs().max()) if two.numel() else 0.0):
        finite = two.isfinite()
        one, two = one[finite], two[finite]
    if not two.numel():
        return 0.0
    error, size = float(torch.linalg.vector_norm(one - two)), float(torch.linalg.vector_norm(two))
    error = error if math.isfinite(error) else math.inf
    return error / size if size else (math.inf if error else 0.0)


class Exact(NamedTuple):
    """The outputs of a pass in float64."""

    outputs: Outputs
    rounded: tuple[str, ...]
    """Names of functions that ran in their own dtype."""


def exact_outputs(subject: Subject, history: ModelHistory) -> Exact:
    """Return the outputs of a recorded pass in float64.

    Raises
    ------
    NotApplicableError
        If the pass cannot be run in float64; the message has the reason.
    """
    recording = history.recording
    try:
        with torch.no_grad(), Player(recording) as player, ExactPlayer(recording) as exact:
            for _ in steps(recording, player, exact):
                subject.check_time()
            found = {path: exact.at(value_of(read).slot).detach().clone() for path, read in recording.outputs}
            rounded = {call.info.name: None for call in recording.calls if id(call) in exact.rounded}
    except NotApplicableError:
        raise
    except Exception as error:  # any function may lack float64
        raise NotApplicableError(f"the pass has no float64 reference: {type(error).__name__}: {error}") from error
    return Exact(found, tuple(rounded))
