"""Finds operators of other libraries that read a tensor which is not among their arguments.

No mode sees what runs inside an operator.  After a further pass with slightly other inputs, tensors that forward put
aside hold other values: the recorded calls run once more, and an operator that returns something else has read one.
"""

from __future__ import annotations

import contextlib

import torch

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.functions import is_of_torch
from pytest_torchlens.capture.functions import is_operator
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.replay import NotReplayableError
from pytest_torchlens.replay.calls import Listeners
from pytest_torchlens.replay.calls import replay_for
from pytest_torchlens.replay.player import Player
from pytest_torchlens.validate.unobtrusive import modes_disabled


def runs_foreign_operators(recording: Recording) -> bool:
    """Return whether a recorded call is an operator that is not one of PyTorch's own."""
    return any(map(_is_foreign, recording.calls))


def _is_foreign(call: Call) -> bool:
    return is_operator(call.info.func) and not is_of_torch(call.info.func)


@modes_disabled()
def hidden_reads(recording: Recording) -> list[tuple[int, str]]:
    """Return number and reason for the first operator that returns other values from the arguments recorded, if any.

    What the model put aside must hold other values than in the recorded pass.  An operator that does not repeat itself
    shows nothing.
    """
    found = _other_results(recording)
    again = _other_results(recording) if found else {}
    return [(number, _MESSAGE) for number in found if found[number] == again.get(number)][:1]


def _other_results(recording: Recording) -> dict[int, list[str]]:
    listener = _ForeignOperators()
    with contextlib.suppress(NotReplayableError):  # the further pass may have left it a state in which it cannot run
        replay_for(Listeners(listener), recording)  # what it raises is no fault of the model
    return listener.others


class _ForeignOperators:
    """Notes for each foreign operator whose arguments are as recorded the fingerprints of other outputs."""

    def __init__(self) -> None:
        self.others: dict[int, list[str]] = {}
        self._is_as_recorded = False

    def before(self, player: Player, call: Call) -> None:
        self._is_as_recorded = _is_foreign(call) and all(
            fingerprint(player.at(value.slot)) == value.fingerprint for value in _read_by(call)
        )

    def after(self, number: int, call: Call, outputs: tuple[torch.Tensor, ...]) -> None:
        if self._is_as_recorded:
            returned = [fingerprint(tensor) for tensor in outputs]
            if returned != [value.fingerprint for value in call.outputs]:
                self.others[number] = returned


def _read_by(call: Call) -> list[Value]:
    return [value_of(read) for _, read in edges_in(call)]


_MESSAGE = (
    "it returns other values from the same arguments after a pass with other inputs: "
    "it reads a tensor that is not among its arguments, and has no edge to it"
)
