"""Checks that recording changed nothing: outputs, state and random generators are as after an untraced run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.capture.values import shape_of
from pytest_torchlens.records import Failure
from pytest_torchlens.records import PartVerdict
from pytest_torchlens.validate.score import Score
from pytest_torchlens.validate.state import Generators
from pytest_torchlens.validate.state import state_digests


@dataclass(frozen=True)
class RunDigests:
    """What a run of the model left behind, in digests by a name for people."""

    output_type: str
    outputs: dict[str, str]
    state: dict[str, str]

    @classmethod
    def of(cls, model: torch.nn.Module, inputs: dict[str, torch.Tensor], output: Any) -> RunDigests:
        """Take the digests of a model's output and of everything that its forward may change."""
        outputs = {f"output {path}".rstrip(): _describe(tensor) for path, tensor in walk(output)}
        state = state_digests(model, inputs) | Generators().digests()
        return cls(type(output).__qualname__, outputs, state)


def _describe(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype}{list(shape_of(tensor))} {fingerprint(tensor)}"


def compare(traced: RunDigests, plain: RunDigests, uninitialised: Collection[str] = ()) -> PartVerdict:
    """Return the verdict on a recorded run and a plain run from the same state.

    Outputs whose paths are in `uninitialised` hold no values to compare.
    """
    score = Score("observer", "outputs and states")
    score.checked = 1
    if traced.output_type != plain.output_type:
        score.fail(_failure(f"recorded, the model returns a {traced.output_type}; plain, a {plain.output_type}"))
    for one, other in ((traced.outputs, plain.outputs), (traced.state, plain.state)):
        score.checked += len(one | other)
        for name in sorted(one | other, key=list(one | other).index):
            if one.get(name) != other.get(name) and name.removeprefix("output").strip() not in uninitialised:
                score.fail(_failure(_difference(name, one.get(name), other.get(name))))
    return score.verdict()


def _difference(name: str, traced: str | None, plain: str | None) -> str:
    if traced is None or plain is None:
        return f"there is {name} only {'plain' if traced is None else 'recorded'}"
    return f"{name} differs between the recorded and the plain run"


def _failure(message: str) -> Failure:
    return Failure(
        message=message,
        cause="recording changed what ran: two plain runs from the same state agree",
        advice="look for code that asks whether a mode, hook or tracer is active; else report the model to us",
    )
