"""What a recording leaves in its folder."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

from pytest_torchlens.recorder import Recorder
from tests.recorder import callbacks
from tests.recorder.training import PATIENCE
from tests.recorder.training import frames
from tests.recorder.training import small_model
from tests.recorder.training import table
from tests.recorder.training import train

pytest.importorskip("av")
HOSTILE = "</script><script>alert(1)</script>&\"'"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a recording of twelve steps, of about everything."""
    path = tmp_path_factory.mktemp("recording") / "deep" / "out"
    model = small_model()
    with Recorder(
        path, every=1, policy="block", tensorboard=tensorboard_is_there(), max_frames=5, timeout=PATIENCE
    ) as recorder:
        recorder.track_model(model)
        recorder.track_layers(model, "0", view="pca")
        recorder.track_parameters(model, "0.weight")
        for number in range(12):
            recorder.note = f"step {number}"
            recorder.track_tensor(HOSTILE, torch.full((3, 3), float("nan") if number == 5 else float(number)))
            train(model, 1, recorder)
    return path


def tensorboard_is_there() -> bool:
    import importlib.util

    return importlib.util.find_spec("tensorboard") is not None


def test_the_table_has_a_row_a_step(folder: Path):
    rows = [row for row in table(folder) if row["item"] == "0.weight.update"]
    assert [int(row["step"]) for row in rows] == list(range(12))
    assert all(float(row["ratio"]) > 0 for row in rows)
    assert {row["kind"] for row in table(folder)} >= {"output", "output gradient", "parameter", "update", "scalar"}
    assert [int(row["nans"]) for row in table(folder) if row["item"] == HOSTILE][5] == 9


def test_a_video_goes_on_in_another_file(folder: Path):
    files = sorted(folder.glob("000-model*.mp4"))
    assert [path.name for path in files] == ["000-model.2.mp4", "000-model.3.mp4", "000-model.mp4"]
    assert [len(frames(path)) for path in files] == [5, 2, 5]


def test_frames_have_the_size_asked_for_and_change(folder: Path):
    film = frames(folder / "000-model.mp4")
    assert {tuple(frame.shape) for frame in film} == {(360, 480, 3)}
    pictures = [frame[60:330].float() for frame in film]
    assert all((one - other).abs().mean() > 0.1 for one, other in pairwise(pictures))


def test_the_report_counts_frames_and_names_files(folder: Path):
    report = json.loads((folder / "recording-0.json").read_text(encoding="utf-8"))
    assert report["ended"] == "closed"
    assert report["errors"] == []
    by_name = {item["name"]: item for item in report["items"]}
    assert by_name["0"]["frames"] == 12
    assert all((folder / name).is_file() for item in report["items"] for name in item["files"])


def test_the_page_holds_all_and_asks_for_nothing(folder: Path):
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert page.count('src="data:video/mp4;base64,') >= 12
    assert "http:" not in page
    assert "https:" not in page
    assert "<script>alert" not in page
    assert "&lt;/script&gt;" in page
    assert "update over weight" in page
    assert "9 values not finite" in page
    assert re.search(r"<h2[^>]*>loss</h2>", page)
    assert "default-src &#39;none&#39;" in page


def test_a_curve_of_one_step_is_a_line_and_of_several_calls_in_it_too(tmp_path: Path):
    model = small_model()
    with Recorder(tmp_path, videos=False) as recorder:
        recorder.track_layers(model)
        for _ in range(2):
            model(torch.ones(3, 4))
        recorder.step(loss=1.0)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    lines = re.findall(r'class="line" d="M(\S+) .* L(\S+) [^L]*"', page)
    assert len(lines) == 5
    assert set(lines) == {("0.0", "300.0")}


def test_event_files_hold_the_scalars(folder: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    norms = events.Tensors("0.weight.grad/norm")
    assert [event.step for event in norms] == list(range(12))


def test_the_table_as_parquet_two_processes_and_a_class_as_callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.chdir(tmp_path)
    model = small_model()
    with Recorder("out", every=1, policy="block", series="parquet", workers=2, timeout=PATIENCE) as recorder:
        recorder.track_layers(model, ["0", "2"], gradients=False)
        recorder.track_tensor("ones", torch.ones(2, 2), video=False, callback=callbacks.Summing)
        assert len(set(recorder._recording.output.pids)) == 2
        train(model, 4, recorder)
    rows = parquet.read_table(tmp_path / "out" / "series.parquet").to_pylist()
    assert [row["step"] for row in rows if row["item"] == "2"] == [0, 1, 2, 3]
    assert next(row for row in rows if row["item"] == "2")["ratio"] is None
    assert not (tmp_path / "out" / "series.csv").exists()
    assert (tmp_path / "total.txt").read_text(encoding="utf-8") == "4.0"
    assert {path.name for path in (tmp_path / "out").glob("*.mp4")} == {"000-0.mp4", "001-2.mp4"}
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert page.count('src="data:video/mp4;base64,') == 2


def test_without_av_videos_are_animated_webp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from PIL import Image

    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys\nsys.modules['av'] = None\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "site")
    model = small_model()
    with Recorder(tmp_path / "out", every=1, policy="block", size=(320, 240), timeout=PATIENCE) as recorder:
        recorder.track_layers(model, "0", gradients=False)
        train(model, 6, recorder)
    with Image.open(tmp_path / "out" / "000-0.webp") as film:
        assert (film.n_frames, film.size) == (6, (320, 240))
    assert 'src="data:image/webp;base64,' in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")


