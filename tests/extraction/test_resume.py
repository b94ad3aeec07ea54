"""A run that was ended goes on behind its last shard, and ends with the same bits; another run is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import pytest_torchlens as tl
from tests.extraction.models import Attribute
from tests.extraction.models import Counts
from tests.extraction.models import DrawsLater
from tests.extraction.models import LazyMask
from tests.extraction.models import PythonState
from tests.extraction.models import Rebinds
from tests.extraction.models import batches
from tests.extraction.models import net
from tests.models import Function

SHARDS = {"shard_bytes": 300}  # two batches each


class StoppedError(Exception):
    pass


def stopping(loader, after):
    """Yield batches as long as the machine runs."""
    yield from loader[:after]
    raise StoppedError


def stop(after, folder, model=None, layers=("1", "3"), **options):
    with pytest.raises(StoppedError):
        tl.extract(model or net(), stopping(batches(), after), list(layers), folder, **(SHARDS | options))


def contents(folder: Path) -> dict[str, object]:
    """Return all files of a folder, without the dates."""
    index = json.loads((folder / "index.json").read_text())
    del index["provenance"]["created"], index["provenance"]["resumed"]
    return {path.name: path.read_bytes() for path in folder.glob("shard*")} | {"index": index}


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path, after):
    whole, parts, runs = tmp_path / "whole", tmp_path / "parts", []
    options = {**SHARDS, "random_seed": 1, "eval_mode": False}
    tl.extract(net(), batches(), ["2", "3"], whole, **options)
    stop(after, parts, layers=("2", "3"), **options)
    model = net()
    model.register_forward_pre_hook(lambda *_: runs.append(1))

    acts = tl.extract(model, batches(), ["2", "3"], parts, **options)

    assert contents(parts) == contents(whole)
    assert len(runs) == 3  # the first and the last stored batch again, and those behind the last shard
    assert len(acts.provenance.resumed) == (after >= 2)


def test_what_is_finished_does_not_run_again(tmp_path):
    first = contents(tl.extract(net(), batches(), ["1"], tmp_path).folder)
    runs, model = [], net()
    model.register_forward_pre_hook(lambda *_: runs.append(1))
    tl.extract(model, batches(), ["1"], tmp_path)
    assert contents(tmp_path) == first
    assert len(runs) == 1
    assert tl.extract(net(), [*batches(), *batches()], ["1"], tmp_path).examples == 22  # a longer loader goes on


def other_weights():
    model = net()
    with torch.no_grad():
        model[3].bias[0] += 1e-6
    return model


def double(x):
    return x * 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": other_weights()}, r"different are the weights \(their digest\)"),
        ({"model": net().double()}, "different are the weights"),
        ({"layers": ["1"]}, r"the layers \(relu_1_2, linear_2_4 → relu_1_2\)"),
        ({"transform": {"1": double}}, r"the transform of relu_1_2 \(none → .*double\)"),
        ({"random_seed": 4}, r"random_seed \(none → 4\)"),
        ({"eval_mode": False}, r"the model's evaluation mode \(True → False\)"),
        ({"inputs": double}, r"the function inputs= \(none → .*double\)"),
        (
            {"loader": batches()[::-1]},
            "batch 1 of the loader is not the one whose activations .* has: to resume, a loader",
        ),
        ({"loader": [*batches()[:1], batches()[0]]}, "batch 2 of the loader is not the one"),
        ({"loader": batches()[:1]}, "the loader ended after 1 batches; .* has 2 of before"),
    ],
)
def test_another_run_is_refused_and_loses_nothing(tmp_path, change, words):
    stop(2, tmp_path)
    before = contents(tmp_path)
    call = {"model": net(), "loader": batches(), "layers": ["1", "3"], "out": tmp_path} | change
    dtype = next(call["model"].parameters()).dtype
    with pytest.raises(tl.ExtractError, match=words):
        tl.extract(**call | {"loader": [batch.to(dtype) for batch in call["loader"]]})
    assert contents(tmp_path) == before


def test_functions_of_one_name_that_compute_otherwise_are_noticed(tmp_path):
    stop(2, tmp_path, transform=lambda x: x * 2)
    with pytest.raises(tl.ExtractError, match=r"relu_1_2 of batch 1 is not what .* has \(they differ by"):
        tl.extract(net(), batches(), ["1", "3"], tmp_path, transform=lambda x: x * 3)
    with pytest.warns(UserWarning, match="not bit for bit what .* but within rounding"):
        tl.extract(net(), batches(), ["1", "3"], tmp_path, transform=lambda x: x * 2.0000005)


@pytest.mark.parametrize("hidden", [-torch.inf, torch.finfo(torch.float32).min, -1e9, torch.nan])
def test_masked_scores_do_not_hide_another_transform(tmp_path, hidden):
    mask = torch.tensor([False, True, False, False])
    model = Function(lambda x: (x * 3).masked_fill(mask, hidden))
    stop(2, tmp_path, model, ["maskedfill_1"], shard_bytes=1, transform=lambda x: x * 0.5)
    for change, words in ((lambda x: x * 300 + 7, "differ by|infinite or NaN"), (lambda x: x * 0.5 + 7, "differ by")):
        with pytest.raises(tl.ExtractError, match=rf"maskedfill_1_2 of batch 1 is not what .*({words})"):
            tl.extract(model, batches(), ["maskedfill_1"], tmp_path, transform=change)
    with pytest.warns(UserWarning, match="within rounding") as caught:
        tl.extract(model, batches(), ["maskedfill_1"], tmp_path, transform=lambda x: x * 0.5000002)
    assert {warning.filename for warning in caught} == {__file__}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Counts, "cannot be resumed: .*forward writes to buffer 'calls'"),
        (Rebinds, "cannot be resumed: .*forward writes to buffer 'calls'"),
        (Attribute, "cannot be resumed: .*forward writes to tensor 'calls'"),
        (lambda: Function(lambda x: x + torch.rand(1)), "rand_1_1 draws random numbers, and nothing was seeded"),
        (partial(DrawsLater, same_operations=False), "rand_1_2 draws random numbers, and nothing was seeded"),
        (partial(DrawsLater, same_operations=True), "dropout_1_2 draws random numbers, and nothing was seeded"),
        (PythonState, r"output_1_2 of batch 3 is not what .* has \(they differ by .*or depend on the batches before"),
    ],
)
def test_what_depends_on_the_batches_before_is_not_resumed(tmp_path, make, words):
    loader = batches(19)
    with pytest.raises(StoppedError):
        tl.extract(make(), stopping(loader, 3), ["output_1"], tmp_path, shard_bytes=1)
    before = contents(tmp_path)
    with pytest.raises(tl.ExtractError, match=words):
        tl.extract(make(), batches(19), ["output_1"], tmp_path)
    assert contents(tmp_path) == before


def test_a_buffer_that_the_first_batch_makes_is_no_reason_to_begin_again(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    tl.extract(LazyMask(), batches(), ["output_1"], whole, shard_bytes=1)
    with pytest.raises(StoppedError):
        tl.extract(LazyMask(), stopping(batches(), 2), ["output_1"], parts, shard_bytes=1)
    tl.extract(LazyMask(), batches(), ["output_1"], parts, shard_bytes=1)
    assert contents(parts) == contents(whole)


def refilled(loader):
    """Yield the same tensor each time, with other numbers."""
    memory = torch.empty_like(loader[0])
    for batch in loader:
        yield memory.copy_(batch)


def test_a_loader_may_use_its_memory_again(tmp_path):
    loader = batches(20)
    with pytest.raises(StoppedError):
        tl.extract(net(), stopping(loader, 3), ["1"], tmp_path, shard_bytes=1)
    acts = tl.extract(net(), refilled(loader), ["1"], tmp_path, shard_bytes=1)
    assert torch.equal(acts["1"][:], net()[:2](torch.cat(loader)))


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path):
    stop(2, tmp_path)
    for name in (f".{'a' * 16}.part", "shard-00001.safetensors", "notes.txt"):
        (tmp_path / name).write_text("half")
    tl.extract(net(), batches(), ["1", "3"], tmp_path, **SHARDS)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"index.json", "notes.txt", "shard-00000.safetensors", "shard-00001.safetensors"}
    assert (tmp_path / "notes.txt").read_text() == "half"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs fork")
def test_killed_at_any_time_it_ends_with_the_same_bits(tmp_path):
    script = Path(__file__).with_name("kill_often.py")
    seeds = [str(seed) for seed in range(2)]
    done = subprocess.run(
        [sys.executable, script, tmp_path, "4", *seeds], capture_output=True, text=True, timeout=120, check=True
    )
    assert max(map(int, done.stdout.split())) > 0  # some were killed after a shard
    for seed in seeds:
        assert contents(tmp_path / seed) == contents(tmp_path / "whole")
