"""Every model of every shipped zoo: hours, so CI leaves it out; the tables in docs/zoo are what came of it."""

from __future__ import annotations

import pytest

ZOOS = ["torchvision", "timm_smallest", "transformers", "torchaudio", "torch_geometric", "segmentation_models_pytorch"]
LIBRARIES = {"timm_smallest": "timm"}


@pytest.mark.zoo
@pytest.mark.sweep
@pytest.mark.parametrize("zoo", ZOOS)
def test_all_models_hold(pytester: pytest.Pytester, zoo: str):
    pytest.importorskip(LIBRARIES.get(zoo, zoo))
    result = pytester.runpytest_subprocess(f"--lens-zoo={zoo}", "--lens-validate")
    assert result.ret == pytest.ExitCode.OK


@pytest.mark.zoo
def test_a_sample_of_all_families_holds(pytester: pytest.Pytester):
    for library in ("timm", "torchvision", "transformers"):
        pytest.importorskip(library)
    result = pytester.runpytest_subprocess(
        "--lens-zoo=timm_smallest",
        "--lens-zoo=torchvision",
        "--lens-zoo=transformers",
        "--lens-size=fast",
        "--lens-sample=120",
        "--lens-validate",
    )
    assert result.ret == pytest.ExitCode.OK
    assert result.parseoutcomes()["passed"] == 120
