"""Replays a recorded pass several times in step, each with inputs of its own."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import torch

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.checks.inputs import Arguments
from pytest_torchlens.replay import Player


def tensors_of(given: Arguments) -> dict[str, torch.Tensor]:
    """Return the tensors in a model's arguments, by path."""
    return dict([*walk(given.args), *walk(given.kwargs)])


def put_inputs(player: Player, recording: Recording, tensors: Mapping[str, torch.Tensor]) -> None:
    """Put other inputs, by path, in the place of the recorded ones."""
    for source in recording.sources:
        if source.kind == "input":
            player.replace(source.value.slot, tensors[source.name].clone())


def in_step(recording: Recording, players: list[Player]) -> Iterator[tuple[int, list[tuple[torch.Tensor, ...]]]]:
    """Run all calls with each player, and yield the outputs of each."""
    for number, call in enumerate(recording.calls):
        played: list[Any] = [player.play(number, call, player.arguments(call)) for player in players]
        yield number, [outputs for _, outputs in played]
        for player, (returned, _) in zip(players, played, strict=True):
            player.store(number, call, returned)
