"""The recorded calls, run again one by one for what they cost."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from typing import NamedTuple

import torch

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.replay import Player


class Played(NamedTuple):
    """One call, just after it ran; what is not used again is freed when the next is asked for."""

    number: int
    call: Call
    arguments: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]


class NotPlayedError(RuntimeError):
    """A recorded call cannot be run again, with its name and the reason."""


def played(recording: Recording, begin: Callable[[], object] = lambda: None) -> Iterator[Played]:
    """Run the calls of a recording again and yield each; `begin` is called just before it runs.

    Raises
    ------
    NotPlayedError
        If one raises, or gives other tensors than were recorded.
    """
    with Player(recording) as player:
        for number, call in enumerate(recording.calls):
            try:
                arguments = player.arguments(call)
                begin()
                returned, outputs = player.play(number, call, arguments)
                yield Played(number, call, tensors(arguments), outputs)
                del arguments, outputs
                player.store(number, call, returned)
            except (RuntimeError, TypeError, ValueError, KeyError, AssertionError) as error:
                raise NotPlayedError(f"call {number} ({call.info.name}) cannot be run again: {error}") from error
            del returned
