"""Activations of which only the most recent are saved: how much stays, and with which contents."""

from __future__ import annotations

import torch

from pytest_torchlens.capture import record
from pytest_torchlens.capture.storage import storage_key
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
        y = torch.ones(20 * MEBIBYTE)
        part = y[: 5 * MEBIBYTE]  # the last stays
        part.add_(1)
        return part

    assert saved_sums(program) == [("add_", 10)]


def held_mebibytes(program, x):
    """Return the size of all memory that saved outputs hold and the input does not."""
    recording = record(Function(program), (x,), keep="recent")
    tensors = [value.tensor for call in recording.calls for value in call.outputs if value.tensor is not None]
    storages = {storage_key(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}
    storages.pop(storage_key(x), None)
    return len(tensors), sum(storages.values()) / (4 * MEBIBYTE)


def test_a_view_counts_as_all_the_memory_that_it_holds():
    def program(x):
        for _ in range(10):
            torch.ones(4 * MEBIBYTE)[:1]
        return x + 1

    assert held_mebibytes(program, torch.ones(1))[1] <= 16


def test_views_of_one_memory_count_once():
    def program(x):
        y = torch.ones(10 * MEBIBYTE)
        for _ in range(5):
            y = y.view(-1)
        return y

    assert held_mebibytes(program, torch.ones(1)) == (6, 10)


def test_memory_of_the_input_does_not_count():
    def program(x):
        y = torch.ones(10 * MEBIBYTE)
        return y, x[1:], x[2:]

    assert held_mebibytes(program, torch.ones(20 * MEBIBYTE)) == (3, 10)


def test_memory_that_grew_counts_as_it_is():
    def program(x):
        torch.ones(10 * MEBIBYTE)
        y = torch.ones(1)
        view = y[:]
        y.resize_(10 * MEBIBYTE)
        return view

    assert held_mebibytes(program, torch.ones(1))[1] <= 16


def test_4_mebibytes_are_copied_before_writes_and_then_outputs_are_let_go():
    def program(x):
        for number in range(4):
            y = torch.full((2 * MEBIBYTE,), float(number))
            y.add_(10)
        return y

    kept = [("full", 0), ("add_", 20), ("full", 2), ("add_", 22), ("add_", 24), ("add_", 26)]
    assert saved_sums(program) == kept


def test_a_source_is_copied_however_large():
    x = torch.ones(6 * MEBIBYTE)
    recording = record(Function(lambda x: x.view(-1).add_(1)), (x,), keep="recent")
    assert [source.value.tensor.sum().item() / MEBIBYTE for source in recording.sources] == [6]
    assert x.sum().item() / MEBIBYTE == 12
