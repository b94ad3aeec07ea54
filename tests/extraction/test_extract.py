"""Stored activations are those of a plain loop with hooks, bit for bit, and the model is left as it was."""

from __future__ import annotations

import copy
import random
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data import TensorDataset

import pytest_torchlens as tl
from pytest_torchlens.capture import record
from pytest_torchlens.extraction import graphs
from pytest_torchlens.extraction import loop
from tests.extraction.models import Counts
from tests.extraction.models import EarlyExit
from tests.extraction.models import Loops
from tests.extraction.models import TwoWays
from tests.extraction.models import batches
from tests.extraction.models import hooked
from tests.extraction.models import net
from tests.models import Function
from tests.models import Overwriting


def test_it_stores_what_hooks_see(tmp_path):
    model, x = net(), torch.cat(batches())
    loader = DataLoader(TensorDataset(x, torch.arange(11)), batch_size=4)

    acts = tl.extract(model, loader, ["0", "relu_1", tl.Query("linear", module="3"), -1], tmp_path, labels=1)

    assert list(acts) == ["linear_1_1", "relu_1_2", "linear_2_4", "output_1_5"]
    for address in ("0", "1", "3"):
        assert torch.equal(acts[address][:], hooked(model, batches(), address))
    assert torch.equal(acts["output_1"][:], acts["3"][:])
    assert torch.equal(acts.labels[:], torch.arange(11))
    assert acts.finished
    assert acts.examples == 11


def test_each_batch_runs_once_and_only_the_chosen_are_kept(tmp_path, monkeypatch):
    runs, kept = [], []
    monkeypatch.setattr(loop, "ChosenOutputs", spy(kept, runs))
    model = net()
    model.register_forward_pre_hook(lambda *_: runs.append(1))

    tl.extract(model, batches(12), ["1", "3"], tmp_path)

    assert len(runs) == 3
    assert Counter(kept) == {1: 4, 2: 2, 3: 2}  # of the first batch all, as the graph is not known yet


def spy(kept, runs):
    class Spy(graphs.ChosenOutputs):
        def keep(self, value, tensor, key):
            kept.extend([len(runs)] * (value.call >= 0))
            super().keep(value, tensor, key)

    return Spy


def test_the_model_and_the_generators_are_as_before(tmp_path):
    model = net().train()
    model[0].eval()
    model[2].train()
    state = torch.get_rng_state(), random.getstate()

    tl.extract(model, batches(), ["2"], tmp_path / "a", random_seed=3)
    as_it_is = tl.extract(model, batches(), ["2"], tmp_path / "b", random_seed=3, eval_mode=False)

    assert [module.training for module in model] == [False, True, True, True]
    assert torch.equal(torch.get_rng_state(), state[0])
    assert random.getstate() == state[1]
    assert (as_it_is["2"][:] == 0).any()
    assert as_it_is.provenance.random_operations == ("dropout_1_3",)


def test_patterns_stay_between_dots(tmp_path):
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model = nn.Sequential(block, nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh())))
    assert list(tl.extract(model, batches(), "*.0", tmp_path / "a")) == ["linear_1_1", "linear_2_3"]
    assert list(tl.extract(model, batches(), ["[01]"], tmp_path / "b")) == ["relu_1_2", "tanh_1_4"]


def test_functions_are_applied_to_layers(tmp_path):
    model, loader = net(), batches()
    acts = tl.extract(model, loader, ["0", "1", "3"], tmp_path, transform={"[01]": torch.Tensor.half, "3": last})
    assert torch.equal(acts["0"][:], hooked(model, loader, "0").half())
    assert torch.equal(acts["3"][:], hooked(model, loader, "3")[:, -1])
    assert [layer.transform for layer in acts.layers.values()] == [
        "TensorBase.half",
        "TensorBase.half",
        f"{__name__}.last",
    ]


def last(x):
    return x[:, -1]


def test_overwritten_activations_are_stored_as_they_were(tmp_path):
    model, loader = Overwriting(), list(torch.rand(5, 1, 6, 6).split(2))
    acts = tl.extract(model, loader, ["conv", "relu"], tmp_path)
    assert torch.equal(acts["conv"][:], torch.cat([model.conv(batch) for batch in loader]))
    assert torch.equal(acts["relu"][:], acts["conv"][:].relu())


def test_a_first_batch_with_too_much_to_keep_runs_again(tmp_path, monkeypatch):
    model, runs = nn.Sequential(Counts(), net(), nn.BatchNorm1d(2), nn.Dropout()).train(), []
    twin = copy.deepcopy(model)
    model.register_forward_pre_hook(lambda *_: runs.append(1))
    model.register_forward_pre_hook(lambda module, _: setattr(module, "times", getattr(module, "times", 0) + 1))
    torch.manual_seed(0)
    with torch.no_grad():
        plain = torch.cat([twin(batch.clone()) for batch in batches()])

    monkeypatch.setattr(graphs, "_MOST_HELD", 100)
    torch.manual_seed(0)
    acts = tl.extract(model, [batch.clone() for batch in batches()], ["3"], tmp_path, eval_mode=False)

    assert (len(runs), model.times) == (4, 3)  # of three batches the first runs twice, and counts once
    assert torch.equal(acts["3"][:], plain)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, twin.get_buffer(name))


