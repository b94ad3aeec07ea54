"""Baselines where each machine runs a part of the models."""

from __future__ import annotations

import pytest

from pytest_torchlens.cli import main

MODELS = """
import torch
from torch import nn

def zoo():
    return {name: (lambda: nn.Sequential(nn.Linear(4, 4), nn.%s())) for name in ("a", "b", "c")}
"""
ZOO = """
provider: "python:models.py:zoo"
defaults:
  input: {shape: [2, 4]}
"""
SHARDS = ("--deselect=net.yaml::b", "--deselect=net.yaml::c"), ("--deselect=net.yaml::a",)


def validate(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("net.yaml", "--lens-validate", "--lens-parts=replay", *arguments)


def with_activation(pytester: pytest.Pytester, name: str) -> None:
    pytester.path.joinpath("models.py").write_text(MODELS % name, encoding="utf-8")
    pytester.path.joinpath("net.yaml").write_text(ZOO, encoding="utf-8")


def test_shards_store_accept_and_compare_as_one_run_does(pytester: pytest.Pytester):
    with_activation(pytester, "ReLU")
    for shard in SHARDS:
        assert validate(pytester, *shard, "--lens-update=new").ret == 0
    whole = validate(pytester, "--lens-strict")
    assert whole.ret == 0
    whole.stdout.fnmatch_lines(["baselines: 3 identical*"])

    with_activation(pytester, "Tanh")
    for shard, changed in zip(SHARDS, (1, 2), strict=True):
        result = validate(pytester, *shard)
        result.assert_outcomes(failed=changed)
    assert main(["accept", "*"]) == 0  # of both: the second shard left what the first had waiting
    validate(pytester, "--lens-strict").stdout.fnmatch_lines(["baselines: 3 identical*"])
