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
from tests.validate.damage_to_recording import KINDS


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
        return {"sum": x + one.softmax(-1) / top, "where": torch.cat([where, where]).clamp(min=1)}


class Decisions(nn.Module):
    """Questions of values, loops with a condition inside and without, a buffer, a layer of several passes."""

    def __init__(self):
        super().__init__()
        self.step = nn.Sequential(nn.Linear(5, 5), nn.Tanh())
        self.register_buffer("offset", torch.full((5,), 0.5))

    def forward(self, x):
        for _ in range(2):
            x = self.step(x) + self.offset
        if x.sum() > 0:
            x = x * x.abs().max().item()
        else:
            x = x - 1
            x = x.abs()
        while x.norm() < 4:
            x = x * 2
        return x


MODELS = {
    "decisions": (Decisions, (2, 5)),
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
        self.name = name
        self.model, self.x = build(), torch.rand(shape)
        self.state = ModelState(self.model, (self.x,))
        self.untouched = self.recorded()
        self.size = len(self.untouched[0].calls)

    def recorded(self):
        self.state.restore()
        recording = record(self.model, (self.x,), keep="all", seed=0, thorough=True)
        for value in (value for call in recording.calls for value in call.outputs if value.tensor is not None):
            value.tensor = value.tensor.detach().clone()  # it may be a buffer, which is put back now
        self.state.restore()
        return recording, ModelHistory(recording)

    def found(self, kind, number):
        """Damage the record; return None where that cannot be done, else what must be found and what is."""
        recording, history = self.untouched or self.recorded()
        with torch.no_grad():
            constants = [(source.live, source.live.clone()) for source in recording.sources]
        scene, computed = Scene(recording, history, number), set(vars(history))
        expected = KINDS[kind](scene)
        if expected is None:
            scene.restore()
            is_untouched = set(vars(history)) == computed  # what it has computed would not show later damage
            self.untouched = (recording, history) if is_untouched else None
            return None
        self.untouched = None
        try:
            parts = {part.name: part for part in check_recording(recording, history, [expected[0]])}
        finally:
            scene.restore()
        with torch.no_grad():
            for live, former in constants:
                live.copy_(former)
        return expected, parts

    def without_effect(self, kind, number):
        """Return whether a damaged call, made by hand with what an undamaged record kept, gives the same bits."""
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


# what may be without effect, and is then shown to be, each time that it is not found
EQUIVALENT = {
    "argument positions swapped": "addition and multiplication commute",
    "edge to another parent": "the other parent holds the same values: of a relu, what was positive before",
    "keyword changed": "a bound that no value reaches",
    "positional number changed": "a bound that no value reaches",
}


def place_of(label):
    """Return a label; of an operation without part in the result, whose function may be the damage, its number."""
    return label.partition(" ")[2] or label


class Tally:
    """How often which damage was done, what was not found, not named, and what was without effect."""

    def __init__(self):
        self.counts, self.equivalent = Counter(), Counter()
        self.missed, self.misnamed = [], []

    def add(self, patient, kind, number):
        """Do damage to one operation; return whether it could be done."""
        outcome = patient.found(kind, number)
        if outcome is None:
            return False
        (part, labels), parts = outcome
        failures = parts[part].failures
        if kind in EQUIVALENT and not failures and patient.without_effect(kind, number):
            self.equivalent[kind] += 1
            return True
        self.counts[kind] += 1
        if not failures:
            self.missed.append((patient.name, kind, sorted(labels)))
        named = {place_of(failure.operation) for failure in failures[: 1 if part == "replay" else None]}
        if not named & set(map(place_of, labels)):
            self.misnamed.append((patient.name, kind, sorted(labels), [(f.operation, f.message) for f in failures[:2]]))
        return True

    def sentences(self):
        """Yield the counts in words."""
        done, found = self.counts.total(), self.counts.total() - len(self.missed)
        named = self.counts.total() - len(self.misnamed)
        kinds = len(self.counts)
        wrong = {kind for _, kind, *_ in self.missed}
        yield f"{kinds} kinds of damage done {done} times: found {found} times, the place named {named} times"
        yield f"{kinds - len(wrong)} of {kinds} kinds found each time"
        for kind, count in self.equivalent.items():
            yield f"{count} times without effect: {kind}, since {EQUIVALENT[kind]}"


def test_the_catalogue_has_kinds_enough():
    assert len(KINDS) >= 200


@pytest.mark.parametrize("name", MODELS)
def test_undamaged_records_pass(name):
    recording, history = Patient(name).recorded()
    assert all(part.status.ok for part in check_recording(recording, history))


FIRST_PLACES = {"decisions": (1, 0, 2), "residual": (1, 0, 2, 5), "convolutions, training": (1, 5)}
FEW_MODELS_HAVE_IT = 12


def test_each_kind_of_damage_is_found_where_it_can_first_be_done():
    tally, left = Tally(), set(KINDS)
    for name, numbers in FIRST_PLACES.items():
        patient = Patient(name)
        for number in numbers:
            left -= {kind for kind in sorted(left) if tally.add(patient, kind, number)}
    assert (tally.missed, tally.misnamed) == ([], [])
    assert len(left) <= FEW_MODELS_HAVE_IT, sorted(left)
    assert [kind for kind in left if ": " in kind] == []  # every field


@pytest.mark.slow
@pytest.mark.sweep  # two to four minutes: `pytest -m sweep tests/validate`
def test_all_damage_to_every_operation_is_found(capsys):
    tally = Tally()
    for name in MODELS:
        patient = Patient(name)
        for kind in KINDS:
            for number in range(0, patient.size, 5 if ": " in kind else 1):  # of fields a fifth, for time
                tally.add(patient, kind, number)
    with capsys.disabled():
        print("", *tally.sentences(), *tally.missed, *tally.misnamed, sep="\n")  # noqa: T201
    assert set(tally.counts) == set(KINDS)
    assert len(tally.missed) <= 0.03 * tally.counts.total()
    assert len(tally.misnamed) <= 0.05 * tally.counts.total()
    assert tally.missed == []