def test_a_graph_that_differs_is_followed_where_the_layers_are_in_it(tmp_path):
    model, x = TwoWays(), torch.cat(batches(12))
    loader = [x[:4], x[8:], x[4:8], x[8:]]
    acts = tl.extract(model, loader, ["head", "input_1"], tmp_path)
    assert torch.equal(acts["head"][:], hooked(model, loader, "head"))
    with pytest.raises(
        tl.ExtractError, match=r"batch 2 runs other operations than batch 1, and linear_1_\d \(of right\)"
    ):
        tl.extract(model, loader, ["right"], tmp_path / "b")


def test_a_graph_that_parts_from_the_first_at_its_end_runs_again(tmp_path):
    model, runs = EarlyExit(), []
    model.register_forward_pre_hook(lambda *_: runs.append(1))
    loader = [*batches(), *batches()]
    acts = tl.extract(model, loader, ["output_1"], tmp_path)
    with torch.no_grad():
        assert torch.equal(acts["output_1"][:], torch.cat([model(batch) for batch in loader]))
    assert len(runs) == len(loader) * 2 + 1  # ours; the second short batch is known


def test_passes_are_layers_of_their_own(tmp_path):
    model = Loops()
    acts = tl.extract(model, batches(8), ["cell"], tmp_path / "a")
    assert list(acts) == ["linear_1_1:1", "linear_1_1:2"]
    both = hooked(model, batches(8), "cell").reshape(2, 2, 4, 4)
    assert torch.equal(acts["cell:2"][:], both[:, 1].flatten(0, 1))
    with pytest.raises(tl.ExtractError, match=r"batch 3 runs linear_1_1 once, batch 1 2 times"):
        tl.extract(model, batches(11), ["cell"], tmp_path / "b")


def test_dicts_go_in_as_keyword_arguments(tmp_path):
    model = Function(lambda ids, mask: (ids * mask).sum(-1, keepdim=True) + ids)
    loader = [
        {"ids": torch.rand(n, s), "mask": torch.ones(n, s), "label": torch.arange(n)} for n, s in [(2, 3), (2, 5)]
    ]
    acts = tl.extract(model, loader, ["add_1"], tmp_path, labels="label")
    assert acts.labels[:].tolist() == [0, 1, 0, 1]
    assert torch.equal(acts["add_1"][2], model(loader[1]["ids"], loader[1]["mask"])[0])


def test_a_function_says_what_the_inputs_of_any_batch_are(tmp_path):
    model = Function(lambda x, scale: x * scale)
    acts = tl.extract(model, ["ab", "c"], ["mul_1"], tmp_path, inputs=lambda word: (torch.ones(len(word), 2), 3.0))
    assert torch.equal(acts["mul_1"][:], torch.full((3, 2), 3.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64, torch.bool, torch.int32])
def test_other_types_and_what_is_no_number(dtype, tmp_path):
    x = torch.tensor([[0.0, 2.0], [float("nan"), float("-inf")]])
    x = x.nan_to_num(0, 0, 0) if dtype is torch.int32 else x
    acts = tl.extract(Function(lambda x: x.to(dtype)), [x], ["output_1"], tmp_path)
    assert acts["output_1"].dtype == dtype
    assert torch.equal(acts["output_1"][:].view(torch.uint8), x.to(dtype).view(torch.uint8))


def test_what_is_on_a_gpu_has_no_fingerprint(monkeypatch):
    outputs = []
    monkeypatch.setattr(graphs, "CPU", torch.device("cuda"))  # so that this machine's tensors are elsewhere

    def keep(recording):
        outputs.append(recording)
        return graphs.ChosenOutputs(recording, [])

    record(net(), (batches()[0],), keep=keep)
    assert {value.digest for call in outputs[0].calls for value in call.outputs} == {""}
    assert all(source.value.digest for source in outputs[0].sources if source.kind == "input")


def test_without_fingerprints_the_bits_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(graphs, "CPU", torch.device("cuda"))
    model, loader = Overwriting(), list(torch.rand(5, 1, 6, 6).split(2))
    acts = tl.extract(model, loader, ["conv", "relu"], tmp_path)
    assert torch.equal(acts["conv"][:], torch.cat([model.conv(batch) for batch in loader]))
    assert torch.equal(acts["relu"][:], acts["conv"][:].relu())
