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
from pytest_torchlens.validate.causes import likely_cause
from pytest_torchlens.validate.differences import around_first_difference
from pytest_torchlens.validate.score import Score
from pytest_torchlens.validate.score import Where
from pytest_torchlens.validate.score import in_short
from pytest_torchlens.validate.trial import Trial
from pytest_torchlens.validate.trial import is_close


class ReplayCheck:
    """Compares replayed values with recorded fingerprints and keeps the score."""

    def __init__(self, recording: Recording, where: Where) -> None:
        self._recording = recording
        self._where = where
        self._score = Score("replay", "activations")
        self._uninitialised = 0
        self._unfingerprinted = 0
        self.doubted: set[str] = set()
        """Names of functions that gave other values than recorded."""

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

    def check(self, number: int, call: Call, outputs: tuple[torch.Tensor, ...], trial: Trial | None = None) -> bool:
        """Compare what call `number` gave with what was recorded, and the saved activations likewise.

        Return whether as many tensors came as were recorded.  With a `trial`, a call that gave other values is
        repeated: if it does not repeat itself and is within tolerance, the recorded values take the place of those.
        """
        if len(outputs) != len(call.outputs):
            self._score.checked += 1
            self._fail(number, f"the replay gave {len(outputs)} tensors where {len(call.outputs)} were recorded")
            return False
        pairs = list(zip(call.outputs, outputs, strict=True))
        different = [pair for pair in pairs if not self._compare(number, call, *pair)]
        if different:
            self.doubted.add(call.info.name)
            repeats = trial.repeats_itself() if trial is not None else None
            if trial is not None and not repeats and all(_settle(*pair) for pair in different):
                trial.tolerant = True
                self._score.tolerated += 1
            else:
                self._fail_values(number, call, different[0], repeats)
        return True

    def edges(self, number: int, call: Call, player: Player) -> bool:
        """Report arguments of a call whose recorded parents are not what the tensor held; False if there are none."""
        self._report_edges(number, player.wrong_edges(call))
        missing = player.missing(call)
        for path in missing:
            self._fail(number, f"argument {path} is recorded with a parent that no call before it made")
        return not missing

    def base(self, number: int, call: Call, player: Player, outputs: tuple[torch.Tensor, ...]) -> None:
        """Report the same of the first argument of a call that has run and may have given a view of it."""
        self._report_edges(number, player.wrong_base(call, outputs))

    def _report_edges(self, number: int, wrong: dict[str, list[int]]) -> None:
        for path, writers in wrong.items():
            message = f"argument {path} is recorded with another parent than the one whose value the tensor held"
            names = ", ".join(self._where.label(writer) for writer in writers)
            cause = "an edge, or a write through shared memory, is missing or wrong in the record"
            self._fail(number, message, f"it was overwritten in place by {names}" if names else cause)

    def _compare(self, number: int, call: Call, value: Value, tensor: torch.Tensor) -> bool:
        """Return whether the values are as recorded; what is otherwise wrong is reported here."""
        if call.info.uninitialised:
            self._uninitialised += 1
            return True
        self._score.checked += 1
        found, recorded = _kind(tensor.dtype, shape_of(tensor)), _kind(value.dtype, value.shape)
        if found != recorded:
            self._fail(number, f"the replay gave {found} where {recorded} was recorded")
            return True
        recorded_print = value.fingerprint
        if not recorded_print:
            self._unfingerprinted += 1
        elif fingerprint(tensor) != recorded_print:
            return False
        elif value.tensor is not None and fingerprint(value.tensor) != recorded_print:
            self._fail(
                number,
                "the saved activation is not what the operation gave",
                "it was changed after recording",
                around_first_difference(value.tensor, tensor),
            )
        return True

    def _fail_values(self, number: int, call: Call, pair: tuple[Value, torch.Tensor], repeats: bool | None) -> None:
        value, tensor = pair
        message = f"the replayed values of {_kind(value.dtype, value.shape)} differ from the recorded ones"
        values = around_first_difference(value.tensor, tensor) if value.tensor is not None else ""
        self._fail(number, message, likely_cause(self._recording, call, repeats), values)

    def outputs(self, player: Player, returned: list[str]) -> None:
        """Compare the replayed model outputs with the fingerprints of what the model returned."""
        recorded = self._recording.outputs
        if len(recorded) != len(returned):
            self._fail(-1, f"{len(recorded)} output tensors are recorded where the model returned {len(returned)}")
        for (path, output), found in zip(recorded, returned, strict=False):
            value = value_of(output)
            self._score.checked += 1
            if not player.has(value.slot) or fingerprint(player.at(value.slot)) != found:
                name = f"output {path!r}" if path else "the output"
                self._fail(value.call, f"{name} of the replayed graph differs from what the model returned")

    def final_states(self, player: Player) -> None:
        """Compare buffers, parameters and inputs that were overwritten with what the forward pass left in them."""
        for source in self._recording.sources:
            if source.final:  # what was freed since cannot be looked at
                self._score.checked += 1
                if fingerprint(player.at(source.value.slot)) != source.final:
                    message = f"{source.kind} {source.name!r} is left with other values by the replayed graph"
                    self._score.fail(Failure(message=message, cause="a write to it was not recorded"))

    def raised(self, number: int, error: Exception) -> None:
        """Note that call `number` could not be run again."""
        self._score.checked += 1
        self._fail(number, f"running it again raised {in_short(error)}")

    def _fail(self, number: int, message: str, cause: str = "", values: str = "") -> None:
        if number < 0:
            self._score.fail(Failure(message=message, cause=cause))
            return
        self._score.fail(
            Failure(
                operation=self._where.label(number),
                message=message,
                values=values,
                cause=cause or likely_cause(self._recording, self._recording.calls[number]),
                advice="the first failure is the one to look at: what follows from it differs too",
                source_line=self._where.source_line(number),
            )
        )

    def verdict(self) -> PartVerdict:
        """Return the score so far."""
        exempt = {"uninitialised memory": self._uninitialised, "no fingerprint": self._unfingerprinted}
        return self._score.verdict(exempt={name: count for name, count in exempt.items() if count})


def _settle(value: Value, tensor: torch.Tensor) -> bool:
    """Put the recorded values in place of replayed ones that are within tolerance of them; False if they are not."""
    if value.tensor is None or not is_close(tensor, value.tensor):
        return False
    with torch.no_grad():
        tensor.detach().copy_(value.tensor)
    return True


def _kind(dtype: torch.dtype, shape: torch.Size) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
