"""Activations of real models over a data set are those of a plain loop."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data import TensorDataset

import pytest_torchlens as tl
from tests.extraction.models import hooked

pytestmark = pytest.mark.slow


def test_resnet(tmp_path):
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    model, images = torchvision.models.resnet18(), torch.rand(11, 3, 64, 64)
    loader = DataLoader(TensorDataset(images, torch.arange(11)), batch_size=4)
    addresses = ["bn1", "layer2.0", "layer3.1.conv2", "fc"]
    acts = tl.extract(model, loader, addresses, tmp_path, labels=1, shard_bytes=1 << 20)
    assert len(list(tmp_path.glob("shard-*"))) > 1
    for address in addresses:
        assert torch.equal(acts[address][:], hooked(model, list(images.split(4)), address))


def test_bert_with_sequences_of_several_lengths(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=100, **sizes))
    loader = [
        {
            "input_ids": torch.randint(100, (n, length)),
            "attention_mask": torch.ones(n, length),
            "label": torch.arange(n),
        }
        for n, length in [(4, 7), (4, 9), (4, 9), (2, 5)]
    ]
    pooled = {"encoder.layer.1": lambda t: t[:, -1]}
    acts = tl.extract(model, loader, "encoder.layer.*", tmp_path, labels="label", transform=pooled)
    model.eval()
    with torch.no_grad():
        states = [model(x["input_ids"], x["attention_mask"], output_hidden_states=True).hidden_states for x in loader]
    assert acts["encoder.layer.0"].shape == (14, None, 32)
    assert all(map(torch.equal, acts["encoder.layer.0"], [one for state in states for one in state[1]]))
    assert torch.equal(acts["encoder.layer.1"][:], torch.cat([state[2][:, -1] for state in states]))
