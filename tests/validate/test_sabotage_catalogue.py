"""The catalogue of damage, applied to the operations of small real models: all is found, at the right operation."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture import record
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.validate import check_recording
from pytest_torchlens.validate.state import ModelState
from tests.models import DemoNetwork
from tests.models import RecurrentNetwork
from tests.models import SmallConvNet
from tests.validate.damage import Scene
from tests.validate.damage_to_state import KINDS


class Residual(nn.Module):
    """Two branches, writes in place through views, a constant, several outputs of one call."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.mix = nn.Linear(6, 12, bias=False)
        self.scale = torch.tensor([1.0, 2, 3, 4, 5, 6])

    def forward(self, x):
        one, other = (part * 1 for part in self.mix(self.norm(x)).chunk(2, dim=-1))
        one[0].mul_(2)
        one += 0.5 * self.scale
        top, where = other.max(-1, True)
        return {"sum": x + one.softmax(-1) / top, "where": where.clamp(min=1)}


MODELS = {
    "demo": (lambda: DemoNetwork().eval(), (5, 5)),
    "convolutions, training": (SmallConvNet, (4, 3, 6, 6)),
    "recurrent": (RecurrentNetwork, (5, 5)),
    "residual": (Residual, (3, 6)),
    "transformer, training": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 4, 8)),
}


class Patient:
    """A model that is recorded afresh for each damage."""

    def __init__(self, name):
        torch.manual_seed(0)
        build, shape = MODELS[name]
        self.model, self.x = build(), torch.rand(shape)
        self.state = ModelState(self.model, (self.x,))
        self.size = len(self.recorded()[0].calls)

    def recorded(self):
        self.state.restore()
        recording = record(self.model, (self.x,), keep="all", seed=0, thorough=True)
        for value in (value for call in recording.calls for value in call.outputs if value.tensor is not None):
            value.tensor = value.tensor.detach().clone()  # it may be a buffer, which is restored next
        self.state.restore()
        return recording, ModelHistory(recording)

    def found(self, kind, number):
        """Damage the record; return the expected and the actual findings, or None if the damage does not apply."""
        recording, history = self.recorded()
        with torch.no_grad():
            constants = [(source.live, source.live.clone()) for source in recording.sources]
        expected = KINDS[kind](Scene(recording, history, number))
        if expected is None:
            return None
        parts = {part.name: part for part in check_recording(recording, history, ["replay", "invariants"])}
        with torch.no_grad():
            for live, former in constants:
                live.copy_(former)
        return expected, parts

    def without_effect(self, kind, number):
        """Return whether the damaged call, run with the saved values of an undamaged record, has the same bits."""
        recording, history = self.recorded()
        kept = {(value.slot, value.call): value.tensor for call in recording.calls for value in call.outputs}
        kept |= {(source.value.slot, -1): source.value.tensor for source in recording.sources}
        digests = [value.fingerprint for value in recording.calls[number].outputs]
        KINDS[kind](Scene(recording, history, number))
        call = recording.calls[number]

        def tensor_of(leaf):
            value = value_of(leaf) if isinstance(leaf, Value | Aliased) else None
            return leaf if value is None else kept[value.slot, value.call].clone()

        args, kwargs = substitute(call.args, tensor_of), substitute(call.kwargs, tensor_of)
        return [fingerprint(tensor) for tensor in tensors(call.info.func(*args, **kwargs))] == digests


# damage that may have no effect; where it is not found, the test shows that it has none
EQUIVALENT = {
    "argument positions swapped": "addition and multiplication commute",
    "edge to another parent": "the other parent holds the same values: of a relu, what was positive before",
    "keyword changed": "a bound that no value reaches",
}


def place_of(label):
    """Return a label; its number if it does not reach the result: damage may change its function."""
    return label.partition(" ")[2] or label


def tally(name, numbers=None):
    """Return counts of the damage, what was not found at its operation, and counts of damage without effect."""
    patient = Patient(name)
    counts, wrong, equivalent = Counter(), [], Counter()
    for kind in KINDS:
        for number in range(patient.size) if numbers is None else numbers:
            outcome = patient.found(kind, number)
            if outcome is None:
                continue
            (part, labels), parts = outcome
            if kind in EQUIVALENT and not parts[part].failures and patient.without_effect(kind, number):
                equivalent[kind] += 1
                continue
            counts[kind] += 1
            failures = parts[part].failures
            named = {place_of(failure.operation) for failure in failures[: 1 if part == "replay" else None]}
            if not named & set(map(place_of, labels)):
                wrong.append((name, kind, sorted(labels), [(f.operation, f.message) for f in failures[:2]]))
    return counts, wrong, equivalent


def test_the_catalogue_has_kinds_enough():
    assert len(KINDS) >= 25


@pytest.mark.parametrize("name", MODELS)
def test_undamaged_records_pass(name):
    recording, history = Patient(name).recorded()
    assert all(part.status.ok for part in check_recording(recording, history))


@pytest.mark.parametrize("name", ["demo", "residual"])
def test_damage_to_some_operations_is_found(name):
    counts, wrong, _ = tally(name, numbers=[1, 5])
    assert wrong == []
    assert len(counts) >= 25


@pytest.mark.slow
def test_all_damage_to_every_operation_is_found(capsys):
    counts, wrong, equivalent = Counter(), [], Counter()
    for name in MODELS:
        found = tally(name)
        counts += found[0]
        wrong += found[1]
        equivalent += found[2]
    with capsys.disabled():
        print(f"\n{len(counts)} kinds of damage done {counts.total()} times, found {counts.total() - len(wrong)} times")  # noqa: T201
        for kind, count in equivalent.items():
            print(f"{count} times without effect: {kind}, since {EQUIVALENT[kind]}")  # noqa: T201
    assert wrong == []
    assert set(counts) == set(KINDS)
