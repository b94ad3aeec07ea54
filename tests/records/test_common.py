"""The longest common part of two sequences, beside the textbook's table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchlens.records import common

ITEMS = st.lists(st.sampled_from("abcd"), max_size=14)


def longest(first, second):
    table = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            table[i + 1][j + 1] = table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


def checked(first, second):
    found = list(common.common_places(first, second))
    assert all(first[i] == second[j] for i, j in found)
    assert all(i < k and j < m for (i, j), (k, m) in zip(found, found[1:], strict=False))
    return len(found)


@given(first=ITEMS, second=ITEMS)
def test_as_many_as_can_be(first, second):
    assert checked(first, second) == longest(first, second)


@given(first=ITEMS, second=ITEMS)
def test_bounded_work_leaves_a_common_part(first, second):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(common, "_MOST", 3)
        assert checked(first, second) <= longest(first, second)


def test_hundreds_of_differences_in_a_row():
    first = [f"a{number}" for number in range(700)] + ["same"] * 50
    second = ["same"] * 50 + [f"b{number}" for number in range(700)]
    checked(first, second)
    assert checked([*first, *"xyz"], [*first[:100], *"xyz"]) == 103
