"""Many edits of one pass at once: against plain hooks, together and alone."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import pytest_torchlens as tl
from pytest_torchlens.edit import Part
from pytest_torchlens.edit import batched
from pytest_torchlens.edit import grid
from pytest_torchlens.edit import zero_ablate
from pytest_torchlens.edit.batched import ActivationStore
from pytest_torchlens.edit.batched import StackedPlayer


class Net(nn.Module):
    """A CNN that writes in place, and has the batch size of the pass baked into its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
        self.second = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6))
        self.head = nn.Linear(6 * 36, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = torch.relu_(self.second(x).add_(x))
        return self.head(x.view(x.shape[0], -1))


class Written(nn.Module):
    """Writes what is edited into a part of a tensor that is not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = torch.zeros(x.shape[0], 5)
        result[:, :3] = x.sin() * 2
        return result.cos()


class Mixing(nn.Module):
    """Normalises by the batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.sin() - x.sin().mean(0)).flatten().cumsum(0).view(2, -1)


class Picking(nn.Module):
    """Has a size that depends on values, which nothing maps over a stack."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp().masked_select(x < 2).square().sum() * x.exp()


class Deciding(nn.Module):
    """Lets Python read what is edited."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        return x * 2 if x.sum() > -100 else x


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def history(net: Net) -> tl.ModelHistory:
    return tl.log_forward_pass(net, torch.rand(3, 3, 8, 8))


def loss(output: torch.Tensor) -> torch.Tensor:
    return output.square().sum(1)


