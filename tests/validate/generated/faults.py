"""Faults seeded into generated programs: damage to the record at a random operation, and steps that behave badly."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import random
import warnings
import weakref
from typing import Any
from unittest import mock

import numpy as np
import torch

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import ambient
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture import record
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import Status
from pytest_torchlens.validate import validation
from tests.validate.damage import Scene
from tests.validate.damage_to_recording import KINDS
from tests.validate.generated.model import build
from tests.validate.generated.program import Program
from tests.validate.generated.program import Step
from tests.validate.generated.program import refused
from tests.validate.generated.program import step
from tests.validate.generated.verdicts import SEED
from tests.validate.generated.verdicts import validated

# -- damage to the record -----------------------------------------------------------------------------------------

# what may be without effect: a damaged call is then run by hand, with the values of an undamaged record
MAY_BE_WITHOUT_EFFECT = frozenset(
    [
        "argument positions swapped",
        "autocast made up",
        "edge to another parent",
        "function exchanged",
        "keyword changed",
    ]
    + ["positional number changed", "random state lost", "random state of another draw", "truth value turned round"]
    + [f"{name} stale" for name in ("parameter", "buffer", "input", "constant")]
)


class RecordFault:
    """Damages each record that a validation makes, in the same way: one kind of damage at one operation."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.kind = ""
        self.number = 0
        self.labels: set[str] = set()
        self._scenes: list[Scene] = []

    def history_of(self, recording: Recording, *options: Any) -> ModelHistory:
        """Take the place of `ModelHistory` in a validation: return the history of a record that is damaged then."""
        history = ModelHistory(recording, *options)
        if self.kind and self.number < len(recording.calls):
            self._damage(recording, history, self.kind, self.number)
        elif not self.kind and recording.calls:
            self._choose(recording, history)
        return history

    def _choose(self, recording: Recording, history: ModelHistory) -> None:
        for kind in self._random.sample(sorted(KINDS), len(KINDS)):
            number = self._random.randrange(len(recording.calls))
            if self._damage(recording, history, kind, number):
                self.kind, self.number = kind, number
                return

    def _damage(self, recording: Recording, history: ModelHistory, kind: str, number: int) -> bool:
        scene = Scene(recording, history, number)
        self._scenes.append(scene)
        with torch.inference_mode(False), torch.no_grad():
            expected = KINDS[kind](scene)
        if expected is not None:
            self.labels = expected[1]
        return expected is not None

    def restore(self) -> None:
        """Undo what the damage patched in the package."""
        for scene in reversed(self._scenes):
            scene.restore()


def without_effect(program: Program, kind: str, number: int) -> bool:
    """Return whether a damaged call, run by hand with the values of an undamaged record, gives the same bits."""
    model, args, kwargs = build(program)
    with program.in_mode():
        recording = record(model, args, kwargs, keep="all", seed=SEED, thorough=True)
        history = ModelHistory(recording)
        kept = {(value.slot, value.call): value.tensor for call in recording.calls for value in call.outputs}
        kept |= {(source.value.slot, -1): source.value.tensor for source in recording.sources}
        digests = [value.fingerprint for value in recording.calls[number].outputs]
        RecordFault(0)._damage(recording, history, kind, number)
        call = recording.calls[number]

        def tensor_of(leaf: Any) -> Any:
            value = value_of(leaf) if isinstance(leaf, Value | Aliased) else None
            return leaf if value is None else kept[value.slot, value.call].clone()

        given, named = substitute(call.args, tensor_of), substitute(call.kwargs, tensor_of)
        with ambient.in_force(recording.ambient.rows[call.ambient]):
            torch.manual_seed(99)
            if call.random is not None:
                call.random.generator.set_state(call.random.state)
            return [fingerprint(tensor) for tensor in tensors(call.info.func(*given, **named))] == digests


# -- steps that behave badly ---------------------------------------------------------------------------------------

