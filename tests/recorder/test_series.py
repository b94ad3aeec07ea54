from __future__ import annotations

import copy
import gc
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from pytest_torchlens.recorder import Recorder
from tests.recorder import callbacks
from tests.recorder.training import small_model
from tests.recorder.training import train


def test_it_follows_outputs_gradients_parameters_and_updates():
    model, twin = small_model(), small_model()
    with Recorder(every=1) as recorder:
        recorder.track_model(model)
        recorder.track_layers(model)
        recorder.track_parameters(model)
        losses = train(model, 4, recorder)
    assert losses == train(twin, 4)
    kinds = [f"{name}{end}" for name in ("0", "1", "2", "model") for end in ("", ".grad")]
    assert {*kinds, "0.weight", "2.bias.grad", "0.weight.update", "loss"} <= set(recorder.series)
    assert all(series.step.tolist() == [0, 1, 2, 3] for series in recorder.series.values())
    assert recorder.series["loss"].mean.tolist() == losses
    weight = twin[0].weight.detach()
    assert recorder.series["0.weight"].norm[-1] == pytest.approx(float(weight.norm()), rel=1e-5)
    assert recorder.series["0.weight.grad"].norm[-1] == pytest.approx(float(twin[0].weight.grad.norm()), rel=1e-5)
    update = recorder.series["0.weight.update"]
    assert update.norm[-1] == pytest.approx(0.05 * float(twin[0].weight.grad.norm()), rel=1e-3)
    assert update.ratio[-1] == pytest.approx(update.norm[-1] / recorder.series["0.weight"].norm[-2], rel=1e-3)


def test_what_was_recorded_is_not_changed_by_what_is_later_written_in_place():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True))
    with Recorder(every=1) as recorder:
        recorder.track_layers(model)
        model(-torch.ones(1, 4)).sum().backward()
        recorder.step()
    assert recorder.series["0"].min[0] < 0
    assert recorder.series["1"].min[0] == 0
    # The gradient of the linear layer's output is the one before the in-place write.
    assert recorder.series["0.grad"].max[0] == 1
    assert recorder.series["0.grad"].zeros[0] == recorder.series["1"].zeros[0]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, [0, 10, 20]),
        ({"every": 8, "start": 3}, [3, 11, 19]),
        ({"every": 2, "until": 5}, [0, 2, 4]),
        ({"every": 1, "per_second": 1e-3}, [0]),
    ],
)
def test_which_steps(options: dict, steps: list[int]):
    model = small_model()
    with Recorder(**options) as recorder:
        recorder.track_layers(model, "0")
        train(model, 25, recorder)
    assert recorder.series["0"].step.tolist() == steps
    assert len(recorder.series["loss"]) == 25


def test_it_can_be_turned_off_and_on():
    model = small_model()
    with Recorder(every=1) as recorder:
        recorder.track_layers(model, "0")
        for enabled in (True, False, True):
            recorder.enabled = enabled
            train(model, 3, recorder)
    assert recorder.series["0"].step.tolist() == [0, 1, 2, 3, 7, 8]


def test_it_keeps_the_latest_rows():
    model = small_model()
    with Recorder(every=1, keep=5) as recorder:
        recorder.track_layers(model, "0")
        train(model, 12, recorder)
    assert recorder.series["0"].step.tolist() == [7, 8, 9, 10, 11]


def test_a_transform_is_applied_before_anything_is_measured():
    model = small_model()
    with Recorder(every=1) as recorder:
        recorder.track_layers(model, "0", transform=lambda output: output[:, :2] * 0 + 7)
        train(model, 1, recorder)
    row = recorder.series["0"].rows[0]
    assert (row.count, row.mean, row.std) == (6, 7, 0)


def test_a_transform_that_writes_into_its_tensor_changes_nothing_of_training():
    model = small_model()
    with Recorder(every=1) as recorder:
        recorder.track_layers(model, transform=torch.Tensor.zero_)
        recorder.track_parameters(model, transform=torch.Tensor.zero_)
        losses = train(model, 2, recorder)
    assert losses == train(small_model(), 2)
    assert recorder.series["2"].norm.tolist() == [0, 0]


def test_tensors_of_the_loop_and_their_gradients():
    learned = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([learned], lr=0.1)
    with Recorder(every=1) as recorder:
        recorder.track_tensor("learned", learned)
        for _ in range(3):
            optimizer.zero_grad()
            hidden = learned * 2
            recorder.track_tensor("hidden", hidden)
            hidden.pow(2).sum().backward()
            optimizer.step()
    assert recorder.series["hidden"].max.tolist() == pytest.approx([2.0, 0.4, 0.08])
    assert recorder.series["hidden.grad"].max.tolist() == pytest.approx([4.0, 0.8, 0.16])
    assert recorder.series["learned.grad"].max.tolist() == pytest.approx([8.0, 1.6, 0.32])
    assert learned._backward_hooks is None or not learned._backward_hooks


