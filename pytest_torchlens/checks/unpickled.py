"""What happens to a pickled model in another process: it is loaded, called and described.

`pickled` makes the job, `answer` does it in the other process.  Both are bytes of `torch.save`, which keeps the memory
that tensors share.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any
from typing import NamedTuple

import torch
from torch import nn

from pytest_torchlens.capture import ambient
from pytest_torchlens.capture import record
from pytest_torchlens.capture.generators import Generators
from pytest_torchlens.checks.held import held_values
from pytest_torchlens.checks.held import memory_shared
from pytest_torchlens.checks.subject import Outputs
from pytest_torchlens.checks.subject import outputs_of

_LENGTH = 8
"""Bytes of the number that says how long the first part of a job is."""


class Step(NamedTuple):
    """One call of the other process."""

    name: str
    module: str
    digests: tuple[str, ...]


@dataclass
class Answer:
    """What the other process found.

    Attributes
    ----------
    error
        What loading or calling the model raised there; empty if it ran.
    loaded
        Whether the model could be loaded.
    steps
        The calls of the pass.
    held
        The values that the loaded model holds, before the call.
    shared
        Groups of parameters and buffers that share memory there.
    """

    outputs: Outputs
    error: str = ""
    loaded: bool = False
    steps: tuple[Step, ...] = ()
    held: dict[str, str] | None = None
    shared: frozenset[frozenset[str]] = frozenset()


def pickled(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], seed: int | None) -> bytes:
    """Return the job for the other process.

    Raises
    ------
    Exception
        Whatever pickling raises.
    """
    head = _saved({"settings": ambient.current(), "seed": seed, "generators": Generators()})
    return len(head).to_bytes(_LENGTH, "big") + head + _saved((model, args, kwargs))


def answer(content: bytes) -> bytes:
    """Do a job, and return its answer."""
    start = _LENGTH + int.from_bytes(content[:_LENGTH], "big")
    job = _loaded(content[_LENGTH:start])
    found = Answer({})
    try:
        model, args, kwargs = _loaded(content[start:])
        found.loaded = True
        found.held, found.shared = held_values(model), memory_shared(model)
        job["generators"].restore()
        with ambient.in_force(job["settings"]):
            recording = record(model, args, kwargs, seed=job["seed"])
        found.outputs = outputs_of(recording.output)
        found.steps = steps_of(recording.calls)
    except Exception as error:  # noqa: BLE001 - of the user's code
        found.error = f"{type(error).__name__}: {error}"
    return _saved(found)


def answer_of(content: bytes) -> Answer:
    """Return the answer that the other process wrote."""
    found: Answer = _loaded(content)
    return found


def steps_of(calls: list[Any]) -> tuple[Step, ...]:
    """Return what calls did, without tensors."""
    return tuple(
        Step(
            call.info.name,
            call.module.address if call.module else "",
            () if call.uninitialised else tuple(value.fingerprint for value in call.outputs),
        )
        for call in calls
    )


def unpicklable(model: nn.Module) -> str:
    """Return the name of the first attribute of a module that cannot be pickled; empty if none is found."""
    for address, module in model.named_modules():
        for name, value in vars(module).items():
            if name == "_modules" or isinstance(value, nn.Module):
                continue
            try:
                _saved(value)
            except Exception:  # noqa: BLE001 - any object may raise anything
                path = f"{address}.{name}" if address else name
                return f"attribute {path!r} of {type(module).__name__}"
    return ""


def _saved(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def _loaded(content: bytes) -> Any:
    return torch.load(io.BytesIO(content), weights_only=False)
