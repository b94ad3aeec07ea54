"""Python 3.10 and ``-X no_debug_ranges`` keep lines of instructions but no columns: records say less, nothing wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECKS = """
from tests.history import test_numbers_decide as numbers, test_rules as rules, test_source_loops as loops

assert all(None in span for span in compile("x + 1", "", "eval").co_positions())
for name, program in rules.PROGRAMS.items():
    rules.test_layers(name)
for forward, expected in numbers.CONDITIONS.items():
    for escape, (statement, condition, branch) in zip(numbers.trace(forward).escapes, expected, strict=True):
        assert escape.statement in (statement, "expression"), (forward, escape)
        assert escape.condition in (condition, ""), (forward, escape)
        assert escape.branch in (branch, "undecided", ""), (forward, escape)
loops.test_two_loops_that_share_layers()
loops.test_an_inner_loop_counts_the_passes_of_all_its_runs()
print("checked", len(rules.PROGRAMS), "graphs")
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 is like that itself")
def test_without_columns():
    done = subprocess.run(
        [sys.executable, "-X", "no_debug_ranges", "-c", CHECKS],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "checked" in done.stdout
