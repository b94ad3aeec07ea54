"""The check ``rows``: other rows of the batch, changed at the same shape, change nothing in this one.

The place is the first operation with an element that depends on two rows.  Three replays show it, whatever the shapes
on the way: of the batch, of the batch with other rows after the first, and of the batch with another first row.  An
element that both changes reach depends on two rows; no element of the inputs does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.checks import results
from pytest_torchlens.checks.inputs import Arguments
from pytest_torchlens.checks.inputs import Examples
from pytest_torchlens.checks.results import apart
from pytest_torchlens.checks.results import values_text
from pytest_torchlens.checks.side_by_side import ancestors
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import OutOfTimeError
from pytest_torchlens.checks.subject import Outputs
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.vacuity import dependent
from pytest_torchlens.checks.vacuity import dependent_outputs
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import Failure
from pytest_torchlens.replay import Player

NAME = "rows"
_ADVICE = "let no operation mix the examples of a batch: look for a reduction, a reshape or an index over its dimension"
_ADVICE_IN_TRAIN = (
    "batch norm in train mode normalises by the batch, so that rows depend on each other: check the model in eval "
    "mode, or name the failure with 'xfail'"
)


def run(subject: Subject, size: int = 2, dim: int = 0) -> CheckResult:
    """Change all rows of a batch but the first, and compare the first row of each output bit for bit."""
    subject = dependent(subject)
    examples, way = Examples(subject, dim), f"in a batch of {size}"
    plain = examples.outputs(size, way)
    others = subject.call(*examples.batch(size, seed=2), way=f"{way} with other rows")
    differ, compared, unseen = _compare(plain, others, size, dim, dependent_outputs(subject))
    if not compared:
        raise NotApplicableError("; ".join(unseen) or "its output holds no tensor to compare")
    if not differ:
        return results.passed(NAME, compared, unseen=tuple(unseen), redrawn=subject.redrawn)
    path = differ[0]
    what = f"the first row of {f'output {path!r}' if path else 'the output'} changes when the other rows change"
    one, two = (_first_row(outputs[path], size, dim) for outputs in (plain, others))
    failure, more = _failure(subject, examples, size, what, path, values_text(one, two))
    return results.failed(NAME, failure, compared=compared, unseen=(*unseen, *more), redrawn=subject.redrawn)


def _compare(
    plain: Outputs, others: Outputs, size: int, dim: int, dependent_paths: set[str]
) -> tuple[list[str], int, list[str]]:
    """Return the outputs whose first row differs, how many were compared, and why others were not."""
    differ, unseen, compared = [], [], 0
    for path, output in plain.items():
        name, other = f"output {path!r}" if path else "the output", others.get(path)
        if path not in dependent_paths:
            unseen.append(f"{name} does not depend on the input")
        elif output.dim() <= dim or output.size(dim) % size or not output.size(dim):
            unseen.append(f"{name} has no rows: its shape is {tuple(output.shape)}")
        elif other is None or other.shape != output.shape:
            unseen.append(f"{name} has another shape for other rows, so its rows cannot be told apart")
        else:
            compared += 1
            one, two = (_first_row(tensor, size, dim) for tensor in (output, other))
            differ += [path] if fingerprint(one) != fingerprint(two) else []
    return differ, compared, unseen


def _first_row(tensor: torch.Tensor, size: int, dim: int) -> torch.Tensor:
    return tensor.narrow(dim, 0, tensor.size(dim) // size)


def _failure(
    subject: Subject, examples: Examples, size: int, what: str, path: str, values: str
) -> tuple[Failure, tuple[str, ...]]:
    """Return the failure at the first operation that lets another row in, and why that is not known."""
    advice = _ADVICE_IN_TRAIN if subject.is_training else _ADVICE
    try:
        history = subject.record(*examples.batch(size))
        changes = [examples.batch(size, seed=2), examples.batch(size, first_seed=3)]
        number = _first_mixing(subject, history, path, changes)
    except OutOfTimeError as error:
        return Failure(message=what, advice=advice, values=values), (f"the operation: {error}",)
    except Exception as error:  # noqa: BLE001 - any call may raise when it is run again
        return Failure(message=what, advice=advice, values=values), (f"the operation: {type(error).__name__}: {error}",)
    if number is None:
        return Failure(message=what, advice=advice, values=values), ("the operation: none mixes rows in a replay",)
    cause = "the first operation with an element that depends on two rows"
    return results.failure_at(history, number, what, advice, values=values, cause=cause), ()


def _first_mixing(subject: Subject, history: ModelHistory, path: str, changes: list[Arguments]) -> int | None:
    """Return the first call, of those that an output depends on, with an element that both changes reach."""
    recording = history.recording
    leading = ancestors(recording, path)
    with torch.no_grad(), contextlib.ExitStack() as stack:
        players = [stack.enter_context(Player(recording)) for _ in range(1 + len(changes))]
        for player, change in zip(players[1:], changes, strict=True):
            _put(player, recording, change)
        for number, outputs in _in_step(recording, players):
            subject.check_time()
            if number in leading and any(_mixes(*values) for values in zip(*outputs, strict=True)):
                return number
    return None


def _put(player: Player, recording: Recording, given: Arguments) -> None:
    """Put other inputs in the place of the recorded ones."""
    tensors = dict([*walk(given.args), *walk(given.kwargs)])
    for source in recording.sources:
        if source.kind == "input":
            player.replace(source.value.slot, tensors[source.name].clone())


def _in_step(recording: Recording, players: list[Player]) -> Iterator[tuple[int, list[tuple[torch.Tensor, ...]]]]:
    """Run all calls with each player, and yield the outputs of each."""
    for number, call in enumerate(recording.calls):
        played: list[Any] = [player.play(number, call, player.arguments(call)) for player in players]
        yield number, [outputs for _, outputs in played]
        for player, (returned, _) in zip(players, played, strict=True):
            player.store(number, call, returned)


def _mixes(plain: torch.Tensor, *changed: torch.Tensor) -> bool:
    """Return whether an element is another one after each of the changes; also if a shape is."""
    if any(tensor.shape != plain.shape for tensor in changed):
        return True
    reached = [apart(plain, tensor) != 0 for tensor in changed]
    return bool(torch.stack(reached).all(0).any())
