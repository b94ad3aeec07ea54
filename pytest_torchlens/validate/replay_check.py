"""The graph, run again from its sources, must give every activation's fingerprint again."""

from __future__ import annotations

import torch

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.values import shape_of
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.records import Failure
from pytest_torchlens.records import PartVerdict
from pytest_torchlens.replay import Player
from pytest_torchlens.validate.score import Score
from pytest_torchlens.validate.score import Where
from pytest_torchlens.validate.score import in_short


class ReplayCheck:
    """Compares replayed values with recorded fingerprints and keeps the score."""

    def __init__(self, recording: Recording, where: Where) -> None:
        self._recording = recording
        self._where = where
        self._score = Score("replay", "activations")
        self._uninitialised = 0
        self._unfingerprinted = 0

    def sources(self) -> None:
        """Report sources that changed although no recorded call wrote to them."""
        for description in self._recording.silent_writes:
            self._score.fail(
                Failure(
                    message=f"{description} changed during the forward pass, but no recorded operation wrote to it",
                    cause="a write that PyTorch does not announce: through numpy, .data, or a C++ extension",
                    advice="write through a torch function, or exclude the model with a reason",
                )
            )

    def check(self, number: int, call: Call, outputs: tuple[torch.Tensor, ...]) -> None:
        """Compare what call `number` gave with what was recorded, and the saved activations likewise."""
        if len(outputs) != len(call.outputs):
            self._score.checked += 1
            self._fail(number, f"the replay gave {len(outputs)} tensors where {len(call.outputs)} were recorded")
            return
        for value, tensor in zip(call.outputs, outputs, strict=True):
            self._compare(number, call, value, tensor)

    def edges(self, number: int, wrong: list[str]) -> None:
        """Report arguments of call `number` whose recorded parents are not what the tensor held."""
        for path in wrong:
            message = f"argument {path} is recorded with another parent than the one whose value the tensor held"
            self._fail(number, message, "an edge, or a write through shared memory, is missing or wrong in the record")

    def _compare(self, number: int, call: Call, value: Value, tensor: torch.Tensor) -> None:
        if call.info.uninitialised:
            self._uninitialised += 1
            return
        self._score.checked += 1
        found, recorded = _kind(tensor.dtype, shape_of(tensor)), _kind(value.dtype, value.shape)
        if found != recorded:
            self._fail(number, f"the replay gave {found} where {recorded} was recorded")
            return
        recorded_print = value.fingerprint
        if not recorded_print:
            self._unfingerprinted += 1
        elif fingerprint(tensor) != recorded_print:
            self._fail(number, f"the replayed values of {recorded} differ from the recorded ones")
        elif value.tensor is not None and fingerprint(value.tensor) != recorded_print:
            self._fail(number, "the saved activation is not what the operation gave", "it was changed after recording")

    def outputs(self, player: Player, returned: list[str]) -> None:
        """Compare the replayed model outputs with the fingerprints of what the model returned."""
        for (path, output), found in zip(self._recording.outputs, returned, strict=True):
            value = value_of(output)
            self._score.checked += 1
            if fingerprint(player.at(value.slot)) != found:
                name = f"output {path!r}" if path else "the output"
                self._fail(value.call, f"{name} of the replayed graph differs from what the model returned")

    def final_states(self, player: Player) -> None:
        """Compare buffers, parameters and inputs that were overwritten with what the forward pass left in them."""
        for source in self._recording.sources:
            if source.written:
                self._score.checked += 1
                if fingerprint(player.at(source.value.slot)) != source.final:
                    message = f"{source.kind} {source.name!r} is left with other values by the replayed graph"
                    self._score.fail(Failure(message=message, cause="a write to it was not recorded"))

    def raised(self, number: int, error: Exception) -> None:
        """Note that call `number` could not be run again."""
        self._score.checked += 1
        self._fail(number, f"running it again raised {in_short(error)}")

    def _fail(self, number: int, message: str, cause: str = "") -> None:
        if number < 0:
            self._score.fail(Failure(message=message, cause=cause))
            return
        self._score.fail(
            Failure(
                operation=self._where.label(number),
                message=message,
                cause=cause or self._cause(self._recording.calls[number]),
                advice="the first failure is the one to look at: what follows from it differs too",
                source_line=self._where.source_line(number),
            )
        )

    def _cause(self, call: Call) -> str:
        if self._recording.silent_writes:
            return f"{self._recording.silent_writes[0]} changed without announcement"
        if call.info.opaque:
            return "its inside is out of sight: it may use what it was not given, or give something else each time"
        if call.info.draws:
            return "it draws random numbers, and its generator's state was not had"
        return "an argument was overwritten unseen, a mode of the model's was on, or the kernel is not deterministic"

    def verdict(self) -> PartVerdict:
        """Return the score so far."""
        exempt = {"uninitialised memory": self._uninitialised, "no fingerprint": self._unfingerprinted}
        return self._score.verdict(exempt={name: count for name, count in exempt.items() if count})


def _kind(dtype: torch.dtype, shape: torch.Size) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
