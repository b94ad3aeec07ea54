"""Runs all calls of a recording again, one by one, or for a `Listener` that looks at each."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from typing import NamedTuple
from typing import Protocol

import torch

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.replay.player import Player


class Listener(Protocol):
    """Looks at each call of a replay, which may serve several: it changes nothing."""

    def before(self, player: Player, call: Call) -> None:
        """Look at the arguments of a call that is about to run."""

    def after(self, number: int, call: Call, outputs: tuple[torch.Tensor, ...]) -> None:
        """Look at the tensors for ``call.outputs`` when call `number` has run."""


def replay_for(listener: Listener, recording: Recording) -> None:
    """Replay a recording for a listener alone; raises whatever a call raises when it is run again."""
    with Player(recording) as player:
        for number, call in enumerate(recording.calls):
            listener.before(player, call)
            returned, outputs = player.play(number, call, player.arguments(call))
            listener.after(number, call, outputs)
            player.store(number, call, returned)


def replay_calls(recording: Recording, begin: Callable[[], object] = lambda: None) -> Iterator[ReplayedCall]:
    """Run the calls of a recording again and yield each; call `begin` just before each runs.

    Raises
    ------
    NotReplayableError
        If a call raises, or returns other tensors than were recorded.
    """
    with Player(recording) as player:
        for number, call in enumerate(recording.calls):
            try:
                arguments = player.arguments(call)
                begin()
                returned, outputs = player.play(number, call, arguments)
                yield ReplayedCall(number, call, tensors(arguments), outputs)
                del arguments, outputs
                player.store(number, call, returned)
            except (RuntimeError, TypeError, ValueError, KeyError, AssertionError) as error:
                raise NotReplayableError(f"call {number} ({call.info.name}) cannot be run again: {error}") from error
            del returned


class ReplayedCall(NamedTuple):
    """One call just after it ran.  Tensors that no later call uses are freed when the next one is requested."""

    number: int
    call: Call
    arguments: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]


class NotReplayableError(RuntimeError):
    """A recorded call cannot be run again; the message has its name and the reason."""
