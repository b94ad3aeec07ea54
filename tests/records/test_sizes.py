"""Bytes as text."""

from __future__ import annotations

import pytest

from pytest_torchlens.records import byte_size


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (100, "100 B"),
        (1023, "1,023 B"),
        (1024, "1.0 KB"),
        (259_584, "253.5 KB"),
        (2**20 - 1, "1.0 MB"),
        (61_100_840 * 4, "233.1 MB"),
        (2**50, "1,024.0 TB"),
    ],
)
def test_byte_size(count: int, text: str):
    assert byte_size(count) == text
