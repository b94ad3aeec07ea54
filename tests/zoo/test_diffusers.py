"""The zoo of diffusers: its models are named in full, and a loop calls its denoiser in every step."""

from __future__ import annotations

import pytest
import torch

from pytest_torchlens.zoo import TensorSpec
from pytest_torchlens.zoo import ZooError
from pytest_torchlens.zoo.diffusers import PIXELS
from pytest_torchlens.zoo.diffusers import TOKENS

diffusers = pytest.importorskip("diffusers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the library
ZOO = "diffusers"


def test_every_exported_model_and_scheduler_has_a_name(zoo):
    exported = {
        name
        for name in dir(diffusers)
        if isinstance(kind := getattr(diffusers, name, None), type)  # with onnxruntime one is listed that is not there
        and issubclass(kind, diffusers.ModelMixin | diffusers.SchedulerMixin)
        and kind.__module__.startswith(("diffusers.models.", "diffusers.schedulers."))  # others are parts of a pipeline
        and kind not in {diffusers.ModelMixin, diffusers.SchedulerMixin}
    }
    assert exported <= set(zoo.names)


def test_each_rule_is_about_a_model_and_each_model_has_an_input_or_a_reason(zoo):
    assert zoo.unused_globs() == []
    models = [name for name in zoo.names if not name.endswith("Scheduler")]
    without = [name for name in models if zoo.case(name).settings.input is None]
    assert all(zoo.case(name).settings.skip for name in without)


def test_families_are_the_folders_of_the_library(zoo):
    assert zoo.case("UNet2DModel").family == "unets"
    assert zoo.case("AutoencoderKL").family == "autoencoders"
    assert zoo.case("DDIMScheduler").family == "schedulers"


@pytest.mark.parametrize(
    ("scheduler", "calls"), [("DDIMScheduler", 4), ("HeunDiscreteScheduler", 7), ("SCMScheduler", 2)]
)
def test_a_loop_calls_its_denoiser_in_every_step(zoo, history_of, scheduler, calls):
    history = history_of(zoo.case(scheduler))
    assert history["denoiser.conv_in:1"].layer_passes_total == calls
    assert history["denoiser.conv_in:1"].parent_param_addresses == ("denoiser.conv_in.weight", "denoiser.conv_in.bias")


def test_a_loop_of_tokens_calls_a_transformer(zoo, history_of):
    history = history_of(zoo.case("DiscreteDDIMScheduler"))
    assert history["denoiser.head:1"].layer_passes_total == 4
    assert history["output_1"].tensor_dtype == "torch.int64"


def test_inputs_of_loops(zoo):
    for name, spec in [("DDIMScheduler", PIXELS), ("EntropyBoundScheduler", TOKENS)]:
        case = zoo.case(name)
        assert case.provider.default_input(case.build(), {}) == spec
    assert zoo.case("AmusedScheduler").settings.input == TensorSpec((1, 16), "int64", 15.0, 16.0)


def test_a_loop_starts_anew_each_time(zoo):
    case = zoo.case("UniPCMultistepScheduler")
    model = case.build()
    args = case.make_inputs(model).args
    with torch.no_grad():
        assert torch.equal(model(*args), model(*args))


def test_a_loop_has_no_pretrained_weights(zoo):
    with pytest.raises(ZooError, match="a denoising loop has no pretrained weights"):
        zoo.provider.build("DDIMScheduler", {}, pretrained=True)
