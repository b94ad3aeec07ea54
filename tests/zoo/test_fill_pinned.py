"""Weights are pinned by literal values, on both sides of each chunk of 262,144: other weights move all baselines."""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import nn

from pytest_torchlens.zoo.fill import fill_model
from pytest_torchlens.zoo.fill import fill_tensor

LARGE = {
    0: 0.0988190770149231,
    1: 0.6956019401550293,
    262_143: 0.2532321810722351,
    262_144: 0.27460289001464844,
    262_145: 0.8809521794319153,
    524_287: 0.05432552099227905,
    524_288: 0.15660220384597778,
    524_289: 0.7811549305915833,
    1_200_001: 0.9605141282081604,
    1_200_002: 0.8751917481422424,
}
"""Numbers of a tensor of shape (3, 400001), by place."""
DIGEST = "5a6963f0a64110e7eaa39e7a62f2a9d3926247956806786a0144ca6197ba4c9f"


@pytest.fixture(scope="module")
def large() -> torch.Tensor:
    return fill_tensor((3, 400_001)).flatten()


@pytest.mark.parametrize("place", LARGE)
def test_numbers_beyond_the_first_chunk_are_pinned(large: torch.Tensor, place: int):
    assert large[place].item() == LARGE[place]


def test_every_number_of_a_large_tensor_is_pinned_by_a_digest(large: torch.Tensor):
    assert hashlib.sha256(large.numpy().astype("<f4").tobytes()).hexdigest() == DIGEST


def test_the_last_number_of_an_odd_count_is_pinned():
    assert fill_tensor((262_145,))[-2:].tolist() == [0.08667361736297607, 0.379766583442688]


def test_complex_numbers_are_pairs_of_real_ones():
    assert fill_tensor((3,), torch.complex64).tolist() == [
        complex(0.1529078483581543, 0.8971185088157654),
        complex(0.9935739636421204, 0.616169273853302),
        complex(0.22937488555908203, 0.6204837560653687),
    ]


def test_the_weights_of_a_model_are_pinned():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    fill_model(model)
    assert {name: tensor.flatten().tolist() for name, tensor in model.state_dict().items()} == {
        "0.weight": [
            *(-0.7083390355110168, 0.45222949981689453, 0.29824697971343994),
            *(0.5592081546783447, 0.8393739461898804, -0.6824609637260437),
        ],
        "0.bias": [-0.0659242570400238, -0.03092893213033676, -0.014758706092834473],
        "1.weight": [0.8234280943870544, 0.9108030200004578, 0.9970591068267822],
        "1.bias": [0.08639464527368546, -0.009072698652744293, -0.03024590015411377],
        "1.running_mean": [0.08376938849687576, 0.01478799432516098, 0.07832091301679611],
        "1.running_var": [1.4395471811294556, 1.1532368659973145, 1.4050356149673462],
        "1.num_batches_tracked": [0],
    }
