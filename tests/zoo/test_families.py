"""A model of each of many families, validated; `test_whole_zoos` has all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pytest_torchlens.run import RunOptions
from pytest_torchlens.run import run_case
from pytest_torchlens.zoo import load_zoo
from pytest_torchlens.zoo.catalog import shipped_folder

FAMILIES = {
    "timm_smallest": "test_byobnet test_convnext2 test_efficientnet_gn test_resnet test_mambaout test_nfnet test_vit "
    "test_vit_relpos test_coatnet cs3darknet_s starnet_s050 ese_vovnet19b_slim regnetx_002",
    "torchvision": "squeezenet1_1 shufflenet_v2_x0_5",
    "transformers": "bert gpt2 llama mixtral vit gemma2 dinov2 mamba jetmoe t5 whisper clip swin llava qwen2_vl",
    "transformers_generate": "llama_greedy bart_beam whisper_sample",
    "torch_geometric": "GAT",
    "diffusers": "UNet2DConditionModel FluxTransformer2DModel AutoencoderKL DDIMScheduler HeunDiscreteScheduler "
    "UniPCMultistepScheduler KarrasVeScheduler RePaintScheduler ScoreSdeVeScheduler VQDiffusionScheduler",
    "peft": "lora dora adalora ia3 loha lokr boft vera prefix_tuning prompt_tuning lora_of_parameters",
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors are not worth a second thread, which waits busily where cores are few."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("zoo", "name"), [pytest.param(zoo, name, id=f"{zoo}:{name}") for zoo in FAMILIES for name in FAMILIES[zoo].split()]
)
@pytest.mark.filterwarnings("ignore")  # of the libraries
def test_a_model_holds(zoo: str, name: str):
    pytest.importorskip(zoo.removesuffix("_smallest").removesuffix("_generate"))
    report = run_case(load_zoo(shipped_folder() / f"{zoo}.yaml").case(name), RunOptions(validate=True)).report
    assert report.error is None
    assert report.verdict is not None
    assert report.verdict.status.ok, report.verdict.words
    assert report.verdict.part("perturbation").checked
