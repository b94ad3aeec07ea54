"""What a note of old names holds for: the environments that were measured, and the weights that were filled anew."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from pytest_torchlens.baseline.compare import compare
from pytest_torchlens.baseline.old_names import note_old_names
from pytest_torchlens.baseline.old_names import renamed_weights
from pytest_torchlens.baseline.snapshot import EnvironmentNumbers
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot_file import parse_snapshot
from pytest_torchlens.baseline.snapshot_file import to_text
from pytest_torchlens.baseline.store import merge_snapshots
from pytest_torchlens.records import Change
from pytest_torchlens.zoo.fill import fill_model
from tests.baseline.samples import an_input
from tests.baseline.samples import snapshot_of

ONE, OTHER = "cpu one", "cpu other"


class Net(nn.Module):
    def __init__(self, scale: str, steps: str, size: float = 1.0) -> None:
        super().__init__()
        self.names = scale, steps
        setattr(self, scale, nn.Parameter(torch.ones(4)))
        self.register_buffer(steps, torch.arange(4.0) * size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, steps = (getattr(self, name) for name in self.names)
        return (x * scale).exp() + steps


def taken(model: Net, *classes: str, names: dict[str, str] | None = None) -> Snapshot:
    fill_model(model, 0, names)
    found = snapshot_of(model.eval(), an_input(2, 4))
    (block,) = found.measured.values()
    return replace(found, measured=dict.fromkeys(classes, block))


def with_error(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot in which `exp` and what follows compute something else."""

    def wrong(block: EnvironmentNumbers) -> EnvironmentNumbers:
        others = {
            name: replace(
                block.numbers[name],
                digest="f" * 16,
                rms=1.1 * block.numbers[name].rms,
                sketch=tuple(1.1 * value for value in block.numbers[name].sketch),
            )
            for name in ("/exp", "/add", "/output")
        }
        return replace(block, numbers=block.numbers | others)

    return replace(snapshot, measured={name: wrong(block) for name, block in snapshot.measured.items()})


@pytest.fixture(scope="module")
def before() -> Snapshot:
    return taken(Net("scale", "steps"), ONE, OTHER)


def noted(before: Snapshot, name: str, *, is_wrong: bool = False) -> Snapshot:
    after, under = taken(Net("gain", "steps"), name), taken(Net("gain", "steps"), name, names={"gain": "scale"})
    found = note_old_names(before, after, renamed_weights(before, after), with_error(under) if is_wrong else under)
    return parse_snapshot(to_text(found))


def test_a_clean_environment_hides_no_other(before: Snapshot):
    clean, wrong = noted(before, OTHER), noted(before, ONE, is_wrong=True)
    assert (compare(before, clean).verdict, compare(before, clean).outputs.same) == (Change.REFACTOR, True)
    assert compare(before, wrong).verdict is Change.STRUCTURE
    for sides in ((clean, wrong), (wrong, clean)):
        merged = parse_snapshot(to_text(merge_snapshots(*sides)))
        assert merged.old_names.classes == (ONE, OTHER)
        found = compare(before, merged)
        assert (found.verdict, found.outputs.within) == (Change.STRUCTURE, False)
        assert "compared with the values of the old names: scale → gain" in found.notes


def test_an_environment_that_was_not_measured_is_not_taken_as_equal(before: Snapshot):
    clean = noted(before, OTHER)
    (block,) = clean.measured.values()
    found = compare(before, replace(clean, measured={ONE: block}))
    assert found.verdict is Change.STRUCTURE
    assert any(note.startswith("renamed, with other values: scale → gain (") for note in found.notes)


def test_names_of_constants_are_not_noted(before: Snapshot):
    names = {"gain": "scale", "places": "steps"}
    after = taken(Net("gain", "places", 1.1), ONE)
    assert renamed_weights(before, after) == names
    found = note_old_names(before, after, names, taken(Net("gain", "places", 1.1), ONE, names=names))
    assert found.old_names.names == {"gain": "scale"}
    assert "compared with the values of the old names: scale → gain" in compare(before, found).notes
    constant = taken(Net("scale", "places", 1.1), ONE)
    found = note_old_names(before, constant, {"places": "steps"}, constant)
    assert found == constant
    assert any(note.startswith("renamed, with other values: steps → places (") for note in compare(before, found).notes)
