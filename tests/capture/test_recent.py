"""Activations of which only the most recent are saved: how much stays, and with which contents."""

from __future__ import annotations

import torch

from pytest_torchlens.capture import record
from tests.models import Function

MEBIBYTE = 2**18  # in numbers of four bytes


def saved_sums(program):
    """Return name and sum of each saved output."""
    recording = record(Function(program), (torch.ones(1),), keep="recent")
    outputs = [(call.info.name, value.tensor) for call in recording.calls for value in call.outputs]
    return [(name, tensor.sum().item() / MEBIBYTE) for name, tensor in outputs if tensor is not None]


def test_16_mebibytes_stay():
    def program(x):
        for number in range(10):
            y = torch.full((4 * MEBIBYTE,), float(number))
        return y

    assert saved_sums(program) == [("full", 4.0 * number) for number in (6, 7, 8, 9)]


def test_the_last_stays_however_large():
    def program(x):
        torch.zeros(1)
        return torch.ones(17 * MEBIBYTE)

    assert saved_sums(program) == [("ones", 17)]


def test_a_write_after_an_alias_was_let_go_of():
    def program(x):
        y = torch.ones(10 * MEBIBYTE)
        part = y[: 5 * MEBIBYTE]
        z = torch.zeros(10 * MEBIBYTE)
        part.add_(1)
        return z

    assert saved_sums(program) == [("zeros", 0), ("add_", 10)]