def with_hook(net: nn.Module, module: str, change: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Any:
    handle = net.get_submodule(module).register_forward_hook(lambda *given: change(given[-1]))
    try:
        return net(x)
    finally:
        handle.remove()


def no_channel(number: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        changed = tensor.clone()
        changed[:, number] = 0
        return changed

    return change


CHANNELS = grid(["first.0", "second.1"], 0.0, channel=range(6))


def test_edits_are_those_of_plain_hooks(net: Net):
    x = torch.rand(3, 3, 8, 8)
    history = tl.log_forward_pass(net, x)
    hooked = [with_hook(net, name, no_channel(int(column.split()[1])), x) for name, column in CHANNELS]
    expected = torch.stack([loss(output).detach().double() for output in hooked])
    alone, together = (history.sweep(CHANNELS, metric=loss, batch=batch) for batch in (1, 32))
    assert torch.equal(alone.measured["loss"], expected)
    assert sum(alone.alone.values()) == len(CHANNELS)
    torch.testing.assert_close(together.measured["loss"], expected, rtol=1e-5, atol=1e-6)
    assert not together.alone
    assert alone.effects().abs().min() > 0


@pytest.mark.parametrize(("model", "check"), [(Written(), True), (Mixing(), True), (Picking(), False)])
def test_what_a_model_does_with_its_batch_does_not_mix_edits(model: nn.Module, check: bool):
    x = torch.rand(2, 3)
    history = tl.log_forward_pass(model, x)
    edits = [{("sin_1" if "sin_1" in history else "exp_1", (0, 1)): float(number)} for number in range(5)]
    together = history.sweep(edits, metric=torch.sum, check_decisions=check)
    assert not together.alone
    for edit, value in zip(edits, together.values().tolist(), strict=True):
        expected = history.edit(edit, check_decisions=check)["output_1"].tensor_contents.sum()
        assert value == pytest.approx(float(expected), rel=1e-5)
    assert len({*together.values().tolist()}) > 1


def test_batch_norm_in_train_mode_and_dropout_stay_as_recorded(net: Net):
    model = nn.Sequential(net.first, nn.Dropout(), net.second).train()
    history = tl.log_forward_pass(model, torch.rand(3, 3, 8, 8))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    edits = [{Part("0.0", channel=number): 0.5} for number in range(6)]
    random = torch.get_rng_state()
    together = history.sweep(edits, metric=lambda output: output.square().mean())
    assert not together.alone
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    expected = [history.edit(edit)["output_1"].tensor_contents.square().mean().item() for edit in edits]
    assert together.values().tolist() == pytest.approx(expected, rel=1e-5)


def test_edges_functions_and_several_keys_run_together(history: tl.ModelHistory):
    edits = [
        {("relu_1", "conv2d_2"): float(number), Part("conv2d_2", channel=number): lambda tensor: tensor * 2}
        for number in range(3)
    ]
    together, alone = (history.sweep(edits, metric=loss, batch=batch) for batch in (8, 1))
    assert (sum(together.alone.values()), sum(alone.alone.values())) == (0, 3)
    torch.testing.assert_close(together.measured["loss"], alone.measured["loss"], rtol=1e-5, atol=1e-6)


def test_where_python_read_what_is_edited_each_edit_runs_alone():
    history = tl.log_forward_pass(Deciding(), torch.rand(2, 3))
    edits = [{("sin_1", (0, 1)): float(number)} for number in range(3)]
    sweep = history.sweep(edits, metric=torch.sum)
    assert sweep.alone == {"Python read what the edit may change": 3}
    expected = [history.edit(edit)["output_1"].tensor_contents.sum().item() for edit in edits]
    assert sweep.values().tolist() == expected
    assert not history.sweep(edits, metric=torch.sum, check_decisions=False).alone


def test_a_refused_edit_leaves_the_others():
    history = tl.log_forward_pass(Deciding(), torch.rand(2, 3))
    edits = {"one": {"sin_1": 2.0}, "other": {"sin_1": -1000.0}}
    sweep = history.sweep(edits, metric={"total": torch.sum, "rows": lambda output: output.sum(1)})
    assert sweep.values("rows")[0] == 12
    assert sweep.measured["rows"].isnan().tolist() == [[False, False], [True, True]]
    assert list(sweep.refused) == ["other"]
    assert "the model might run other operations" in sweep.refused["other"]
    assert [record["refused"] for record in sweep.records] == ["", "", *[sweep.refused["other"]] * 2]
    assert "__bool__ of" in sweep.heat_map().svg
    assert "1 refused" in repr(sweep)
    assert history.sweep(edits, metric=torch.sum, check_decisions=False).values().tolist() == [24, -12000]
    alone = history.sweep([{"sin_1": -1000.0}], metric=torch.sum)
    assert alone.values().isnan().all()


def test_edits_of_what_cannot_run_again_are_refused_each_by_itself(net: Net):
    history = tl.log_forward_pass(net, torch.rand(3, 3, 8, 8), layers_to_save=None)
    edits = {"first": {Part("conv2d_1")[:, 0]: 0.0}, "last": {"linear_1": 2.0}}
    with torch.no_grad():
        net.first[0].weight.add_(1)
    sweep = history.sweep(edits, metric=lambda output: output.sum(1))
    assert "'first.0.weight' was changed after the pass" in sweep.refused.pop("first")
    assert not sweep.refused
    assert sweep.values()[1] == 8


@pytest.mark.parametrize("error", [ValueError, RuntimeError])
def test_an_error_of_a_function_names_the_edit(history: tl.ModelHistory, error: type[Exception]):
    def failing(_: torch.Tensor) -> torch.Tensor:
        raise error("no vector")

    edits = {name: {"relu_1": change} for name, change in {"a": 0.0, "b": failing}.items()}
    with pytest.raises(error, match="sweep: edit 'b': no vector") as caught:
        history.sweep(edits, metric=loss)
    assert sys.version_info < (3, 11) or "its function raised this" in caught.value.__notes__[0]


def test_a_stack_that_computes_something_else_is_not_believed(
    history: tl.ModelHistory, monkeypatch: pytest.MonkeyPatch
):
    honest = StackedPlayer.result

    def mixed(self: StackedPlayer, call: Any, arguments: Any) -> Any:
        result = honest(self, call, arguments)
        if isinstance(result, tuple) and call.info.name == "linear":
            return tuple([tensor.roll(1, 0) for tensor in result])
        return result

    monkeypatch.setattr(StackedPlayer, "result", mixed)
    suspect = history.sweep(CHANNELS, metric=loss)
    assert suspect.alone == {"at once they give more than rounding apart": len(CHANNELS)}
    assert torch.equal(suspect.measured["loss"], history.sweep(CHANNELS, metric=loss, batch=1).measured["loss"])


def test_memory_limits_how_many_run_together(history: tl.ModelHistory):
    few = history.sweep(CHANNELS, metric=loss, memory=1000)
    assert few.alone == {"two edits take more than memory=1,000 bytes": len(CHANNELS)}


def computed(history: tl.ModelHistory, memory: int, monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, int]:
    """Return what a sweep measures, and how many bytes of activations it kept at most."""
    stores: list[ActivationStore] = []
    most = 0

    class Watched(ActivationStore):
        def __init__(self, limit: int) -> None:
            super().__init__(limit)
            stores.append(self)

        def get(self, *args: Any) -> torch.Tensor | None:
            nonlocal most
            found = super().get(*args)
            most = max(most, self.nbytes)
            return found

    monkeypatch.setattr(batched, "ActivationStore", Watched)
    sweep = history.sweep(CHANNELS, metric=loss, memory=memory, batch=1)
    assert len(stores) == 1
    return sweep.measured["loss"], most


@pytest.mark.parametrize("where", ["disk", "nowhere"])
def test_activations_for_all_edits_stay_within_the_memory_limit(
    net: Net, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    options = {"save_options": tl.SaveOptions(stream_to=tmp_path)} if where == "disk" else {"layers_to_save": None}
    history = tl.log_forward_pass(net, torch.rand(3, 3, 8, 8), **options)
    expected, most = computed(history, 2**30, monkeypatch)
    assert most > 4000
    measured, most = computed(history, 4000, monkeypatch)
    assert most <= 4000
    assert torch.equal(measured, expected)


@pytest.mark.parametrize(("key", "shape"), [("conv2d_1", (6, 1, 1)), (("relu_1", "conv2d_2"), (6, 1, 1))])
def test_gradients_of_edits_together_are_those_of_each_alone(history: tl.ModelHistory, key: Any, shape: Any):
    vectors = [torch.rand(shape, requires_grad=True) for _ in range(4)]
    edits = [{key: lambda tensor, vector=vector: tensor * vector} for vector in vectors]
    sweep = history.sweep(edits, metric=loss, keep_graph=True)
    assert not sweep.alone
    together = torch.autograd.grad(sweep.values().sum(), vectors)
    for vector, edit, gradient in zip(vectors, edits, together, strict=True):
        alone = loss(history.edit(edit)["output_1"].tensor_contents).mean()
        torch.testing.assert_close(gradient, *torch.autograd.grad(alone, vector), rtol=1e-4, atol=1e-7)
        assert gradient.any()
    assert len(sweep.records) == 4
    assert not history.sweep(edits, metric=loss).measured["loss"].requires_grad


def test_a_sweep_takes_inputs_and_parameters_by_their_keys(net: Net, history: tl.ModelHistory):
    sweep = history.sweep([{"input_1": 0.0}, {"head.bias": 1.0}], metric=torch.sum)
    expected = [history.edit(inputs={"x": 0.0}), history.edit(parameters={"head.bias": 1.0})]
    assert sweep.values().tolist() == [each["output_1"].tensor_contents.sum().item() for each in expected]


# -- two passes ----------------------------------------------------------------------------------------------------


@pytest.fixture
def corrupted(history: tl.ModelHistory) -> tl.ModelHistory:
    return history.rerun(torch.rand(3, 3, 8, 8))


def test_denoising_patches_clean_activations_into_the_corrupted_pass(
    history: tl.ModelHistory, corrupted: tl.ModelHistory
):
    sweep = history.sweep(["input_1", Part("conv2d_2")[:, 3], "linear_1"], corrupted=corrupted, metric=loss)
    patched = corrupted.edit({Part("conv2d_2")[:, 3]: history["conv2d_2"]})
    torch.testing.assert_close(sweep.measured["loss"][1], loss(patched["output_1"].tensor_contents).double())
    assert sweep.recovery()[[0, 2]].tolist() == pytest.approx([1, 1])
    assert sweep.base == "corrupted"
    assert sweep.baselines["clean"]["loss"].tolist() == loss(history["output_1"].tensor_contents).tolist()
    assert sweep.baselines["corrupted"]["loss"].tolist() == loss(corrupted["output_1"].tensor_contents).tolist()


def test_noising_is_the_reverse(history: tl.ModelHistory, corrupted: tl.ModelHistory):
    mine = history.sweep(["linear_1"], corrupted=corrupted, metric=loss, direction="noising")
    theirs = corrupted.sweep(["linear_1"], clean=history, metric=loss, direction="noising")
    assert mine.recovery().tolist() == theirs.recovery().tolist() == pytest.approx([0])
    assert mine.base == "clean"


def test_records_have_metrics_examples_and_intervals(history: tl.ModelHistory, corrupted: tl.ModelHistory):
    metrics = {"loss": loss, "first": lambda output: output[0, 0].item()}
    sweep = history.sweep(CHANNELS, corrupted=corrupted, metric=metrics)
    assert [(each["edit"], each["metric"]) for each in sweep.records] == [(n, m) for n in CHANNELS for m in metrics]
    record = sweep.records[0]
    assert record["low"] < record["value"] < record["high"]
    assert record["low"] >= sweep.measured["loss"][0].min()
    assert record["recovery_low"] <= record["recovery"] <= record["recovery_high"]
    assert sweep.records[1]["low"] is None  # one number for all examples
    assert record["what"] == "conv2d_1_1 [:, 0, :, :] ← 0.0"
    before = sweep.baselines["corrupted"]["loss"].mean()
    assert record["effect"] == pytest.approx(float(record["value"] - before))


def test_a_table_has_a_row_for_each_record(history: tl.ModelHistory):
    pytest.importorskip("pandas")
    sweep = history.sweep(CHANNELS, metric=loss)
    assert sweep.to_pandas().to_dict("records") == sweep.records


def test_a_history_that_keeps_a_part_suffices_and_prefixes_run_once(net: Net):
    x = torch.rand(3, 3, 8, 8)
    full, part = tl.log_forward_pass(net, x), tl.log_forward_pass(net, x, layers_to_save=["conv2d_1"])
    edits = grid(["second.1", "head"], zero_ablate(), channel=range(4))
    counted: Counter[str] = Counter()

    class Counting(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            counted[func.__name__] += 1
            return func(*args, **kwargs or {})

    with Counting():
        sweep = part.sweep(edits, metric=loss)
    assert torch.equal(sweep.measured["loss"], full.sweep(edits, metric=loss).measured["loss"])
    assert counted["conv2d"] == 1


def test_the_metric_gets_what_the_model_returns():
    class Answering(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            return {"logits": [x.sin()], "size": 3}

    history = tl.log_forward_pass(Answering(), torch.rand(2, 3))
    sweep = history.sweep([{"sin_1": 1.0}], metric=lambda output: output["logits"][0].sum() * output["size"])
    assert sweep.values().tolist() == [18]


# -- pictures, progress, errors ------------------------------------------------------------------------------------


def test_the_heat_map_has_a_cell_for_each_edit(history: tl.ModelHistory, corrupted: tl.ModelHistory, tmp_path: Path):
    edits = {("<first>", "a"): {"conv2d_1": 0.0}, ("second", "a"): {"conv2d_2": 0.0}, ("second", "b"): {"relu_1": 0.0}}
    sweep = history.sweep(edits, metric=loss)
    root = ET.fromstring(sweep.heat_map().save(tmp_path / "map.svg").read_text())  # noqa: S314 - our own
    texts = [element.text for element in root.iter() if element.text]
    assert {"<first>", "second", "a", "b", "change of loss", "conv2d_1_1 ← 0.0"} <= set(texts)
    assert sum(element.tag.endswith("title") for element in root.iter()) == len(edits)
    assert sweep._repr_html_() == sweep.heat_map().svg
    alike = {("a", 1): {"relu_1": 0.0}, ("a", "1"): {"relu_1": 9.0}}
    heat_map = history.sweep(alike, metric=loss).heat_map()
    assert heat_map.columns == [1, "1"]
    assert heat_map.svg.count("<title>") == 2
    with pytest.raises(ValueError, match=r"two numbers are at \('a', ''\)"):
        history.sweep({"a": {"relu_1": 0.0}, ("a", ""): {"relu_1": 9.0}}, metric=loss).heat_map()
    with pytest.raises(ValueError, match=r"expected a file that ends in .svg, got 'map.png'"):
        heat_map.save(tmp_path / "map.png")
    equal = history.sweep(edits, corrupted=history.rerun(*history.arguments[0]), metric=loss).heat_map().svg
    assert equal.count("nan") == len(edits)


def test_progress_is_printed_on_request(history: tl.ModelHistory, capsys: pytest.CaptureFixture[str]):
    history.sweep(CHANNELS, metric=loss)
    assert not capsys.readouterr().err
    history.sweep(CHANNELS, metric=loss, progress=True)
    assert capsys.readouterr().err.endswith("\rsweep: 12 of 12 edits\n")


@pytest.mark.parametrize(
    ("edits", "options", "error", "message"),
    [
        ([], {}, ValueError, "expected one edit or more"),
        ("relu_1", {}, TypeError, "expected a list of edits"),
        (3, {}, TypeError, "expected a list of edits"),
        (["relu_1"], {}, TypeError, "clean= or corrupted="),
        ([{"rely_1": 0.0}], {}, tl.LookupKeyError, "sweep: edit 'rely_1': .*relu_1"),
        ([{"relu_1": "x"}], {}, TypeError, "expected a number, a tensor or a function"),
        ([{"relu_1": 0.0}], {"metric": 3}, TypeError, "metric: expected a function"),
        ([{"relu_1": 0.0}], {"metric": {}}, TypeError, "metric: expected a function"),
        ([{"relu_1": 0.0}], {"metric": lambda output: output}, TypeError, "expected a number, or a tensor of one"),
        ([{"relu_1": 0.0}], {"metric": lambda output: None}, TypeError, "got NoneType"),
        ([{"relu_1": 0.0}], {"clean": 3}, TypeError, "clean: expected a history"),
        ([{"relu_1": 0.0}], {"direction": "noising"}, ValueError, "noising needs two passes"),
        ([{"relu_1": 0.0}], {"direction": "up"}, ValueError, "expected 'denoising' or 'noising'"),
        ([{"relu_1": 0.0}], {"batch": 0}, ValueError, "batch: expected an integer of 1 or more"),
        ([{"relu_1": 0.0}], {"memory": 1.5}, ValueError, "memory: expected an integer of 1 or more"),
        ([{"relu_1": 0.0}], {"bach": 3}, TypeError, "no option 'bach'.*batch"),
        ([{"relu_1": 0.0}], {"progress": "never"}, TypeError, "progress: expected True or False or None, got 'never'"),
        ([{"relu_1": 0.0}], {"check_decisions": "no"}, TypeError, "check_decisions: expected True or False"),
        ([{"relu_1": 0.0}], {"keep_graph": 1}, TypeError, "keep_graph: expected True or False, got 1"),
        ([{"relu_1": 0.0}], {"live": True}, TypeError, "live= is not an option of a sweep: .* edit one by one"),
        ([{"relu_1": 0.0}], {"expand": {"sdpa"}}, TypeError, "sweep over the expanded pass, history.edit"),
        ([{"relu_1": 0.0}], {"inputs": {}}, TypeError, "the label of an input as a key"),
        ([{"relu_1": 0.0}], {"parameters": {}}, TypeError, "the name of a parameter as a key"),
        ([{"relu_1": 0.0}], {"gradients": {}}, TypeError, "edit them one by one"),
    ],
)
def test_errors(history: tl.ModelHistory, edits: Any, options: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        history.sweep(edits, **{"metric": loss} | options)


def test_a_key_alone_that_does_not_fit_names_its_edit(history: tl.ModelHistory, corrupted: tl.ModelHistory):
    with pytest.raises(ValueError, match=r"sweep: edit \('relu_1', 'channel 99'\): .* index 99 is out of bounds"):
        history.sweep(grid(["relu_1"], channel=[99]), metric=loss, corrupted=corrupted)


def test_errors_of_results(history: tl.ModelHistory):
    sweep = history.sweep([{"relu_1": 0.0}], metric=loss)
    with pytest.raises(ValueError, match=r"no metric 'los'; there are: .*loss"):
        sweep.values("los")
    with pytest.raises(ValueError, match="a recovery needs two passes"):
        sweep.recovery()
    with pytest.raises(ValueError, match="expected 'recovery', 'effect' or 'value'"):
        sweep.heat_map(of="x")
    with pytest.raises(tl.LookupKeyError, match="the other pass did not run the same operations"):
        history.sweep(["relu_1"], clean=tl.log_forward_pass(Deciding(), torch.rand(2, 3)), metric=loss)
