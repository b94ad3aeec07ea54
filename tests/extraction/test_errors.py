"""What `extract` cannot use, it names with the reason and the fix, and writes nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pytest_torchlens as tl
from tests.extraction.models import batches
from tests.extraction.models import net
from tests.models import Function


def one(x):
    return x.mean(0)


def writes(x):
    return x.add_(1)


def raises(x):
    raise KeyError("nothing here")


LABELED = [(x, torch.arange(len(x))) for x in batches()]
BAD = {
    "model": (tl.TraceError, "expected a torch.nn.Module", {"model": nn.Linear}),
    "unknown layer": (
        tl.LookupKeyError,
        "no layer has 'relo_1' in its label; did you mean 'relu_1'",
        {"layers": "relo_1"},
    ),
    "unknown pattern": (
        tl.LookupKeyError,
        r"layers: no layer matches 'lin_\*'; did you mean 'linear_",
        {"layers": ["lin_*"]},
    ),
    "no layer": (tl.LookupKeyError, "layers: expected the layers to extract, .* got none", {"layers": []}),
    "module": (tl.LookupKeyError, "layers cannot have the module ReLU itself", {"layers": [nn.ReLU()]}),
    "no loader": (TypeError, "loader: expected an iterable of batches, such as a DataLoader, got 5", {"loader": 5}),
    "empty": (tl.ExtractError, "the loader is empty", {"loader": []}),
    "words": (tl.ExtractError, "batch 1: got str: 'ab'; a batch is a tensor, a tuple", {"loader": ["ab"]}),
    "later": (tl.ExtractError, "batch 2: got int: 3; .* give inputs=", {"loader": [torch.rand(2, 4), 3]}),
    "number": (tl.ExtractError, "batch 1: expected a tensor with the examples", {"loader": [torch.tensor(1.0)]}),
    "no tensor": (tl.ExtractError, "expected a tensor with the examples", {"loader": [{"input": 3}]}),
    "dict": (
        tl.ExtractError,
        r"batch 1: Sequential.forward\(input\) cannot take the inputs given: .* Give inputs=",
        {"loader": [{"x": torch.rand(2, 4)}]},
    ),
    "inputs": (TypeError, "inputs: expected a function of a batch, got 3", {"inputs": 3}),
    "transform": (
        TypeError,
        "transform: expected a function of a tensor, or a dict of them by layer",
        {"transform": 3},
    ),
    "transforms": (TypeError, "transform: expected functions by layer, got '1': 3", {"transform": {"1": 3}}),
    "transform of": (
        tl.LookupKeyError,
        "transform: 'relu_2' is none of the chosen layers; did you mean 'relu_1_2'",
        {"transform": {"relu_2": one}},
    ),
    "twice": (
        tl.ExtractError,
        "transform: 'relu_1' and another key both name relu_1_2",
        {"transform": {"1": one, "relu_1": one}},
    ),
    "fewer": (
        tl.ExtractError,
        r"relu_1_2 in batch 1: expected 4 examples in the first dimension, as the batch has, got the shape \(8,\)",
        {"transform": one},
    ),
    "later fewer": (
        tl.ExtractError,
        "relu_1_2 in batch 3: expected 3 examples",
        {"transform": lambda x: x.new_ones(4)},
    ),
    "raises": (
        tl.ExtractError,
        r"the transform .*raises of relu_1_2 in batch 1 \(shape \(4, 8\)\) failed: KeyError: 'nothing here'",
        {"transform": raises},
    ),
    "writes": (tl.ExtractError, "the transform wrote to its argument", {"transform": writes}),
    "no result": (tl.ExtractError, "expected a tensor as its result, got NoneType", {"transform": lambda _: None}),
    "sparse": (
        tl.ExtractError,
        "safetensors cannot store a tensor that is torch.sparse",
        {"transform": torch.Tensor.to_sparse},
    ),
    "kinds": (
        tl.ExtractError,
        "relu_1_2 in batch 3 is of torch.float16, in the batches before of torch.float32",
        {"transform": lambda x: x.half() if len(x) == 3 else x},
    ),
    "labels": (tl.ExtractError, "labels: batch 1 has no 2; it is a tuple of Tensor", {"loader": LABELED, "labels": 2}),
    "labels of": (tl.ExtractError, "labels: batch 1 has no 'y'; it is a tensor of shape", {"labels": "y"}),
    "label": (
        tl.ExtractError,
        "labels: batch 1 has no 'lable'; did you mean 'label'",
        {"loader": [{"input": torch.rand(2, 4), "label": [1, 2]}], "labels": "lable", "inputs": lambda b: b["input"]},
    ),
    "label count": (
        tl.ExtractError,
        r"labels: batch 1 has 2 examples, and labels of shape \(3,\)",
        {"loader": [(torch.rand(2, 4), [1, 2, 3])], "labels": 1},
    ),
    "label words": (
        tl.ExtractError,
        "labels: batch 1: expected numbers, got a list of str",
        {"loader": [(torch.rand(1, 4), ["cat"])], "labels": 1},
    ),
    "labels kind": (TypeError, "labels: expected the place or key", {"labels": 0.5}),
    "seed": (tl.OptionError, "random_seed: expected a whole number", {"random_seed": -1}),
    "shards": (tl.OptionError, "shard_bytes: expected a whole number of at least 1, got 0", {"shard_bytes": 0}),
    "mode": (tl.OptionError, "eval_mode: expected True or False", {"eval_mode": "yes"}),
    "path": (TypeError, "expected the path of a folder, as 'acts/', got 5", {"out": 5}),
    "null": (tl.ExtractError, "null character", {"out": "a\0b"}),
    "weight": (
        tl.ExtractError,
        r"buffer_1 in batch 1: expected 4 examples .* got the shape \(2, 4\)",
        {
            "model": nn.Sequential(nn.BatchNorm1d(4)),
            "layers": ["0.running_mean"],
            "transform": lambda x: x.expand(2, 4),
        },
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_it_is_named_and_nothing_is_written(case, tmp_path):
    kind, words, change = BAD[case]
    call = {"model": net(), "loader": batches(), "layers": ["relu_1"], "out": tmp_path / "acts"} | change
    with pytest.raises(kind, match=words):
        tl.extract(**call)
    assert not list(tmp_path.glob("acts/shard*"))


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("all my work")
    with pytest.raises(tl.ExtractError, match=r"is not empty, and has no index.json: 'thesis.txt' is not ours"):
        tl.extract(net(), batches(), ["1"], tmp_path)
    with pytest.raises(
        tl.ExtractError, match=r"thesis.txt cannot be written: .* a file stands where a folder is needed"
    ):
        tl.extract(net(), batches(), ["1"], tmp_path / "thesis.txt")
    with pytest.raises(tl.ExtractError, match=r"has no activations: index\.json cannot be read"):
        tl.load_activations(tmp_path)
    (tmp_path / "index.json").write_text('{"my": "own"}')
    with pytest.raises(tl.ExtractError, match=r"index.json is not an index of activations"):
        tl.extract(net(), batches(), ["1"], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.json", "thesis.txt"]
    assert (tmp_path / "thesis.txt").read_text() == "all my work"


def test_what_the_model_raises_comes_through_and_what_is_stored_stays(tmp_path):
    loader = [*batches(), torch.rand(2, 5)]
    model = net()
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        tl.extract(model.train(), loader, ["1"], tmp_path, shard_bytes=1)
    assert model.training
    acts = tl.load_activations(tmp_path)
    assert (acts.examples, acts.finished) == (11, False)


def test_a_model_that_runs_twice_may_not_write(tmp_path):
    model = Function(lambda x: x if len(x) < 4 else x.sin())
    changed = Function(lambda x: x.neg_() if len(x) < 4 else x.neg_().sin())
    tl.extract(model, batches(), ["output_1"], tmp_path / "a")
    with pytest.raises(
        tl.ExtractError, match=r"batch 3 runs other operations .* would have to run twice; but the model writes"
    ):
        tl.extract(changed, batches(), ["output_1"], tmp_path / "b")
