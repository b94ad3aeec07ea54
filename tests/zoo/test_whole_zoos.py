"""Every model of every shipped zoo: hours, so CI leaves it out; the tables in docs/zoo are what came of it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

pytestmark = [pytest.mark.zoo, pytest.mark.sweep]

ZOOS = ["torchvision", "timm_smallest", "transformers", "torchaudio", "torch_geometric", "segmentation_models_pytorch"]
ZOOS += ["diffusers", "peft", "transformers_generate"]
LIBRARIES = {"timm_smallest": "timm", "transformers_generate": "transformers"}


def needing(zoo: str):
    """Return a parameter that is skipped where its library is not installed; nothing is imported here."""
    library = LIBRARIES.get(zoo, zoo)
    return pytest.param(zoo, marks=pytest.mark.skipif(find_spec(library) is None, reason=f"needs {library}"))


@pytest.mark.parametrize("zoo", list(map(needing, ZOOS)))
def test_all_models_hold(pytester: pytest.Pytester, zoo: str):
    result = pytester.runpytest_subprocess(f"--lens-zoo={zoo}", "--lens-validate")
    assert result.ret == pytest.ExitCode.OK


@pytest.mark.skipif(not all(map(find_spec, ("timm", "torchvision", "transformers"))), reason="needs the extra zoo")
def test_a_sample_of_all_families_holds(pytester: pytest.Pytester):
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
