"""Stored activations are read as memory-mapped arrays, over all shards."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import pytest_torchlens as tl
from tests.extraction.models import batches
from tests.extraction.models import hooked
from tests.extraction.models import net
from tests.models import Function


@pytest.fixture
def acts(tmp_path):
    return tl.extract(net(), batches(), ["0", "1", "3"], tmp_path / "acts", shard_bytes=250)


def test_slices_go_over_shards(acts):
    array = acts["1"]
    assert len(list(acts.folder.glob("shard-*"))) == 3
    whole = hooked(net(), batches(), "1")
    assert array.shape == whole.shape == (11, 8)
    for key in (slice(2, 7), slice(None, None, -2), slice(9, 3), [10, 0, 5, 5], range(3), np.array([2, 8]), []):
        assert torch.equal(array[key], whole[list(range(11))[key] if isinstance(key, slice) else list(key)])
    assert torch.equal(array[torch.arange(11) % 2 == 0], whole[::2])
    assert torch.equal(array[-1], whole[-1])
    assert torch.equal(torch.stack(list(array)), whole)
    assert [len(chunk) for chunk in array.chunks()] == [4, 4, 3]
    assert np.array_equal(np.asarray(array), whole.numpy())
    assert np.asarray(array, dtype=np.float16).dtype == np.float16


def test_what_lies_in_one_file_is_the_file(acts):
    array = acts["0"]
    assert array[1:3].untyped_storage().data_ptr() == array[0].untyped_storage().data_ptr()
    was = array[0].clone()
    array[0].zero_()  # a write reaches no file
    assert torch.equal(tl.load_activations(acts.folder)["0"][0], was)


def test_keys_and_provenance(acts):
    loaded = tl.load_activations(str(acts.folder))
    assert list(loaded) == list(acts) == ["linear_1_1", "relu_1_2", "linear_2_4"]
    assert len(loaded) == 3
    assert torch.equal(loaded["relu_1"][:], loaded["1"][:])
    layer = loaded.layers["linear_2_4"]
    assert (layer.function, layer.modules, layer.parameters) == ("linear", ("3",), ("3.weight", "3.bias"))
    assert (layer.shape, layer.dtype, layer.parents) == ((4, 2), "torch.float32", ("dropout_1_3",))
    provenance = loaded.provenance
    assert provenance.model.endswith("Sequential")
    assert provenance.torch == torch.__version__
    assert (provenance.parameters, provenance.evaluated, provenance.random_seed) == (58, True, None)
    assert (
        provenance.weights
        != tl.extract(net().double(), [b.double() for b in batches()], ["1"], acts.folder / "x").provenance.weights
    )
    assert "relu_1_2 (1): torch.float32 (11, 8)" in repr(loaded)


def test_sequences_of_several_lengths_are_not_padded(tmp_path):
    loader = [torch.rand(n, s, 2) for n, s in [(2, 3), (2, 5), (1, 5), (2, 3)]]
    array = tl.extract(Function(torch.sin), loader, ["sin_1"], tmp_path)["sin_1"]
    examples = [example.sin() for batch in loader for example in batch]
    assert array.shape == (7, None, 2)
    assert array.is_ragged
    assert all(map(torch.equal, array[:], examples))
    assert all(map(torch.equal, array, examples))
    assert array[2:5].shape == (3, 5, 2)
    with pytest.raises(TypeError, match=r"different shapes \(7, None, 2\)"):
        array.numpy()
    assert [
        piece["examples"]
        for piece in json.loads((tmp_path / "index.json").read_text())["shards"][0]["pieces"]["sin_1_1"]
    ] == [2, 3, 2]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("relu_2", "no stored layer 'relu_2'; did you mean 'relu_1_2' or 'relu_1'"),
        ("dropout_1", "no stored layer 'dropout_1'"),
        (5, "no stored layer 5"),
    ],
)
def test_unknown_layers(acts, key, words):
    with pytest.raises(tl.LookupKeyError, match=words):
        acts[key]


def test_unknown_examples(acts):
    with pytest.raises(IndexError, match="relu_1_2: example 11 is out of range: there are 11"):
        acts["1"][11]
    with pytest.raises(TypeError, match="expected the number of an example"):
        acts["1"]["a"]
    with pytest.raises(TypeError, match="numbers of examples"):
        acts["1"][[0.5]]
    with pytest.raises(TypeError, match=r"indexing takes examples alone: array\[examples\], and then"):
        acts["1"][3, 1]
    for wrong in (
        torch.ones(10, dtype=torch.bool),
        [True],
        torch.ones(2, 2, dtype=torch.int64),
        np.ones((11, 1), bool),
    ):
        with pytest.raises(IndexError, match=r"relu_1_2: expected numbers of examples, or 11 booleans, got .* shape"):
            acts["1"][wrong]
    assert torch.equal(acts["1"][torch.tensor(3)], acts["1"][3])


def test_bfloat16_is_for_torch_alone(tmp_path):
    array = tl.extract(net(), batches(), ["1"], tmp_path, transform=torch.Tensor.bfloat16)["1"]
    with pytest.raises(TypeError, match=r"NumPy has no torch.bfloat16; take array\[...\].float\(\)"):
        array.numpy()
    assert array[:].float().numpy().shape == (11, 8)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("index.json", "{", "index.json is damaged"),
        ("index.json", "[]", "not an index of activations"),
        ("index.json", '{"format": "pytest-torchlens activations", "version": 9}', "expected version 1, got 9"),
        ("index.json", '{"format": "pytest-torchlens activations", "version": 1}', "is damaged"),
        ("shard-00000.safetensors", "x", "missing or damaged"),
    ],
)
def test_damage_is_told(acts, name, content, words):
    (acts.folder / name).write_text(content)
    with pytest.raises(tl.ExtractError, match=words):
        tl.load_activations(acts.folder)["1"][0]


def test_a_file_outside_is_never_read(acts):
    index = acts.folder / "index.json"
    index.write_text(index.read_text().replace("shard-00001.safetensors", "../shard-00001.safetensors"))
    with pytest.raises(tl.ExtractError, match=r"'../shard-00001\.safetensors' is not the name of a shard"):
        tl.load_activations(acts.folder)["1"][5]


def test_another_shard_in_its_place_is_noticed(acts):
    (acts.folder / "shard-00002.safetensors").replace(acts.folder / "shard-00000.safetensors")
    with pytest.raises(tl.ExtractError, match=r"shard-00000\.safetensors is damaged: .* is not what the index says"):
        tl.load_activations(acts.folder)["1"][0]


def test_no_name_disturbs_the_index(tmp_path):
    def named(x):
        return x

    named.__qualname__ = '"shards": [], "finished": true'
    acts = tl.extract(net(), batches(), "1", tmp_path, transform=named, shard_bytes=1)
    assert acts.layers["relu_1_2"].transform.endswith(named.__qualname__)
    assert acts.shards == [slice(0, 4), slice(4, 8), slice(8, 11)]
