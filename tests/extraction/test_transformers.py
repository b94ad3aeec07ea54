"""Activations of a real model over a data set are those of a plain loop."""

from __future__ import annotations

import pytest
import torch

import pytest_torchlens as tl


@pytest.mark.slow
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
