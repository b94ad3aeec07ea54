"""Every small program has a snapshot that comes back from its text, and is what it was when it runs again."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from pytest_torchlens import log_forward_pass
from pytest_torchlens.baseline.compare import compare
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot_file import parse_snapshot
from pytest_torchlens.baseline.snapshot_file import to_text
from pytest_torchlens.baseline.take_snapshot import take
from pytest_torchlens.records import Change
from pytest_torchlens.run import find_environment
from tests.capture.programs import MODES
from tests.capture.programs import Program
from tests.capture.programs import Programs

NOT_HERE = {
    "InDistributedDataParallel": "needs a process group",
    "base_of_ragged_rows_written": "PyTorch keeps offsets of ragged rows from one run to the next",
}
FILES = [path.stem for path in sorted(Path(__file__).parents[1].joinpath("cases").glob("test_*.py"))]


def _programs() -> list[Program]:
    modules = [importlib.import_module(f"tests.capture.{name}") for name in FILES]
    tables = [value for module in modules for value in vars(module).values() if type(value) is Programs]
    return [
        pytest.param(program, id=name) for table in tables for name, program in table.items() if name not in NOT_HERE
    ]


def _snapshot(program: Program) -> Snapshot:
    model, args, kwargs = program.build()
    with MODES["no_grad" if program.mode == "any" else program.mode]():
        history = log_forward_pass(model, args, kwargs, layers_to_save=None, random_seed=5)
        return take(history, find_environment())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*sparse|.*Sparse|.*nested|.*quantize:UserWarning")
@pytest.mark.parametrize("program", _programs())
def test_a_snapshot_comes_back_and_is_the_same_again(program):
    first = _snapshot(program)
    text = to_text(first)
    assert to_text(parse_snapshot(text)) == text
    torch.manual_seed(4)
    again = compare(parse_snapshot(text), _snapshot(program))
    assert again.verdict in (Change.IDENTICAL, Change.UNSTABLE), again.findings
