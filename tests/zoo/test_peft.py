"""The zoo of peft: each kind of adapter has a name, and its parameters are read."""

from __future__ import annotations

import pytest

from pytest_torchlens.zoo import ZooError

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the library
ZOO = "peft"


def test_every_kind_has_a_name_and_every_rule_is_about_one(zoo):
    assert {kind.value.lower() for kind in peft.PeftType} <= set(zoo.names)
    assert zoo.unused_globs() == []
    assert zoo.case("dora").family == "lora"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("lora", ("lora_A", "lora_B", "q_proj.base_layer")),
        ("dora", ("lora_A", "lora_magnitude_vector")),
        ("adalora", ("lora_E",)),
        ("ia3", ("ia3_l", "down_proj.base_layer")),
        ("lokr", ("lokr_w1",)),
        ("loha", ("hada_w1_a", "hada_w2_b")),
        ("boft", ("boft_R", "boft_s")),
        ("vera", ("vera_lambda_b", "vera_lambda_d")),
        ("prompt_tuning", ("prompt_encoder.default.embedding",)),
        ("prefix_tuning", ("prompt_encoder.default.transform",)),
        ("lora_of_parameters", ("lora_A", "q_proj.base_layer.weight")),
    ],
)
def test_an_adapter_is_read(zoo, history_of, name, parts):
    history = history_of(zoo.case(name))
    read = " ".join(address for operation in history.operations for address in operation.parent_param_addresses)
    for part in parts:
        assert part in read


def test_an_adapter_has_no_pretrained_weights(zoo):
    with pytest.raises(ZooError, match="a small transformer has no pretrained weights"):
        zoo.provider.build("lora", {}, pretrained=True)
