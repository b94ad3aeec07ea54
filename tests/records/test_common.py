"""The longest common part of two sequences, beside the textbook's table."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchlens.records import alignment

ITEMS = st.lists(st.sampled_from("abcd"), max_size=14)


def longest(first, second):
    table = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            table[i + 1][j + 1] = table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


def checked(first, second):
    found = list(alignment.common_places(first, second))
    assert all(first[i] == second[j] for i, j in found)
    assert all(i < k and j < m for (i, j), (k, m) in pairwise(found))
    return len(found)


@given(first=ITEMS, second=ITEMS)
def test_as_many_as_can_be(first, second):
    assert checked(first, second) == longest(first, second)


@given(first=ITEMS, second=ITEMS)
def test_bounded_work_leaves_a_common_part(first, second):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment, "_MOST", 3)
        assert checked(first, second) <= longest(first, second)


@pytest.mark.parametrize(("alone", "common_part"), [(100, 50), (700, 0)])
def test_hundreds_of_differences_in_a_row(alone, common_part):
    first = [f"a{number}" for number in range(alone)] + ["same"] * 50
    second = ["same"] * 50 + [f"b{number}" for number in range(alone)]
    assert checked(first, second) >= common_part
