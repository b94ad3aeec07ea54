"""Loops of other libraries, as they are: they are seen through hooks, and know nothing of a recorder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data import TensorDataset

from pytest_torchlens.recorder import Recorder
from tests.recorder.training import PATIENCE
from tests.recorder.training import small_model

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
BATCHES, EPOCHS = 4, 2


def batches(workers: int = 0) -> DataLoader:
    return DataLoader(TensorDataset(torch.ones(BATCHES * 3, 4), torch.zeros(BATCHES * 3, 2)), 3, num_workers=workers)


def steps(recorder: Recorder, *names: str) -> list[list[int]]:
    return [recorder.series[name].step.tolist() for name in names]


@pytest.mark.parametrize(("options", "accumulated"), [({}, 1), ({"accumulate_grad_batches": 4}, 4)])
def test_lightning_with_validation_and_a_forked_loader(options: dict, accumulated: int, tmp_path: Path):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.loss = small_model(), nn.MSELoss()

        def training_step(self, batch, _):
            loss = self.loss(self.net(batch[0]), batch[1])
            recorder.log(loss=loss)
            return loss

        def validation_step(self, batch, _):
            self.loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 0.01)

    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    with Recorder(tmp_path, every=1, policy="block", videos=False, timeout=PATIENCE) as recorder:
        recorder.track_layers(module, name="lit")
        recorder.track_parameters(module, "*.weight", name="lit")
        recorder.expect(no_nan=True, grad_norm="<1e3", update_ratio="1e-9..1", loss_decreases=True)
        trainer.fit(module, batches(workers=1), batches())
    total = BATCHES * EPOCHS // accumulated
    each = [step for step in range(total) for _ in range(accumulated)]
    assert steps(recorder, "lit.net.0", "lit.net.0.grad", "loss") == [each, each, each]
    assert steps(recorder, "lit.net.0.weight.grad", "lit.net.0.weight.update") == [list(range(total))] * 2


@pytest.mark.parametrize(
    ("options", "accumulated"),
    [({}, 1), ({"mixed_precision": "bf16"}, 1), ({"gradient_accumulation_steps": 2}, 2)],
)
def test_accelerate_with_clipped_gradients_and_a_schedule(options: dict, accumulated: int):
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True, **options)
    plain = small_model()
    adam = torch.optim.AdamW(plain.parameters(), 0.01)
    model, optimizer, loader, schedule = accelerator.prepare(
        plain, adam, batches(), torch.optim.lr_scheduler.StepLR(adam, 2)
    )
    with Recorder(every=1) as recorder:
        recorder.track_layers(plain)
        recorder.track_parameters(plain)
        recorder.expect(no_nan=True, parameters_move=True, gradients_arrive=True)
        for values, wanted in (batch for _ in range(EPOCHS) for batch in loader):
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(values), wanted)
                recorder.log(loss=loss)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    total = BATCHES * EPOCHS // accumulated
    each = [step for step in range(total) for _ in range(accumulated)]
    assert steps(recorder, "0", "2.grad", "loss") == [each, each, each]
    assert steps(recorder, "0.weight.grad", "0.weight.update") == [list(range(total))] * 2


@pytest.mark.parametrize(
    ("options", "accumulated"),
    [({}, 1), ({"bf16": True}, 1), ({"gradient_accumulation_steps": 2}, 2), ({"gradient_checkpointing": True}, 1)],
)
def test_the_trainer_of_transformers(options: dict, accumulated: int, tmp_path: Path):
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=50, **sizes))
    words = [{"input_ids": torch.arange(8) + number, "labels": number % 2} for number in range(BATCHES * 3)]
    settings = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=3,
        num_train_epochs=EPOCHS,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        **options,
    )
    with Recorder(every=1) as recorder:
        recorder.track_model(model)
        recorder.track_layers(model, ["bert.encoder.layer.*.output.dense", "classifier"])
        recorder.track_parameters(model, "*.weight")
        recorder.expect(no_nan=True, grad_norm="<1e3")
        transformers.Trainer(model=model, args=settings, train_dataset=words).train()
    total = BATCHES * EPOCHS // accumulated
    each = [step for step in range(total) for _ in range(accumulated)]
    assert steps(recorder, "model", "classifier", "bert.encoder.layer.0.output.dense.grad") == [each, each, each]
    assert steps(recorder, "classifier.weight.grad", "classifier.weight.update") == [list(range(total))] * 2
