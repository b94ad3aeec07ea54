"""Tiny models of the library ``transformers``, built from configurations with small sizes."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING
from typing import Any
from typing import cast

from pytest_torchlens.zoo.errors import ZooError
from pytest_torchlens.zoo.inputs import InputSpec
from pytest_torchlens.zoo.inputs import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from torch import nn


SHRINKABLE = (
    "afmoe aimv2_vision_model albert apertus apertus1p5_text arcee aria aria_text audioflamingo3 aya_vision bart "
    "beam beit bert bert-generation big_bird bigbird_pegasus biogpt bitnet bloom camembert canine "
    "chinese_clip_vision_model clip_text_model clip_vision_model cohere cohere2 cohere2_moe convbert cosmos3_omni "
    "cpmant ctrl cwm data2vec-audio data2vec-text data2vec-vision deberta deberta-v2 deepseek_v4 deepseek_vl "
    "deepseek_vl_hybrid deit diffllama dinov2 dinov2_with_registers dinov3_vit distilbert doge dory dpr dpt "
    "electra ernie ernie4_5 ernie4_5_moe eurobert exaone exaone4 exaone4_5 exaone_moe falcon_h1 falcon_mamba "
    "fastspeech2_conformer flaubert flava flex_olmo flint fnet fsmt fuyu gemma gemma2 gemma3 gemma3_text git glm "
    "glm4 glm4_moe glmasr got_ocr2 gpt-sw3 gpt2 gpt_bigcode gpt_neox gpt_neox_japanese gpt_oss granite "
    "granite_docling_text granite_speech granite_speech_plus granite_swa granitemoe granitemoe_swa "
    "granitemoeshared gte helium higgs_audio_v2 hrm_text hubert hy_v3 hyperclovax hyperclovax_vision_v2 ibert "
    "idefics2 idefics3 ijepa imagegpt inkling2_loop_text inkling2_text inkling_text internlm3 internvl "
    "internvl_vision iquestcoder jais2 jetmoe jina_embeddings_v3 kolibri1 kosmos-2.5 laguna lara_mini layoutlm "
    "led lfm2 lfm2_vl lighton_ocr llama llama4_text llava llava_next llava_next_video llava_onevision longformer "
    "mamba markuplm mbart megatron-bert mellum mimo_v2_flash minimax minimax_m2 minimax_m3_vl minimax_m3_vl_text "
    "ministral3 mistral mistral3 mixtral mlcd mlcd_vision_model mllama mobilebert mobilenet_v1 mobilenet_v2 "
    "mobilevit modernbert modernbert-decoder modernvbert molmo2_text moshi moss_transcribe_diarize mpnet mpt mra "
    "muse_glimmer_text musicflamingo mvp nanochat nemotron_h neomme nomic_bert nystromformer olmo olmo2 olmo3 "
    "olmo_hybrid olmoe omniasr openai-gpt openai_privacy_filter opt ovis2 paligemma persimmon phi phi3 phimoe "
    "pixio pixtral plbart qianfan_ocr qianfan_ocr_vision qwen2 qwen2_audio qwen2_moe qwen3 qwen3_asr qwen3_moe "
    "qwen3_vl qwen3_vl_moe qwen3_vl_moe_text qwen3_vl_text radio rembert roberta roberta-prelayernorm roformer "
    "rwkv sam3_vision_model sam3_vit_model sam_hq_vision_model sam_vision_model sapiens2 sarvam_moe seed_oss sew "
    "sew-d siglip_vision_model smollm3 smolvlm solar_open splinter squeezebert stablelm starcoder2 swiftformer "
    "tapas tipsv2 tipsv2_text_model tipsv2_vision_model ultrabert ultravbert unispeech unispeech-sat "
    "unlimited_ocr vaultgemma video_llama_3 video_llava vipllava visual_bert vit vit_mae vit_msn vitdet voxtral "
    "wav2vec2 wav2vec2-conformer wavlm xglm xlm xlm-roberta xlm-roberta-xl yoso "
).split()
"""Architectures of transformers 5.24 that could be built small and called."""


VOCABULARY = 128
TOKENS = TensorSpec((1, 16), "int64", 5, VOCABULARY - 1)
"""Low ids are reserved: padding, begin, end."""
IMAGE_SIZE = 32
SMALL_VALUES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "emb_dim", "encoder_hidden_size"), 64),
    **dict.fromkeys(("projection_dim", "embedding_size", "pooler_hidden_size", "hidden_dim", "text_embed_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_encoder_layers", "num_decoder_layers", "num_hidden_groups", "decoder_num_hidden_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "decoder_num_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim"), 128),
    **dict.fromkeys(("decoder_intermediate_size", "ffn_hidden_size", "moe_intermediate_size", "hidden_dim_ffn"), 128),
    "num_key_value_heads": 2,
    "head_dim": 16,
    "d_kv": 16,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "type_vocab_size": 2,
    "image_size": IMAGE_SIZE,
    "patch_size": 8,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Fields of many configurations, with small values that are consistent."""


class TransformersProvider:
    """One tiny model of each architecture; nothing is downloaded."""

    def __init__(self, library: ModuleType) -> None:
        self._auto = importlib.import_module(f"{library.__name__}.models.auto")

    def names(self) -> list[str]:
        """Return the architectures that can be built small, by the library's names."""
        known = self._auto.modeling_auto.MODEL_MAPPING_NAMES
        return [name for name in SHRINKABLE if name in known]

    def build(self, name: str, kwargs: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
        """Return the bare model of an architecture; `kwargs` are fields of its configuration."""
        if pretrained:
            raise ZooError("a tiny model has no pretrained weights: set 'weights: random' or 'weights: init'")
        config = _small_config(self._auto.CONFIG_MAPPING[name], kwargs)
        return cast("nn.Module", self._auto.AutoModel.from_config(config))

    def default_input(self, model: nn.Module, kwargs: Mapping[str, Any]) -> InputSpec:
        """Return tokens, an image or sound, depending on the name of the model's main input."""
        return {str(model.main_input_name): _INPUTS.get(str(model.main_input_name), TOKENS)}


_INPUTS = {
    "pixel_values": TensorSpec((1, 3, IMAGE_SIZE, IMAGE_SIZE)),
    "input_values": TensorSpec((1, 2000), low=-1.0),
}


def _small_config(kind: Any, fields: Mapping[str, Any]) -> Any:
    """Return a configuration of class `kind` with small values, and small configurations inside it."""
    default = kind()
    small = {name: value for name, value in SMALL_VALUES.items() if getattr(default, name, None) is not None}
    inner = {
        name: _small_config(type(value), fields.get(name, {})).to_dict()
        for name, value in vars(default).items()
        if hasattr(value, "to_diff_dict")
    }
    return kind(**{**small, **inner, **{name: value for name, value in fields.items() if name not in inner}})
