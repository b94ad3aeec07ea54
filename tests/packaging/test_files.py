from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST = 600


@pytest.mark.parametrize("folder", ["pytest_torchlens", "tests", "benchmarks"])
def test_no_file_is_longer_than_a_reader_can_hold(folder: str) -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {path: length for path, length in lengths.items() if length > LONGEST} == {}