def test_the_process_beside_imports_only_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    model = small_model()
    with Recorder("out", every=1, videos=False, page=False, timeout=PATIENCE) as recorder:
        recorder.track_layers(model, "0", gradients=False, callback=callbacks.note_modules)
        train(model, 1, recorder)
    heavy = {"torch", "PIL", "av", "pyarrow", "tensorboard", "jinja2", "matplotlib"}
    assert set(Path("modules.txt").read_text(encoding="utf-8").split()) & heavy == set()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["recording-0.json", "series.csv"]


def test_a_recorder_without_a_folder_starts_nothing_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    model = small_model()
    with Recorder(every=1) as recorder:
        recorder.track_layers(model)
        train(model, 3, recorder)
    assert recorder._recording.output.pids == []
    assert recorder.report == {}
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_used_again(tmp_path: Path):
    for layer in ("0", "2"):
        model = small_model()
        with Recorder(
            tmp_path, every=1, videos=False, series="parquet" if layer == "0" else "csv", timeout=PATIENCE
        ) as recorder:
            recorder.track_layers(model, layer, gradients=False)
            train(model, 2, recorder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.html", "recording-0.json", "series.csv"]
    assert {row["item"] for row in table(tmp_path)} == {"2", "loss"}


def test_files_that_are_no_recording_stay(tmp_path: Path):
    for name in ("recording-1.json", "series.parquet", "recording-0.json"):
        (tmp_path / name).write_text("[]", encoding="utf-8")
    with Recorder(tmp_path, every=1, videos=False, timeout=PATIENCE) as recorder:
        recorder.step(loss=1.0)
    assert (tmp_path / "recording-1.json").read_text(encoding="utf-8") == "[]"
    assert (tmp_path / "series.parquet").exists()


def test_of_an_earlier_recording_nothing_stays_and_of_others_all(tmp_path: Path):
    (tmp_path / "mine.mp4").write_bytes(b"mine")
    (tmp_path.parent / "above.mp4").write_bytes(b"mine")
    for steps in (7, 3):
        model = small_model()
        with Recorder(tmp_path, every=1, max_frames=4, timeout=PATIENCE) as recorder:
            recorder.track_layers(model, "0", gradients=steps == 7)
            train(model, steps, recorder)
        report = json.loads((tmp_path / "recording-0.json").read_text(encoding="utf-8"))
        report["items"][0]["files"].append("../above.mp4")
        (tmp_path / "recording-0.json").write_text(json.dumps(report), encoding="utf-8")
    assert sorted(path.name for path in tmp_path.glob("*.mp4")) == ["000-0.mp4", "mine.mp4"]
    assert (tmp_path.parent / "above.mp4").exists()


@pytest.mark.zoo
@pytest.mark.parametrize("name", ["alexnet", "transformer"])
def test_a_real_model_over_two_hundred_steps(name: str, tmp_path: Path):
    model, batch, target = real(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.003, momentum=0.9)
    with Recorder(tmp_path, every=10, policy="block", timeout=PATIENCE) as recorder:
        recorder.track_model(model)
        recorder.track_layers(model)
        recorder.track_parameters(model, "*.weight")
        recorder.expect(no_nan=True, grad_norm="<1e3", loss_decreases=True)
        for _ in range(200):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
            recorder.step(loss=loss)
    films = sorted(tmp_path.glob("*.mp4"))
    assert len(films) >= 40
    for path in films:
        film = frames(path)
        assert len(film) == 20
        assert {tuple(frame.shape) for frame in film} == {(360, 480, 3)}
        brightness = {round(float(frame.float().mean()), 3) for frame in film}
        assert len(brightness) > 5, path.name
    assert all(counts.dropped == 0 for counts in recorder.report.values())
    assert (tmp_path / "index.html").stat().st_size < 5_500_000


def real(name: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    if name == "alexnet":
        torchvision = pytest.importorskip("torchvision")
        return torchvision.models.alexnet(num_classes=10), torch.randn(4, 3, 64, 64), torch.arange(4)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(50, 32), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), Last())
    return model, torch.randint(50, (8, 16)), torch.arange(8)


class Last(nn.Module):
    """Reads the class off the last word."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(32, 10)

    def forward(self, words):
        return self.head(words[:, -1])
