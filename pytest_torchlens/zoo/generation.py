"""Text generation by models of the library ``transformers``: greedy, by sampling and by beam search, with a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import cast

import torch
from torch import nn

from pytest_torchlens.zoo.errors import ZooError
from pytest_torchlens.zoo.transformers import TransformersProvider

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_torchlens.zoo.inputs import InputSpec


GENERATING = (
    "bart bloom blip deepseek_v3 falcon_mamba gemma3 gemma3_text git gpt2 gpt_oss idefics3 jamba kosmos-2 led lfm2 "
    "llama llava mamba mamba2 marian mixtral moonshine mpt opt paligemma pegasus phi3 prophetnet qwen2_audio "
    "qwen2_vl qwen3 qwen3_next recurrent_gemma rwkv speech_to_text t5 whisper xglm xlnet xlstm zamba2"
).split()
"""An architecture of each family that generates text."""
NEW_TOKENS = 4
STRATEGIES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sample": {"do_sample": True, "top_k": 20},
    "beam": {"do_sample": False, "num_beams": 3},
}
TASKS = ("SPEECH_SEQ_2_SEQ", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "CAUSAL_LM")
"""Of the library's lists of models with a head that generates, the first that has an architecture counts."""


class Generation(nn.Module):
    """Calls the ``generate`` of a model.

    Parameters
    ----------
    model
        A model of the library with a head for text.
    options
        Arguments of ``generate``.
    """

    def __init__(self, model: Any, options: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = model
        self._options = options

    def forward(self, **inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the tokens, and the logits that each was chosen by."""
        found = self.model.generate(
            **inputs, **self._options, use_cache=True, return_dict_in_generate=True, output_logits=True
        )
        return (found.sequences, *found.logits)


class GenerationProvider(TransformersProvider):
    """Tiny models of the library, each with several ways to generate."""

    def names(self) -> list[str]:
        """Return an architecture and a strategy for each model: ``gpt2_beam``."""
        known = self._auto.CONFIG_MAPPING
        return [f"{name}_{strategy}" for name in GENERATING if name in known for strategy in STRATEGIES]

    def family(self, name: str) -> str:
        """Return the architecture."""
        return name.rpartition("_")[0]

    def build(self, name: str, kwargs: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
        """Return a model that generates a few tokens; `kwargs` are fields of its configuration."""
        architecture, _, strategy = name.rpartition("_")
        length = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS}
        model = self._tiny(architecture, kwargs, self._kind(architecture), pretrained)
        return Generation(model, {**STRATEGIES[strategy], **length})

    def default_input(self, model: nn.Module, kwargs: Mapping[str, Any]) -> InputSpec:
        """Return a text, with an image or a sound where the model takes one."""
        inputs = super().default_input(cast("Generation", model).model, kwargs)
        return {name: spec for name, spec in inputs.items() if not name.startswith("decoder_")}

    def _kind(self, architecture: str) -> Any:
        """Return the library's mapping of configurations to models with a head that has this architecture."""
        lists = self._auto.modeling_auto
        for task in TASKS:
            if architecture in getattr(lists, f"MODEL_FOR_{task}_MAPPING_NAMES", {}):
                return getattr(lists, f"MODEL_FOR_{task}_MAPPING")
        raise ZooError(f"{architecture}: the library has no model of it that generates text")
