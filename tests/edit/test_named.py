"""Edits by their standard names: each against plain hooks, and on disk."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from safetensors.torch import save_file
from torch import nn

import pytest_torchlens as tl
from pytest_torchlens import edit
from pytest_torchlens.edit import Part
from pytest_torchlens.edit.places import parts_of
from tests.edit.small_models import VOCABULARY
from tests.edit.small_models import Transformer
from tests.edit.small_models import cnn

torch.manual_seed(0)
MODELS = {"transformer": Transformer().eval(), "cnn": cnn().eval()}
TOKENS = torch.randint(VOCABULARY, (4, 7))
INPUTS = {"transformer": TOKENS, "cnn": torch.rand(4, 1, 9, 9)}
OTHERS = {"transformer": TOKENS.flip(1), "cnn": torch.rand(4, 1, 9, 9)}
PLACES = {"transformer": "blocks.0.mlp", "cnn": "2"}
SAE = nn.Linear(16, 16)
SAE_OF_IMAGES = nn.Conv2d(6, 6, 1)
VECTOR, CHANNELS = torch.rand(16), torch.rand(6)


def history_of(name: str, inputs: dict[str, torch.Tensor] = INPUTS, **options: Any) -> tl.ModelHistory:
    return tl.log_forward_pass(MODELS[name], inputs[name], **options)


def output_of(history: tl.ModelHistory) -> torch.Tensor:
    output = history["output_1"].tensor_contents
    assert isinstance(output, torch.Tensor)
    return output


def hooked(name: str, module: str, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    handle = MODELS[name].get_submodule(module).register_forward_hook(lambda *given: change(given[-1]))
    try:
        output: torch.Tensor = MODELS[name](INPUTS[name])
    finally:
        handle.remove()
    return output


def off(tensor: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    unit = direction / direction.norm()
    return tensor - (tensor * unit).sum(-1, keepdim=True) * unit


@pytest.mark.parametrize(
    ("name", "change", "plain"),
    [
        ("transformer", edit.zero_ablate(), torch.zeros_like),
        ("cnn", edit.zero_ablate(), torch.zeros_like),
        ("transformer", edit.mean_ablate((0, 1)), lambda t: t.mean((0, 1)).expand(t.shape)),
        ("cnn", edit.mean_ablate((0, 2, 3)), lambda t: t.mean((0, 2, 3), keepdim=True).expand(t.shape)),
        ("cnn", edit.mean_ablate(1, of=torch.ones(4, 2, 5, 5)), torch.ones_like),
        ("transformer", edit.steer(VECTOR, 3.0), lambda t: t + 3.0 * VECTOR),
        ("cnn", edit.steer(CHANNELS[:, None, None]), lambda t: t + CHANNELS[:, None, None]),
        ("transformer", edit.splice_module(SAE), SAE),
        ("cnn", edit.splice_module(SAE_OF_IMAGES), SAE_OF_IMAGES),
    ],
)
def test_changes_are_those_of_plain_hooks(name: str, change: Any, plain: Callable[[torch.Tensor], torch.Tensor]):
    edited = history_of(name).edit({PLACES[name]: change})
    assert torch.equal(output_of(edited), hooked(name, PLACES[name], plain))
    assert type(change).__name__ in str(edited.edits[0])


def test_project_off_removes_a_direction():
    edited = history_of("transformer").edit({"blocks.0.mlp": edit.project_off(VECTOR)})
    torch.testing.assert_close(output_of(edited), hooked("transformer", "blocks.0.mlp", lambda t: off(t, VECTOR)))
    assert (edited["blocks.0.mlp"].tensor_contents @ VECTOR).abs().max() < 1e-5
    for length in (1e-20, 1e20):
        scaled = history_of("transformer").edit({"blocks.0.mlp": edit.project_off(VECTOR * length)})
        assert (scaled["blocks.0.mlp"].tensor_contents @ VECTOR).abs().max() < 1e-5
    images = history_of("cnn").edit({"2": edit.project_off(CHANNELS, axis=1)})["2"].tensor_contents
    assert torch.einsum("bchw,c->bhw", images, CHANNELS).abs().max() < 1e-5


@pytest.mark.parametrize("name", MODELS)
def test_resample_takes_another_example(name: str):
    history = history_of(name)
    place = PLACES[name]
    before = history[place].tensor_contents
    after = history.edit({place: edit.resample(seed=3)})[place].tensor_contents
    moved = [next(row for row in range(4) if torch.equal(before[row], new)) for new in after]
    assert sorted(moved) == list(range(4))
    assert all(row != place for place, row in enumerate(moved))
    assert torch.equal(after, history.edit({place: edit.resample(seed=3)})[place].tensor_contents)
    drawn = history.edit({place: edit.resample(seed=1, of=before[:1] + 1)})[place].tensor_contents
    assert torch.equal(drawn, (before[:1] + 1).expand_as(before))


@pytest.mark.parametrize("name", MODELS)
def test_patch_from_puts_the_activations_of_another_pass(name: str):
    other = history_of(name, OTHERS)
    theirs = other[PLACES[name]].tensor_contents
    edited = history_of(name).edit(edit.patch_from(other, PLACES[name]))
    assert torch.equal(output_of(edited), hooked(name, PLACES[name], lambda t: theirs))
    part = history_of(name).edit(edit.patch_from(other, Part(PLACES[name])[:, 2]))

    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor[:, 2] = theirs[:, 2]
        return tensor

    assert torch.equal(output_of(part), hooked(name, PLACES[name], change))


def test_path_patch_takes_the_paths_that_are_not_frozen():
    history, other = history_of("transformer"), history_of("transformer", OTHERS)
    block, model = MODELS["transformer"].blocks[1], MODELS["transformer"]
    frozen = ["blocks.0.attn", "blocks.0.mlp", "blocks.1.attn"]
    edits = edit.path_patch(history, other, "embed", "blocks.1.mlp", frozen=frozen)
    embedded = model.embed(OTHERS["transformer"])
    stream = embedded + history["blocks.0.attn"].tensor_contents  # the sums in the order of the model
    stream = stream + history["blocks.0.mlp"].tensor_contents + history["blocks.1.attn"].tensor_contents
    patched = block.mlp(block.norms[1](stream))
    assert torch.equal(output_of(history.edit(edits)), hooked("transformer", "blocks.1.mlp", lambda t: patched))
    all_paths = edit.path_patch(history, other, "embed", "blocks.1.mlp")
    assert torch.equal(*[next(iter(each.values())) for each in (all_paths, edit.patch_from(other, "blocks.1.mlp"))])


def test_path_patch_of_a_cnn():
    history, other = history_of("cnn"), history_of("cnn", OTHERS)
    edits = edit.path_patch(history, other, Part("relu_1")[:, 2], "2")
    mixed = history["relu_1"].tensor_contents.clone()
    mixed[:, 2] = other["relu_1"].tensor_contents[:, 2]
    assert torch.equal(next(iter(edits.values())), MODELS["cnn"][2](mixed))


def test_path_patch_freezes_parts_and_edges():
    history, other = history_of("cnn"), history_of("cnn", OTHERS)
    model = MODELS["cnn"]
    mine, theirs = history["relu_1"].tensor_contents, other["relu_1"].tensor_contents
    mixed = theirs.clone()
    mixed[:, 0] = mine[:, 0]
    (part,) = edit.path_patch(history, other, "0", "2", frozen=[Part("relu_1")[:, 0]]).values()
    assert torch.equal(part, model[2](mixed))
    with pytest.warns(
        UserWarning, match="nothing of conv2d_1_1 arrives at conv2d_2_3 while .* stays as it was"
    ) as caught:
        (edge,) = edit.path_patch(history, other, "0", "2", frozen=[("relu_1", "conv2d_2")]).values()
    assert [warning.filename for warning in caught] == [__file__]
    assert torch.equal(edge, model[2](mine))
    stream, theirs = history_of("transformer"), history_of("transformer", OTHERS)
    readers = [call.label for call in stream.operations if "embedding_1_1" in call.parent_layers]
    assert len(readers) > 1
    frozen = [("embed", reader) for reader in readers]
    with pytest.warns(UserWarning, match="the edits change nothing"):
        values = [
            edit.path_patch(stream, theirs, "input_1", "blocks.0", frozen=some)
            for some in ([], frozen[:1], frozen[1:], [*frozen, frozen[0]])
        ]
    tensors = [next(iter(each.values())) for each in values]
    assert torch.equal(tensors[-1], stream["blocks.0"].tensor_contents)
    assert not any(torch.equal(tensors[0], each) for each in tensors[1:])


@pytest.mark.parametrize(("name", "keys"), [("transformer", ["blocks.1.mlp", "embed"]), ("cnn", ["0", "2"])])
def test_attribution_patch_is_the_slope_of_patching(name: str, keys: list[str]):
    history, other = history_of(name), history_of(name, OTHERS)
    metric = lambda output: output[..., 0].sum()  # noqa: E731
    found = edit.attribution_patch(history, other, keys, metric)
    for key, estimate in zip(keys, found.values(), strict=True):
        step = 1e-2
        mine, theirs = history[key].tensor_contents, other[key].tensor_contents
        nudged = history.edit({key: mine + step * (theirs - mine)})
        slope = (metric(output_of(nudged)) - metric(output_of(history))).item() / step
        assert float(estimate.sum()) == pytest.approx(slope, rel=0.05, abs=1e-3)


def test_logit_lens_reads_the_stream_with_the_last_layers():
    history, model = history_of("transformer"), MODELS["transformer"]
    found = edit.logit_lens(history, ["embed", "blocks.0", "blocks.1"], into="blocks.1")
    streams = [history[key].tensor_contents for key in ("embed", "blocks.0", "blocks.1")]
    expected = [model.head(model.norm(stream)) for stream in streams]
    assert all(map(torch.equal, found.values(), expected))
    assert torch.equal([*found.values()][-1], output_of(history))
    images = history_of("cnn")
    lens = edit.logit_lens(images, ["relu_2"], into="relu_2")
    assert torch.equal(lens["relu_2_4"], output_of(images))


@pytest.mark.parametrize("key", [("relu_1", "conv2d_2"), Part("relu_1")[:, 0], Part("relu_1", "conv2d_2", channel=0)])
def test_estimates_and_lenses_refuse_parts_and_edges(key: Any):
    history, other = history_of("cnn"), history_of("cnn", OTHERS)
    calls = [
        lambda: edit.attribution_patch(history, other, [key], torch.sum),
        lambda: edit.logit_lens(history, [key], into="relu_1"),
        lambda: edit.logit_lens(history, ["relu_1"], into=key),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"expected keys of whole activations, got relu_1_2 .*: name 'relu_1_2'"):
            call()


def test_grid_names_rows_and_columns():
    edits = edit.grid(["embed", "blocks.0"], edit.zero_ablate(), head=[(0, 4), (3, 4)])
    assert list(edits) == [(row, column) for row in ("embed", "blocks.0") for column in ("head 0", "head 3")]
    assert history_of("transformer").edit(edits["embed", "head 3"]).edits[0].place.endswith("[:, :, 12:16]")
    sizes = edit.grid(["embed"], 0.0, head=[(0, 2), (0, 4)])
    assert [column for _, column in sizes] == ["head 0 of 2", "head 0 of 4"]
    masks = torch.zeros(2, 2000, dtype=torch.bool)
    masks[1, 1000] = True
    assert [column for _, column in edit.grid([3], 0.0, mask=[*masks])] == ["mask 0", "mask 1"]
    assert [column for _, column in edit.grid([3], 0.0, position=torch.arange(2))] == ["position 0", "position 1"]
    with pytest.raises(ValueError, match="expected one part by name"):
        edit.grid(["embed"], position=range(2), channel=[1])
    for keys, places in ((["embed"], [1, 1]), (["3", 3], [1])):
        with pytest.raises(ValueError, match=r"grid: .* is there twice: name each row and column once"):
            edit.grid(keys, 0.0, position=places)


# -- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: edit.mean_ablate(()), TypeError, "axes: expected a dimension"),
        (lambda: edit.mean_ablate(0, of=3), TypeError, "of: expected a tensor, got int"),
        (lambda: edit.resample(seed=None), TypeError, "seed: expected an integer"),
        (lambda: edit.steer(3.0), TypeError, "vector: expected a tensor"),
        (lambda: edit.project_off(torch.zeros(3)), ValueError, "not only zeros"),
        (lambda: edit.project_off(torch.tensor([1.0, torch.inf])), ValueError, "of finite numbers"),
        (lambda: edit.project_off(torch.ones(3), axis="x"), TypeError, "axis: expected an integer, got 'x'"),
        (lambda: edit.splice_module(abs), TypeError, "expected a module"),
        (lambda: edit.grid("relu_1", 0.0, position=[0]), TypeError, "keys of the history in a list, got 'relu_1'"),
    ],
)
def test_errors_of_parameters(make: Callable[[], Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (edit.mean_ablate(7), "has no dimension 7"),
        (edit.mean_ablate(0, of=torch.ones(4, 7, 2)), "means of shape .* cannot be expanded to"),
        (edit.mean_ablate(0, of=torch.ones(4)), r"expected 3 dimensions, .* got shape \[4\]: a mean that you have"),
        (edit.resample(seed=0, axis=9), "has no dimension 9"),
        (edit.steer(torch.ones(3)), r"vector of shape \[3\] cannot"),
        (edit.project_off(torch.ones(3)), "is not 3 long"),
        (edit.splice_module(nn.Flatten()), "expected float32"),
    ],
)
def test_errors_where_a_change_does_not_fit(change: Any, message: str):
    with pytest.raises(ValueError, match=message):
        history_of("transformer").edit({"blocks.0.mlp": change})


def test_a_spliced_module_in_training_stays_as_it_is():
    class Counting(nn.BatchNorm1d):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(x)

    model, module = nn.Linear(4, 4), Counting(4).train()
    history = tl.log_forward_pass(model, torch.rand(3, 4))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for live in (False, True):
        edited = history.edit({"linear_1": edit.splice_module(module)}, live=live)
        assert torch.equal(output_of(edited), nn.BatchNorm1d(4)(output_of(history)))
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert module.calls == 0
    output_of(edited).sum().backward()
    assert module.bias.grad.equal(torch.full((4,), 3.0))


def test_errors_of_edits():
    history = history_of("transformer")
    with torch.no_grad():
        plain = history_of("transformer")
    one = tl.log_forward_pass(MODELS["cnn"], torch.rand(1, 1, 9, 9))
    with pytest.raises(ValueError, match="one example only: give others with of="):
        one.edit({"2": edit.resample(seed=0)})
    with pytest.raises(ValueError, match="one receiver or more"):
        edit.path_patch(history, plain, "embed")
    with pytest.raises(ValueError, match=r"receiver embedding_1_1 does not depend on add_2_.*: it comes before it"):
        edit.path_patch(history, plain, "blocks.0", "embed")
    with pytest.raises(ValueError, match=r"path_patch: add_2_.* is the sender, and frozen: leave it out of frozen"):
        edit.path_patch(history, plain, "blocks.0", "blocks.1", frozen=["blocks.0"])
    with pytest.raises(tl.NotReplayableError, match="record the pass with gradients on"):
        edit.attribution_patch(plain, history, ["blocks.0"], torch.sum)
    with pytest.raises(tl.NotReplayableError, match="from the metric to the keys: it detaches them"):
        edit.attribution_patch(history, plain, ["blocks.0"], lambda output: output.detach().sum())
    with pytest.raises(TypeError, match=r"a tensor with one number, got one of shape \["):
        edit.attribution_patch(history, plain, ["blocks.0"], lambda output: output)
    with pytest.raises(TypeError, match="which has no gradients"):
        edit.attribution_patch(history, plain, ["input_1"], torch.sum)
    with pytest.raises(TypeError, match="keys of the history in a list"):
        edit.logit_lens(history, "blocks.0", into="blocks.1")
    with pytest.raises(tl.LookupKeyError, match="no layer 'embed'"):
        history.edit(edit.path_patch(history, one, "embed", "blocks.0"))


# -- on disk -------------------------------------------------------------------------------------------------------


EDITS = {
    "embed": edit.steer(VECTOR, 2.0),
    3: 0.25,
    ("linear_1_3", "view_1_4"): float("inf"),
    Part("blocks.0", position=3): edit.zero_ablate(),
    ("blocks.1", (0, 2)): True,
    Part("blocks.0.attn")[..., torch.tensor([1, 2])]: edit.mean_ablate((0, 1)),
    Part("blocks.0.mlp.0")[1:3, None, ...]: edit.resample(seed=3),
    Part("blocks.1.mlp.0", head=(1, 4)): edit.splice_module(nn.Identity(), "sae"),
    "blocks.1.attn": edit.project_off(VECTOR),
    "blocks.0.mlp": torch.rand(4, 7, 16),
}


def test_edits_are_saved_and_loaded(tmp_path: Path):
    file = edit.save_edits(EDITS, tmp_path / "edits.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edits.json", "edits.json.safetensors"]
    loaded = edit.load_edits(file, modules={"sae": nn.Identity()})
    assert len(loaded) == len(EDITS)
    for (key, change), (key_loaded, change_loaded) in zip(EDITS.items(), loaded.items(), strict=True):
        assert comparable(parts_of(key_loaded)) == comparable(parts_of(key))
        assert comparable(change_loaded) == comparable(change)
    history = history_of("transformer")
    fitting = [key for key in EDITS if key not in (3, ("linear_1_3", "view_1_4"), ("blocks.1", (0, 2)))]
    mine, theirs = (
        history.edit({key: change for key, change in zip(EDITS, each.values(), strict=True) if key in fitting})
        for each in (EDITS, loaded)
    )
    assert len(mine.edits) == len(fitting)
    assert torch.equal(output_of(mine), output_of(theirs))


def comparable(given: Any) -> Any:
    """Return something that is equal for equal edits: tensors and modules have no truth value of their own."""
    if isinstance(given, torch.Tensor):
        return str(given.dtype), given.tolist()
    if isinstance(given, tuple | list):
        return [*map(comparable, given)]
    if isinstance(given, dict):
        return {name: comparable(each) for name, each in given.items()}
    if dataclasses.is_dataclass(given):
        return type(given), comparable(vars(given))
    return repr(given) if isinstance(given, nn.Module | slice) else (type(given), given)


def test_numbers_of_numpy_are_saved(tmp_path: Path):
    edits = {
        "a": np.float64(0.5),
        np.int64(3): np.float32(0.25),
        Part("b")[np.int64(1), np.array([0, 2])]: np.int64(2),
        Part("c", channel=[np.int64(1)], position=slice(np.int64(2), None)): np.bool_(True),
        "d": edit.steer(VECTOR, np.float32(0.5)),
    }
    plain = {
        "a": 0.5,
        3: 0.25,
        Part("b")[1, torch.tensor([0, 2])]: 2,
        Part("c", channel=[1], position=slice(2, None)): True,
        "d": edit.steer(VECTOR, 0.5),
    }
    loaded = edit.load_edits(edit.save_edits(edits, tmp_path / "edits.json"))
    assert [comparable(parts_of(key)) for key in loaded] == [comparable(parts_of(key)) for key in plain]
    assert comparable([*loaded.values()]) == comparable([*plain.values()])


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"relu_1": abs}, "the change of 'relu_1' cannot be written: .* got abs"),
        ({None: 0.0}, "the key None cannot be written"),
        ({("a", "b", 0, 1): 0.0}, r"the key \('a', 'b', 0, 1\) cannot be written: expected \(key, consumer\)"),
        ({Part("a", channel={1}): 0.0}, "the index of .* cannot be written: .* got set"),
        ({"relu_1": torch.rand(2).to_sparse()}, "torch.sparse_coo cannot be written"),
        ({"relu_1": torch.rand(2) * 1j}, "complex cannot be written"),
    ],
)
def test_edits_that_cannot_be_saved(edits: Any, message: str, tmp_path: Path):
    with pytest.raises(edit.EditFileError, match=message):
        edit.save_edits(edits, tmp_path / "edits.json")
    assert not [*tmp_path.iterdir()]


def test_saving_replaces_no_other_tensors(tmp_path: Path):
    weights = {"weight": torch.rand(3)}
    for name in ("model.safetensors", "model.json.safetensors", "text.json.safetensors"):
        save_file(weights, tmp_path / name)
    (tmp_path / "text.json.safetensors").write_text("mine")
    for name in ("model.json", "text.json"):
        with pytest.raises(edit.EditFileError, match=rf"{name}.safetensors exists and has no tensors of edits"):
            edit.save_edits({"embed": edit.steer(VECTOR)}, tmp_path / name)
    (tmp_path / "model.json.safetensors").unlink()
    for scale in (1.0, 2.0):  # its own are replaced
        edit.save_edits({"embed": edit.steer(scale * VECTOR)}, tmp_path / "model.json")
    assert torch.equal(load_file(tmp_path / "model.safetensors")["weight"], weights["weight"])
    assert torch.equal(edit.load_edits(tmp_path / "model.json")["embed"].vector, 2 * VECTOR)
    assert (tmp_path / "text.json.safetensors").read_text() == "mine"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: [], "expected a file with the format"),
        (lambda content: content | {"version": 2}, "expected version 1, got 2"),
        (lambda content: content | {"edits": 3}, "is damaged"),
        (lambda content: content | {"edits": [{"key": {}}]}, "is damaged, or not .*name"),
        (lambda content: content | {"sha256": "0"}, "or another one than was written with it"),
        (lambda content: content | {"tensors": "../x"}, "is a path"),
        (lambda content: content | {"tensors": "none.safetensors"}, "cannot be read: No such file"),
        (lambda content: _with_change(content, {"name": "steerr"}), "no change 'steerr'; there are: .*steer"),
        (lambda content: _with_change(content, {"parameters": {"scale": 1}}), "steer: .*vector"),
        (lambda content: _with_change(content, {"parameters": {"vector": {"tensor": "x"}}}), "'x' is missing"),
    ],
)
def test_bad_files(damage: Callable[[Any], Any], message: str, tmp_path: Path):
    file = edit.save_edits({"embed": edit.steer(VECTOR)}, tmp_path / "edits.json")
    file.write_text(json.dumps(damage(json.loads(file.read_text()))))
    with pytest.raises(edit.EditFileError, match=message):
        edit.load_edits(file)


def _with_change(content: Any, fields: Any) -> Any:
    (entry,) = content["edits"]
    return content | {"edits": [entry | {"change": entry["change"] | fields}]}


def test_other_bad_files(tmp_path: Path):
    (tmp_path / "text.json").write_text("{")
    (tmp_path / "link.json").symlink_to(tmp_path / "text.json")
    module = edit.save_edits({"embed": edit.splice_module(SAE, "sae")}, tmp_path / "module.json")
    cases = {"text.json": "is damaged", "none.json": "cannot be read", "link.json": "symbolic link"}
    for name, message in {**cases, module.name: "give it with modules="}.items():
        with pytest.raises(edit.EditFileError, match=message):
            edit.load_edits(tmp_path / name)
    with pytest.raises(edit.EditFileError, match=r"ends in \.json"):
        edit.save_edits({"relu_1": 0.0}, tmp_path / "edits.safetensors")
    with pytest.raises(TypeError, match="expected a mapping"):
        edit.save_edits([], tmp_path / "edits.json")