_CALLED: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
FAILED = frozenset([Status.FAILED])
FAILED_OR_UNPROVEN = frozenset([Status.FAILED, Status.UNPROVEN])
ACCEPTED = {
    "other_when_traced": FAILED,
    "other_at_first": FAILED,
    "memory_overwritten": FAILED,
    "weight_overwritten": FAILED,
    "past_the_modes": FAILED,
    "computed_in_numpy": FAILED_OR_UNPROVEN,  # docs/validation.md: a constant made after numpy handed values to Python
    "entropy": FAILED_OR_UNPROVEN,  # docs/validation.md: the model differs from run to run
}


def _report(m: Any, result: torch.Tensor) -> None:
    m.reports.append(result)


@step("fault")
def other_when_traced(m, d):
    traced = bool(torch.overrides._get_current_function_mode_stack())
    _report(m, d.filled_float().detach().float() * (1.5 if traced else 1.25) + m.frozen[0])


@step("fault")
def other_at_first(m, d):
    first = m not in _CALLED
    _CALLED.add(m)
    _report(m, torch.ones_like(d.filled_float()) * (1.5 if first else 1.25))


@step("fault")
def memory_overwritten(m, d):
    t = torch.ones_like(d.filled_float(), dtype=torch.float32) * 2
    _report(m, t + 1)
    ctypes.memset(t.untyped_storage().data_ptr(), 1, t.nbytes)
    _report(m, t + 1)


@step("fault")
def weight_overwritten(m, d):
    d.number(2)
    weight = m.embedding.weight
    ctypes.memset(weight.untyped_storage().data_ptr(), 1 + d.number(9), weight.nbytes)


@step("fault")
def past_the_modes(m, d):
    t = d.filled_float().detach()
    with torch._C.DisableTorchFunction():
        hidden = t.float().cos() + 0.5
    _report(m, hidden * 2)


@step("fault")
def computed_in_numpy(m, d):
    t = d.filled_float().detach().float()
    _report(m, torch.from_numpy(np.cos(t.resolve_neg().numpy()) + np.float32(0.5)) * 2)


@step("fault")
def entropy(m, d):
    noise = torch.tensor(list(os.urandom(8)), dtype=torch.float32)
    _report(m, noise * d.filled_float().detach().flatten()[0].float().sigmoid())


# -- a program with a fault ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Seeded:
    """A fault that was seeded into a program: its kind, where, what the verdict was, and whether that is right."""

    kind: str
    where: str
    status: Status
    found: bool
    named: bool = False
    without_effect: bool = False


def seed_fault(program: Program, seed: int) -> Seeded | None:
    """Validate a program with one fault; None if no fault can be seeded into it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _behave_badly(program, seed) if seed % 4 == 0 else _damage_record(program, seed)


def _behave_badly(program: Program, seed: int) -> Seeded | None:
    draw = random.Random(seed)
    name = draw.choice(sorted(ACCEPTED))
    place = draw.randrange(len(program.steps) + 1)
    steps = (*program.steps[:place], Step(name, seed), *program.steps[place:])
    bad = dataclasses.replace(program, steps=steps)
    if refused(bad, build) is not None or not _is_run(bad, name):
        return None
    _CALLED.clear()
    status = validated(bad)[0].verdict.status
    return Seeded(name, f"step {place}", status, status in ACCEPTED[name])


def _is_run(program: Program, name: str) -> bool:
    model, args, kwargs = build(program)
    with program.in_mode():
        model(*args, **kwargs)
    return name == "weight_overwritten" or bool(model.reports)


def _damage_record(program: Program, seed: int) -> Seeded | None:
    fault = RecordFault(seed)
    try:
        with mock.patch.object(validation, "ModelHistory", fault.history_of):
            verdict = validated(program)[0].verdict
    finally:
        fault.restore()
    if not fault.kind:
        return None
    found = verdict.status is Status.FAILED
    named = bool({failure.operation for part in verdict.parts for failure in part.failures} & fault.labels)
    excused = not found and fault.kind in MAY_BE_WITHOUT_EFFECT and without_effect(program, fault.kind, fault.number)
    where = f"operation {fault.number}, {', '.join(sorted(fault.labels)[:1])}"
    return Seeded(fault.kind, where, verdict.status, found, named, excused)
