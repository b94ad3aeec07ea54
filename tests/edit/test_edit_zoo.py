"""Edits at random operations of real models: by replay and live, what a mode gives that makes the same edit.

``pytest -m sweep`` runs all 62; they take four minutes.
"""

from __future__ import annotations

import random

import pytest
import torch

import pytest_torchlens as tl
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.leaves import walk
from tests.replay.edits import edit_of

timm = pytest.importorskip("timm")
torchvision = pytest.importorskip("torchvision")
transformers = pytest.importorskip("transformers")

PER_MODEL = 10

TORCHVISION = {
    **dict.fromkeys(["alexnet", "resnet18", "mobilenet_v3_small", "mobilenet_v2", "squeezenet1_0", "vgg11"], 64),
    **dict.fromkeys(["shufflenet_v2_x0_5", "densenet121", "efficientnet_b0", "regnet_y_400mf", "mnasnet0_5"], 64),
    **dict.fromkeys(["convnext_tiny", "resnext50_32x4d", "wide_resnet50_2", "googlenet"], 64),
    **dict.fromkeys(["swin_t", "swin_v2_t", "vit_b_16", "maxvit_t"], 224),
    "inception_v3": 96,
}
TIMM = {
    **dict.fromkeys(["starnet_s050", "lcnet_035", "mobilenetv3_small_050", "resnetv2_18", "convnext_zepto_rms"], 96),
    **dict.fromkeys(["hrnet_w18_small", "ghostnet_050", "repvit_m1", "fasternet_t0", "tinynet_e"], 96),
    **dict.fromkeys(["test_resnet", "test_vit", "test_efficientnet", "test_convnext", "test_mambaout"], 160),
    **dict.fromkeys(["test_nfnet", "test_byobnet"], 160),
    **dict.fromkeys(["efficientvit_m0", "edgenext_xx_small", "hardcorenas_a"], 224),
}
_BERT = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
_LLAMA = {**_BERT, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0}
_GPT = {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4}
TRANSFORMERS = {
    **dict.fromkeys(["Bert", "Roberta", "Electra", "MPNet"], ("Model", _BERT)),
    **dict.fromkeys(["Llama", "Mistral", "Qwen2"], ("ForCausalLM", _LLAMA)),
    "Albert": ("Model", {**_BERT, "embedding_size": 16}),
    "ConvBert": ("Model", {**_BERT, "embedding_size": 32}),
    "GPTNeoX": ("ForCausalLM", _BERT),
    "Phi": ("ForCausalLM", _BERT),
    "Mixtral": ("ForCausalLM", {**_LLAMA, "num_local_experts": 2}),
    "Gemma": ("ForCausalLM", {**_LLAMA, "head_dim": 8}),
    "GPT2": ("LMHeadModel", _GPT),
    "GPTJ": ("ForCausalLM", {**_GPT, "rotary_dim": 4}),
    "Bloom": ("ForCausalLM", {"vocab_size": 100, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "DistilBert": ("Model", {"vocab_size": 100, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}),
    "OPT": ("ForCausalLM", {**_BERT, "ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 64}),
    "XLNet": ("Model", {"vocab_size": 100, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}),
    "T5": ("EncoderModel", {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}),
    "FNet": ("Model", {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}),
    "Mamba": ("ForCausalLM", {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}),
}
IN_CI = {"resnet18", "test_vit", "test_efficientnet", "Bert", "GPT2", "Llama"}


def of_torchvision(name):
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    size = TORCHVISION[name]
    return torchvision.models.get_model(name, weights=None, **options), {"x": torch.rand(1, 3, size, size)}


def of_timm(name):
    return timm.create_model(name), {"x": torch.rand(1, 3, TIMM[name], TIMM[name])}


def of_transformers(name):
    head, options = TRANSFORMERS[name]
    model = getattr(transformers, f"{name}{head}")(getattr(transformers, f"{name}Config")(**options))
    return model, {"input_ids": torch.randint(3, 100, (2, 12))}


MODELS = [
    pytest.param(make, name, id=name, marks=pytest.mark.zoo if name in IN_CI else [pytest.mark.slow, pytest.mark.sweep])
    for make, names in ((of_torchvision, TORCHVISION), (of_timm, TIMM), (of_transformers, TRANSFORMERS))
    for name in names
]


def halved(tensor):
    return tensor * 0.5 + 0.25


def outputs_of(output):
    return [fingerprint(tensor) for _, tensor in walk(output)]


@pytest.mark.parametrize(("make", "name"), MODELS)
def test_edits_are_those_of_an_independent_mode(make, name):
    torch.manual_seed(0)
    model, inputs = make(name)
    arguments = tuple(inputs.values()) if "x" in inputs else ()
    named = {} if arguments else inputs
    model.eval()
    compared = 0
    with torch.no_grad():
        history = tl.log_forward_pass(model, arguments, named)
        nodes = [node for node in history.nodes if node.kind == "operation" and node.value.dtype.is_floating_point]
        modes = ((node, edit_of(history, node, halved)) for node in random.Random(0).sample(nodes, len(nodes)))
        for node, mode in [each for each in modes if each[1] is not None][:PER_MODEL]:
            with mode:
                expected = outputs_of(model(*arguments, **named))
            for live in (False, True):
                assert outputs_of(history.edit({node.label: halved}, live=live).recording.output) == expected
                compared += 1
    assert compared == 2 * PER_MODEL