class Awkward(nn.Module):
    """Layers of which not all can be tracked."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.lstm = nn.LSTM(4, 3, batch_first=True)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.unused = nn.Linear(3, 3)
        self.relu = nn.ReLU(inplace=True)
        self.choice = Choice()

    def forward(self, words):
        with torch.no_grad():
            self.frozen(torch.ones(1, 3))
        hidden, _ = self.lstm(self.embedding(words))
        out = self.relu(hidden + 0)
        self.choice(out)
        return {"logits": out, "words": words}


class Choice(nn.Module):
    def forward(self, x):
        return x.argmax(-1)


def test_it_finds_out_what_can_be_tracked():
    model = Awkward()
    with Recorder(every=1) as recorder:
        recorder.track_model(model)
        recorder.track_layers(model)
        model(torch.tensor([[1, 2, 3]]))["logits"].sum().backward()
        recorder.step()
    both = {"output", "gradient"}
    assert recorder.trackable == {"embedding": both, "lstm": both, "relu": both, "model": both}
    assert len(recorder.series["unused"]) == 0
    assert recorder.series["model"].count.tolist() == [9]


def test_what_is_not_there_as_numbers_is_left_out():
    model = nn.Linear(4, 2)
    with Recorder(every=1) as recorder:
        recorder.track_model(model)
        torch.func.vmap(model)(torch.ones(3, 4))
        torch.func.grad(lambda x: model(x).sum())(torch.ones(4))
        torch.func.functional_call(
            model.to("meta"), dict(nn.Linear(4, 2).to("meta").named_parameters()), torch.ones(1, 4, device="meta")
        )
        recorder.step()
    assert len(recorder.series["model"]) == 0


def test_several_models_have_names():
    one, two = small_model(), small_model()
    with Recorder(every=1) as recorder:
        recorder.track_layers(one, name="one")
        recorder.track_layers(two, name="two")
        with pytest.raises(ValueError, match=r"'one\.0' is already tracked"):
            recorder.track_layers(two, name="one")
        train(one, 1)
        train(two, 2)
    # Their optimizers take turns: each ends a step.
    assert recorder.series["one.0"].step.tolist() == [0]
    assert recorder.series["two.0"].step.tolist() == [1, 2]


def test_several_recorders_do_not_see_each_other():
    one, two = small_model(), small_model()
    with Recorder(every=1) as first, Recorder(every=2) as second:
        first.track_layers(one, "0")
        second.track_layers(two, "0")
        train(one, 3)
        train(two, 5)
    assert first.series["0"].step.tolist() == [0, 1, 2]
    assert second.series["0"].step.tolist() == [0, 2, 4]


def test_manual_steps_are_those_of_the_loop():
    one, two = small_model(), small_model()
    with Recorder(every=1, steps="manual") as recorder:
        recorder.track_layers(one, "0", name="one")
        recorder.track_parameters(two, "0.weight", name="two")
        for _ in range(3):
            train(one, 1)
            train(two, 1)
            recorder.step()
    assert recorder.series["one.0"].step.tolist() == [0, 1, 2]
    assert (recorder.series["two.0.weight.update"].norm > 0).all()


def test_accumulation_has_a_row_a_call():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(every=1) as recorder:
        recorder.track_layers(model, "0")
        recorder.track_parameters(model, "0.weight")
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(3):
                model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
    assert recorder.series["0"].step.tolist() == [0, 0, 0, 1, 1, 1]
    assert recorder.series["0"].call.tolist() == [1, 2, 3, 1, 2, 3]
    assert recorder.series["0.weight.grad"].step.tolist() == [0, 1]


def test_a_closure_as_lightning_and_lbfgs_have_it():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 4)).pow(2).mean()
        loss.backward()
        return loss

    with Recorder(every=1) as recorder:
        recorder.track_layers(model, "0")
        recorder.track_parameters(model, "0.weight")
        for _ in range(3):
            loss = optimizer.step(closure)
            recorder.step(loss=loss)
    for name in ("0", "0.grad", "0.weight.grad", "0.weight.update", "loss"):
        assert recorder.series[name].step.tolist() == [0, 1, 2]
    assert (recorder.series["0.weight.grad"].norm > 0).all()


def test_validation_between_steps_is_not_read():
    model = small_model()
    with Recorder(every=1) as recorder:
        recorder.track_layers(model, "0")
        for _ in range(2):
            train(model, 1, recorder)
            with torch.no_grad():
                model(torch.ones(100, 4))
    assert recorder.series["0"].count.tolist() == [24, 24]
    with Recorder(every=1, no_grad=True) as recorder, torch.no_grad():
        recorder.track_layers(model, "0")
        model(torch.ones(100, 4))
        recorder.step()
    assert recorder.series["0"].count.tolist() == [800]


def test_mixed_precision_with_a_scaler():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with Recorder(every=1, scaler=scaler) as recorder:
        recorder.track_layers(model)
        recorder.track_parameters(model)
        recorder.expect(no_nan=True, grad_norm="<100")
        for number in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                output = model(torch.ones(1, 4))
            loss = output.float().sum() * (float("inf") if number == 1 else 1)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    # The second backward overflowed: the scaler left that step out, and so did its optimizer.
    assert recorder.series["2.bias.grad"].max.tolist() == [1, 1, 1]
    assert recorder.series["2.grad"].step.tolist() == [0, 1, 1, 2]
    assert recorder.series["2.grad"].max.tolist()[:1] == [1]
    assert recorder.series["2"].rows[0].count == 2


def test_a_tracked_model_can_be_copied_and_saved_and_the_copy_is_not_tracked(tmp_path: Path):
    model = small_model()
    with Recorder(tmp_path / "out", every=1, videos=False, page=False) as recorder:
        recorder.track_layers(model)
        recorder.track_model(model)
        recorder.track_tensor("weight", model[0].weight)
        average = torch.optim.swa_utils.AveragedModel(model)
        torch.save(model, tmp_path / "model.pt")
        copies = [copy.deepcopy(model), average.module, torch.load(tmp_path / "model.pt", weights_only=False)]
        losses = [train(one, 2) for one in copies]
        assert losses == [train(small_model(), 2)] * 3
        assert not any(len(series) for series in recorder.series.values())
        train(model, 2)
    assert recorder.series["0.grad"].step.tolist() == [0, 1]
    saved = (tmp_path / "model.pt").read_bytes()
    assert b"torchlens" not in saved, "it can be loaded where this package is not installed"


def test_gradients_that_are_sparse(tmp_path: Path):
    model = nn.EmbeddingBag(10, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(list(model.parameters()))
    with Recorder(tmp_path, every=1, videos=False, page=False) as recorder:
        recorder.track_parameters(model, callback=callbacks.ignore)
        recorder.expect(no_nan=True, grad_norm="<1e3")
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.tensor([[1, 2]])).sum().backward()
            optimizer.step()
    assert recorder.series["weight.grad"].count.tolist() == [30, 30]
    assert recorder.series["weight.grad"].zeros.tolist() == pytest.approx([0.8, 0.8])
    assert recorder.report["weight.grad"].written == 2


def test_activation_checkpointing_is_read_where_a_gradient_comes():
    from torch.utils.checkpoint import checkpoint

    model = small_model()
    with Recorder(every=1) as recorder:
        recorder.track_layers(model)
        checkpoint(model, torch.ones(1, 4), use_reentrant=False).sum().backward()
        recorder.step()
    assert recorder.series["0.grad"].norm[0] > 0


def test_attention_is_a_layer_too():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    with Recorder(every=1) as recorder:
        recorder.track_layers(model)
        model(torch.ones(2, 3, 8)).sum().backward()
        recorder.step()
    assert recorder.trackable["self_attn"] == {"output", "gradient"}
    assert recorder.series["self_attn"].count.tolist() == [48]


def test_a_recorder_that_nobody_closed_is_freed_and_leaves_no_hook_once_another_starts():
    from torch.optim import optimizer

    gc.collect()  # those of other tests
    with Recorder():
        before = len(optimizer._global_optimizer_post_hooks) - 1
    recorder = weakref.ref(Recorder())
    gc.collect()
    assert recorder() is None
    with Recorder():
        assert len(optimizer._global_optimizer_post_hooks) == before + 1
    assert len(optimizer._global_optimizer_post_hooks) == before


def test_a_recorder_that_nobody_closed_may_be_collected_while_an_optimizer_calls_its_hooks():
    """Seen in CI: the collector removed a hook from the dictionary that PyTorch was walking."""
    forgotten = [Recorder()]
    model = small_model()
    handle = register_optimizer_step_post_hook(_forget(forgotten))
    try:
        with Recorder(every=1) as recorder:
            recorder.track_layers(model, "0")
            train(model, 2)
    finally:
        handle.remove()
    assert recorder.series["0"].step.tolist() == [0, 1]


@pytest.mark.slow
def test_a_compiled_model_trains_on_and_its_parameters_are_read():
    model = small_model()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with Recorder(every=1) as recorder:
        recorder.track_model(compiled)
        recorder.track_layers(model)
        recorder.track_parameters(model)
        losses = train(compiled, 3, recorder)
    assert losses == pytest.approx(train(small_model(), 3))
    for name in ("model", "model.grad", "0.weight.grad", "0.weight.update"):
        assert recorder.series[name].step.tolist() == [0, 1, 2]


def test_columns_have_names():
    with Recorder() as recorder:
        recorder.log(loss=1.0)
    with pytest.raises(AttributeError, match="did you mean 'norm'"):
        _ = recorder.series["loss"].nrom


def _forget(recorders):
    def hook(*_):
        recorders.clear()
        gc.collect()

    return hook
