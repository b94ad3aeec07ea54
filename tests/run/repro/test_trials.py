"""Trials in another process: one that never ends is told."""

from __future__ import annotations

import sys

import pytest
import torch

from pytest_torchlens.run.repro import trials
from pytest_torchlens.run.repro.trials import Bench
from pytest_torchlens.run.repro.trials import HangError

SOUND = "import torch\ndef compute():\n    return torch.ones(2)\n"
HANGS = "import time, torch\ndef compute():\n    time.sleep(20)\n    return torch.ones(2)\n"


def test_a_trial_that_hangs_ends_with_the_interpreters_name(monkeypatch: pytest.MonkeyPatch):
    with Bench(sys.executable, None) as bench:
        expected = [torch.ones(2)]
        assert [one.error for one in bench.run_all([(SOUND, {})] * 3, expected)] == ["", "", ""]
        monkeypatch.setattr(trials, "_SECONDS", 1)
        with pytest.raises(HangError, match="did not answer within 1 s: an operation hangs there"):
            bench.run_all([(SOUND, {}), (HANGS, {})], expected)


def test_a_trial_that_ends_its_process_takes_no_other_with_it():
    crashes = SOUND.replace("return", "import os; os._exit(3)")
    with Bench(sys.executable, None) as bench:
        outcomes = bench.run_all([(SOUND, {}), (crashes, {}), (SOUND, {})], [torch.ones(2)])
        assert [bool(one.error) for one in outcomes] == [False, True, False]
