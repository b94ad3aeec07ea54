"""Checks that recording changed nothing: outputs, state and random generators are as after a plain run."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.generators import Generators
from pytest_torchlens.capture.leaves import walk_all
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.values import shape_of
from pytest_torchlens.capture.values import strides_of
from pytest_torchlens.records import Failure
from pytest_torchlens.records import PartVerdict
from pytest_torchlens.validate.score import Score
from pytest_torchlens.validate.state import state_digests
from pytest_torchlens.validate.unobtrusive import modes_disabled


@dataclass(frozen=True)
class RunDigests:
    """Digests of everything that a run of the model returned or may have changed.

    Attributes
    ----------
    output_type
        Name of the class of the model's output.
    outputs
        Digest of each tensor, array and plain value of the output, by its path.
    state
        Digest of each part of the state, by a readable name.
    """

    output_type: str
    outputs: dict[str, str]
    state: dict[str, str]

    @classmethod
    @modes_disabled()
    def of(
        cls,
        model: torch.nn.Module,
        inputs: dict[str, torch.Tensor],
        output: Any,
        known: Mapping[int, str] = MappingProxyType({}),
    ) -> RunDigests:
        """Return the digests of a model's output and of everything that its forward may change.

        `known` has fingerprints of some tensors as the run left them, by `id`.
        """
        with torch._C.DisableTorchFunction():
            outputs = {path: described for path, item in walk_all(output) if (described := _describe(item))}
            state = state_digests(model, inputs, known) | Generators().digests()
        return cls(type(output).__qualname__, outputs, state)


def _describe(item: Any) -> str:
    """Describe a tensor, an array or a plain value of the output; return ``""`` for any other object."""
    if is_a(item, torch.Tensor):
        layout = strides_of(item), item.requires_grad
        return f"{item.dtype}{list(shape_of(item))} {layout} {fingerprint(item)}"
    if is_a(item, np.ndarray):  # one of objects holds their addresses
        return "" if item.dtype.hasobject else f"{item.dtype}{item.shape} {hash(item.tobytes())}"
    return repr(item) if type(item) in _PLAIN or is_a(item, np.generic) else ""


_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def compare(traced: RunDigests, plain: RunDigests, uninitialised: Collection[str] = ()) -> PartVerdict:
    """Return the verdict on a recorded run and a plain run from the same state.

    Outputs whose paths are in `uninitialised` hold no values to compare.
    """
    score = Score("observer", "outputs and states")
    score.checked = 1
    if traced.output_type != plain.output_type:
        score.fail(_failure(f"recorded, the model returns a {traced.output_type}; plain, a {plain.output_type}"))
    outputs, state = traced.outputs | plain.outputs, traced.state | plain.state
    score.checked += len(outputs) + len(state)
    for path in outputs:
        if path not in uninitialised:
            name = f"output {path}" if path else "output"
            _compare(score, name, traced.outputs.get(path), plain.outputs.get(path))
    for name in state:
        _compare(score, name, traced.state.get(name), plain.state.get(name))
    return score.verdict()


def of_saving(verdict: PartVerdict) -> PartVerdict:
    """Return a verdict whose failures say that they are seen only if activations are saved."""
    failures = (
        dataclasses.replace(one, message=f"{one.message}, if activations are saved") for one in verdict.failures
    )
    return dataclasses.replace(verdict, failures=tuple(failures))


def _compare(score: Score, name: str, traced: str | None, plain: str | None) -> None:
    if traced != plain:
        score.fail(_failure(_difference(name, traced, plain)))


def _difference(name: str, traced: str | None, plain: str | None) -> str:
    if traced is None or plain is None:
        return f"there is {name} only {'plain' if traced is None else 'recorded'}"
    return f"{name} differs between the recorded and the plain run"


def _failure(message: str) -> Failure:
    return Failure(
        message=message,
        cause="recording changed what ran: two plain runs from the same state agree",
        advice="report the model to us, unless its code asks whether it is recorded",
    )
