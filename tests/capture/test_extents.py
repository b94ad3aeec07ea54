"""Which bytes tensors cover and share, by literal answers on both sides of each limit."""

from __future__ import annotations

import pytest
import torch

from pytest_torchlens.capture import record
from pytest_torchlens.capture.storage import Extent
from pytest_torchlens.capture.storage import overlap
from pytest_torchlens.capture.storage import reach
from pytest_torchlens.capture.values import Value
from pytest_torchlens.capture.write_log import WriteLog
from tests.models import Function

TABLE = torch.zeros(4, 4)
LONG = torch.zeros(600_000)
"""2.4 MB: more than is compared byte by byte."""


def extent(tensor: torch.Tensor) -> Extent:
    found = Extent.of(tensor)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        (TABLE[:2], TABLE[2:], False),
        (TABLE[:2], TABLE[1:], True),
        (TABLE[:, :2], TABLE[:, 2:], False),
        (TABLE[:, :3], TABLE[:, 2:], True),
        (TABLE[:, 0], TABLE[:, 3], False),
        (TABLE[:, 0], TABLE[1], True),
        (TABLE[:, 0], TABLE[1, 1:], False),
        (TABLE[::2], TABLE[1::2], False),
        (LONG[:300_000], LONG[300_000:], False),
        (LONG[:300_001], LONG[300_000:], True),
        (LONG[::2], LONG[1::2], False),
        (LONG[::2], LONG[::2][5:], True),
    ],
)
def test_whether_two_tensors_have_a_byte_in_common(one: torch.Tensor, other: torch.Tensor, shared: bool):
    assert overlap(extent(one), extent(other)) is shared
    assert overlap(extent(other), extent(one)) is shared


@pytest.mark.parametrize(
    ("one", "other", "covers"),
    [
        (TABLE, TABLE[1:3], True),
        (TABLE[1:3], TABLE, False),
        (TABLE[1:], TABLE[:2], False),
        (TABLE[:2], TABLE[1:], False),
        (TABLE[:3], TABLE[3:], False),
        (TABLE, TABLE[:, 1], True),
        (TABLE[:, 1], TABLE[:, 1], True),
        (TABLE[:, 0], TABLE[1, 1], False),
        (TABLE[:, :2], TABLE[1, 2], False),
    ],
)
def test_whether_a_tensor_has_every_byte_of_another(one: torch.Tensor, other: torch.Tensor, covers: bool):
    assert extent(one).covers(extent(other)) is covers


@pytest.mark.parametrize(
    ("tensor", "dense", "count"),
    [
        (TABLE, True, 16),
        (TABLE.t(), True, 16),
        (TABLE[:, :3], False, 15),
        (torch.zeros(4, 2)[:, 0], False, 7),
        (torch.zeros(4, 1)[:, 0], True, 4),
        (torch.zeros(2).expand(3, 2), True, 2),
        (torch.zeros(()), True, 1),
        (torch.zeros(0, 3), False, 0),
    ],
)
def test_whether_a_tensor_has_gaps_and_how_far_it_reaches(tensor: torch.Tensor, dense: bool, count: int):
    assert extent(tensor).dense is dense
    assert reach(tensor) == count
    assert extent(tensor).stop - extent(tensor).start == count * tensor.itemsize


def test_a_write_to_some_columns_is_found_by_each_read_that_overlaps_it_and_by_no_other():
    memory = torch.zeros(40)
    columns = [memory.as_strided((2, width), (13, 1), first) for first in range(13) for width in (1, 2, 3, 5, 8, 12)]
    extents = [extent(part) for part in columns]
    for written in extents:
        log, value = WriteLog(), Value(0, 0, 0, memory)
        log.add(0, value, written)
        for read in extents:
            assert log.since(-1, read) == [value] * overlap(written, read)


@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 3), (3, 0), (2, 3, 4), (5,), (), (1, 0, 0, 2)], ids=str)
def test_strides_of_a_value_are_those_of_its_tensor(shape: tuple[int, ...]):
    tensor = torch.zeros(shape)
    assert Value(0, 0, 0, tensor).stride == tensor.stride()


def test_a_write_to_one_half_of_a_long_tensor_is_no_parent_of_the_other():
    def halves(x: torch.Tensor) -> torch.Tensor:
        whole = x * 2
        whole[:300_000].add_(1)
        return whole[300_000:] * 3

    recording = record(Function(halves), (LONG,))
    (last,) = (call for call in recording.calls if call.info.name == "mul" and call.outputs[0].nbytes == 1_200_000)
    assert type(last.args[0]) is Value


@pytest.mark.parametrize("seed", [-(2**63), 2**63, 2**64 - 1])
def test_the_smallest_and_the_largest_seed(seed: int):
    assert record(Function(torch.rand_like), (torch.zeros(2),), seed=seed).seed == seed


@pytest.mark.parametrize("seed", [-(2**63) - 1, 2**64])
def test_seeds_beyond_them_are_refused_by_us(seed: int):
    with pytest.raises(ValueError, match=r"expected a seed from -2\*\*63 to 2\*\*64 - 1"):
        record(Function(torch.rand_like), (torch.zeros(2),), seed=seed)
