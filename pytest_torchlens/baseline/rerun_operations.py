"""Runs single operations again on a baseline's inputs: a difference is then their own, and not inherited."""

from __future__ import annotations

from pathlib import Path

import torch

from pytest_torchlens.baseline.judge import Suspects
from pytest_torchlens.baseline.run_alone import run_on
from pytest_torchlens.baseline.saved_activations import SavedActivations
from pytest_torchlens.baseline.saved_activations import SavedActivationsError
from pytest_torchlens.baseline.saved_activations import argument_name
from pytest_torchlens.baseline.saved_activations import folder_name
from pytest_torchlens.baseline.saved_activations import names_of
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import Exactness
from pytest_torchlens.records import RerunResult
from pytest_torchlens.replay import Player

_CLEARLY = 1.1
"""A result is called less exact if it is this many times as far from float64."""


class Repeater:
    """Runs suspects on the saved activations of a baseline.

    Parameters
    ----------
    folder
        The folder with the model's activations.
    history, snapshot
        The pass to compare; the model must hold the values that it had before the pass.
    """

    def __init__(self, folder: Path, history: ModelHistory, snapshot: Snapshot) -> None:
        self._folder = folder
        self._recording = history.recording
        self._names = names_of(history, snapshot)

    def __call__(self, suspects: Suspects) -> dict[str, RerunResult]:
        """Return the result of each suspect; nothing if no activations of this baseline are saved."""
        folder = self._folder / folder_name(suspects.numbers)
        if not folder.is_dir():
            return {}
        try:
            saved = SavedActivations(folder)
        except SavedActivationsError as error:
            return dict.fromkeys(suspects.scales, RerunResult(reason=str(error)))
        found: dict[str, RerunResult] = {}
        with Player(self._recording) as player:
            for call in self._recording.calls:
                if any(self._names.get(id(value)) in suspects.scales for value in call.outputs):
                    found.update(_Repetition(player, call, saved, self._names, suspects).results())
        return found


class _Repetition:
    """One call, run on saved activations."""

    def __init__(
        self, player: Player, call: Call, saved: SavedActivations, names: dict[int, str], suspects: Suspects
    ) -> None:
        self._player = player
        self._call = call
        self._saved = saved
        self._suspects = suspects
        self._names = names
        self._wanted = {
            place: name
            for place, value in enumerate(call.outputs)
            if (name := names.get(id(value), "")) in suspects.scales
        }

    def results(self) -> dict[str, RerunResult]:
        """Return the result of each of the call's suspects, or why it was not run."""
        try:
            if self._call.info.opaque:
                raise SavedActivationsError("compiled and scripted calls are not run alone")
            inputs = self._inputs()
            results = self._run(inputs)
            return {name: self._compare(name, place, inputs, results) for place, name in self._wanted.items()}
        except Exception as error:  # noqa: BLE001 - a function may raise anything, the second time too
            reason = str(error) if isinstance(error, SavedActivationsError) else f"{type(error).__name__}: {error}"
            return dict.fromkeys(self._wanted.values(), RerunResult(reason=reason.partition("\n")[0]))

    def _inputs(self) -> dict[int, torch.Tensor]:
        """Return the baseline's tensors by slot; parameters and buffers are the model's own, which are equal."""
        found = {}
        for path, read in edges_in(self._call):
            value = value_of(read)
            name = self._saved_name(value, path)
            if name is None:
                found[value.slot] = self._player.at(value.slot)
                continue
            tensor = self._saved.tensor(name, value.device)
            found[value.slot] = tensor.requires_grad_(value.requires_grad and value.slot not in self._call.writes)
        return found

    def _saved_name(self, value: Value, path: str) -> str | None:
        """Return the name under which an argument is saved; None for a parameter or buffer."""
        first = next(name for output in self._call.outputs if (name := self._names.get(id(output))))
        written = argument_name(self._name_in_baseline(first), path)
        if written in self._saved:
            return written
        if name := self._names.get(id(value)):
            return self._name_in_baseline(name)
        if value.call >= 0:
            raise SavedActivationsError("an input is not a step of the graph")
        return None

    def _name_in_baseline(self, name: str) -> str:
        if name not in self._suspects.partners:
            raise SavedActivationsError(f"the baseline has no {name}")
        return self._suspects.partners[name]

    def _run(self, inputs: dict[int, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return run_on(self._player, self._call, lambda value: inputs[value.slot])

    def _compare(
        self, name: str, place: int, inputs: dict[int, torch.Tensor], results: tuple[torch.Tensor, ...]
    ) -> RerunResult:
        try:
            old = self._saved.tensor(self._name_in_baseline(name), results[place].device)
        except SavedActivationsError as error:
            return RerunResult(reason=str(error))
        new = results[place].detach()
        if (old.dtype, old.shape) != (new.dtype, new.shape):
            return RerunResult(reason="its result has another shape or dtype")
        if fingerprint(old) == fingerprint(new):
            return RerunResult(same=True)
        steady = fingerprint(self._run(inputs)[place]) == fingerprint(new)
        scale = self._suspects.scales[name]
        largest, nrms = distance(old, new, scale)
        holes = bool((_plain(old).isfinite() != _plain(new).isfinite()).any())
        before, after = self._exactness(name, (old, new), scale)
        return RerunResult(
            error=largest,
            nrms=nrms,
            holes=holes,
            steady=steady,
            before=before,
            after=after,
            exactness=_word(before, after),
        )

    def _exactness(
        self, name: str, results: tuple[torch.Tensor, torch.Tensor], scale: float
    ) -> tuple[float | None, float | None]:
        """Return how far both results are from the baseline's result in float64; None if it has none.

        The operation is not run in float64 here: a wrong kernel would be its own witness.
        """
        exact = self._saved.in_float64(self._name_in_baseline(name), results[0].device)
        if exact is None:
            return None, None
        before, after = (distance(result, exact, scale)[1] for result in results)
        return before, after


def distance(old: torch.Tensor, new: torch.Tensor, scale: float = 0.0) -> tuple[float, float]:
    """Return the largest difference relative to the largest value, and the RMS relative to the RMS, of finite values.

    Parameters
    ----------
    old, new
        Of one shape; differences are taken in float64.
    scale
        The least value to divide by.
    """
    one, other = _plain(old), _plain(new)
    finite = one.isfinite() & other.isfinite()
    one, other = one[finite], other[finite]
    if not one.numel():
        return 0.0, 0.0
    apart = (one - other).abs()
    largest = max(float(one.abs().max()), float(other.abs().max()), scale)
    rms = max(float(one.square().mean().sqrt()), scale)
    return _ratio(float(apart.max()), largest), _ratio(float(apart.square().mean().sqrt()), rms)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().resolve_conj()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double()


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else (float("inf") if part else 0.0)


def _word(before: float | None, after: float | None) -> Exactness:
    if before is None or after is None:
        return Exactness.UNKNOWN
    if before > _CLEARLY * after:
        return Exactness.MORE
    return Exactness.LESS if after > _CLEARLY * before else Exactness.AS
