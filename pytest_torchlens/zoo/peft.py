"""A small transformer with each kind of adapter of the library ``peft``."""

from __future__ import annotations

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


VARIANTS = dict.fromkeys(
    "alora bdlora dora kasalora lora_bias lora_of_parameters lora_of_replicated_layers lora_of_tokens rslora".split(),
    "lora",
)
"""Adapters that are settings of another kind; the zoo file sets them."""
VOCABULARY = 128
TOKENS = TensorSpec((1, 12), "int64", 5, VOCABULARY)


class PeftProvider:
    """Llama with two layers of 64 channels and one adapter; nothing is downloaded."""

    def __init__(self, library: ModuleType) -> None:
        self._peft = library

    def names(self) -> list[str]:
        """Return the library's kinds of adapters in small letters, and variants of them."""
        return [kind.value.lower() for kind in self._peft.PeftType] + list(VARIANTS)

    def family(self, name: str) -> str:
        """Return the kind of which `name` is a variant."""
        return VARIANTS.get(name, name)

    def build(self, name: str, kwargs: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
        """Return the transformer with an adapter; `kwargs` are fields of the adapter's configuration."""
        if pretrained:
            raise ZooError("a small transformer has no pretrained weights: set 'weights: random' or 'weights: init'")
        kind = self.family(name).upper()
        config = self._peft.get_peft_config({"peft_type": kind, "task_type": "CAUSAL_LM", **kwargs})
        return cast("nn.Module", self._peft.get_peft_model(small_llama(), config))

    def default_input(self, model: nn.Module, kwargs: Mapping[str, Any]) -> InputSpec:
        """Return one text."""
        return {"input_ids": TOKENS}


def small_llama() -> nn.Module:
    """Return a causal language model, without a cache."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        use_cache=False,
    )
    return cast("nn.Module", transformers.LlamaForCausalLM(config))
