"""The main job as a newcomer types it, in a process of its own."""

from __future__ import annotations

import pytest

from pytest_torchlens.records import RunReport
from pytest_torchlens.records import from_json


@pytest.mark.parametrize("workers", [[], pytest.param(["-n2"], marks=pytest.mark.slow)])
def test_the_first_command(pytester: pytest.Pytester, workers: list[str]):
    result = pytester.runpytest_subprocess(
        "--lens-zoo", "torchvision:resnet18,alexnet", "--lens-validate", "--lens-report=lens-report", *workers
    )
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*alexnet *61.1M *22 *passed*", "*resnet18 *11.7M *69 *passed*"])
    folder = pytester.path / "lens-report"
    report = from_json((folder / "report.json").read_text(encoding="utf-8"), RunReport)
    alexnet = next(model for model in report.models if model.name == "alexnet")
    assert alexnet.verdict is not None
    assert alexnet.verdict.operations_checked >= 22
    for name in ("index.html", "models/torchvision/alexnet.html", "models/torchvision/resnet18.html"):
        assert (folder / name).stat().st_size > 1000


@pytest.mark.zoo
def test_a_model_of_each_kind(pytester: pytest.Pytester):
    result = pytester.runpytest_subprocess(
        "--lens-zoo=torchvision:alexnet,resnet18,resnet50,googlenet,densenet121,mobilenet_v3_small,shufflenet_v2_x0_5",
        "--lens-zoo=torchvision:efficientnet_b0,convnext_tiny,swin_v2_t,vit_b_16,maxvit_t,fcn_resnet50",
        "--lens-zoo=torchvision:fasterrcnn_mobilenet_v3_large_320_fpn,raft_small,r3d_18",
        "--lens-zoo=timm:test_*",
        "--lens-validate",
        timeout=1200,
    )
    assert result.ret == pytest.ExitCode.OK
