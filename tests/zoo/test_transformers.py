from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pytest_torchlens.zoo import ModelCase
from pytest_torchlens.zoo import Zoo
from pytest_torchlens.zoo import load_zoo
from pytest_torchlens.zoo.shrink import small_config
from pytest_torchlens.zoo.transformers_inputs import default_arguments

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the library
ZOO = "transformers"


def forward(case: ModelCase) -> tuple[Any, dict[str, Any], Any]:
    model = case.build()
    _, kwargs = case.make_inputs(model)
    with torch.no_grad():
        return model, kwargs, model(**kwargs)


def config_of(name: str, **fields: Any) -> Any:
    from transformers.models.auto import CONFIG_MAPPING

    return small_config(CONFIG_MAPPING[name], fields)


def test_all_architectures_are_listed_and_every_rule_fits_one(zoo: Zoo):
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    assert set(zoo.names) == set(MODEL_MAPPING_NAMES)
    assert not zoo.unused_globs()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("bert", {"input_ids"}),
        ("t5", {"input_ids", "decoder_input_ids"}),
        ("whisper", {"input_features", "decoder_input_ids"}),
        ("wav2vec2", {"input_values"}),
        ("vit", {"pixel_values"}),
        ("swin", {"pixel_values"}),
        ("clip", {"input_ids", "pixel_values"}),
        ("layoutlm", {"input_ids", "bbox"}),
        ("videomae", {"pixel_values"}),
        ("sam", {"pixel_values"}),
    ],
)
def test_a_model_is_small_and_gets_what_it_takes(zoo: Zoo, name: str, arguments: set[str]):
    model, kwargs, output = forward(zoo.case(name))
    assert set(kwargs) == arguments
    assert sum(parameter.numel() for parameter in model.parameters()) < 1_000_000
    assert all(torch.isfinite(value).all() for value in output.values() if isinstance(value, torch.Tensor))


@pytest.mark.parametrize("name", ["llava", "qwen2_vl", "idefics2"])
def test_a_text_has_a_token_for_each_part_of_an_image(zoo: Zoo, name: str):
    model, kwargs, _ = forward(zoo.case(name))
    token = getattr(model.config, "image_token_id", None) or model.config.image_token_index
    assert (kwargs["input_ids"] == token).sum() > 1
    assert (kwargs["input_ids"] != token).sum() == 16
    with pytest.raises(ValueError, match="tokens"):
        model(**kwargs | {"input_ids": kwargs["input_ids"][:, 3:]})


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("whisper", (1, 80, 256)),
        ("glmasr_encoder", (1, 128, 64)),
        ("parakeet_encoder", (1, 64, 80)),
        ("speech_to_text", (1, 64, 80)),
        ("wav2vec2-bert", (1, 64, 160)),
        ("univnet", (1, 64, 100)),
    ],
)
def test_a_spectrogram_has_the_axes_in_the_order_that_the_model_accepts(zoo: Zoo, name: str, shape: tuple[int, ...]):
    _, kwargs, _ = forward(zoo.case(name))
    assert kwargs["input_features"].shape == shape


def test_the_trial_of_a_spectrogram_leaves_the_model_and_the_generator_as_they_were():
    from transformers import UnivNetModel

    model = UnivNetModel(config_of("univnet")).train()
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(0)
    default_arguments(model)
    assert torch.equal(torch.rand(1), torch.rand(1, generator=torch.Generator().manual_seed(0)))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_trial_leaves_the_generators_of_numpy_and_of_python_as_they_were():
    from transformers import Wav2Vec2BertModel

    model = Wav2Vec2BertModel(config_of("wav2vec2-bert")).train()
    draws = []
    model.register_forward_pre_hook(lambda *_: draws.append((np.random.rand(), random.random())))  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    default_arguments(model)
    assert draws == [(np.random.rand(), random.random())]  # noqa: NPY002


def test_a_layer_of_each_kind_is_kept():
    config = config_of("gemma3_text")
    assert config.layer_types == ["sliding_attention", "full_attention"]
    assert config.num_hidden_layers == 2
    assert config_of("axk1").mlp_layer_types == ["dense", "sparse"]
    vision = config_of("sam").vision_config
    assert (vision.num_hidden_layers, vision.global_attn_indexes) == (2, [1])


def test_heads_stay_shared_or_separate():
    llama, mistral = config_of("llama"), config_of("mistral")
    assert llama.num_key_value_heads == llama.num_attention_heads == 4
    assert (mistral.num_attention_heads, mistral.num_key_value_heads) == (4, 2)


def test_widths_that_grow_keep_their_ratios():
    config = config_of("convnext")
    assert list(config.hidden_sizes) == [12, 24, 48, 96]
    assert list(config.depths) == [2, 2, 2, 2]


def test_given_fields_stay_as_they_are_also_in_an_inner_configuration():
    config = config_of("llava", text_config={"num_hidden_layers": 3}, image_token_index=7)
    assert config.text_config.num_hidden_layers == 3
    assert config.text_config.hidden_size == config.vision_config.hidden_size == 64
    assert config.image_token_index == 7
    other = config_of("llava", vision_config={"model_type": "siglip_vision_model", "hidden_size": 32})
    assert (other.vision_config.model_type, other.vision_config.hidden_size) == ("siglip_vision_model", 32)


def test_special_tokens_lie_in_the_vocabulary_and_apart():
    config = config_of("qwen2_vl")
    tokens = [config.image_token_id, config.video_token_id, config.vision_start_token_id]
    assert all(96 <= token < 128 for token in tokens)
    assert len(set(tokens)) == 3


def test_what_cannot_run_says_why(pytester: pytest.Pytester, zoo: Zoo):
    assert sum(zoo.case(name).settings.skip is None for name in zoo.names) > 0.95 * len(zoo.names)
    result = pytester.runpytest("--lens-zoo=transformers:layoutlmv2,sam2_video", "--lens-validate", "-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines_random(["*detectron2*", "*session*"])


def test_a_new_architecture_appears_by_itself(zoo: Zoo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from transformers.models.auto import modeling_auto

    monkeypatch.setitem(modeling_auto.MODEL_MAPPING_NAMES, "of_tomorrow", "BertModel")
    (tmp_path / "all.yaml").write_text("provider: transformers")
    assert "of_tomorrow" in load_zoo(tmp_path / "all.yaml").names
