"""However a recording ends, nothing is left running and what was recorded can be read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.optim import optimizer

from pytest_torchlens.recorder import Recorder
from pytest_torchlens.recorder import RecorderError
from pytest_torchlens.recorder import process
from tests.recorder import callbacks
from tests.recorder.training import frames
from tests.recorder.training import small_model
from tests.recorder.training import table
from tests.recorder.training import train

pytest.importorskip("av")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are Linux's")
TRAINING = """
import os, signal, time
import torch
from pytest_torchlens.recorder import Recorder
from tests.recorder.training import small_model, train

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
torch.set_num_threads(1)
model = small_model()
with Recorder("out", every=1, policy="block") as recorder:
    recorder.track_layers(model, "0")
    train(model, 25, recorder)
    sleeper = os.fork()
    if sleeper == 0:
        time.sleep(120)
        os._exit(0)
    print(recorder._recording.output.pids[0], sleeper, flush=True)
    while True:
        train(model, 1, recorder)
"""


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pid: int) -> None:
    for _ in range(600):
        if not running(pid):
            return
        time.sleep(0.05)
    pytest.fail(f"process {pid} is still there")


@LINUX
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_the_process_beside_ends_with_the_one_that_records(how: signal.Signals, tmp_path: Path):
    root = Path(__file__).parents[2]
    parent = subprocess.Popen(
        [sys.executable, "-c", TRAINING],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root)},
        start_new_session=True,
    )
    assert parent.stdout is not None
    worker, sleeper = map(int, parent.stdout.readline().split())
    try:
        # As a terminal does: Ctrl-C goes to all of the group.
        (os.killpg if how is signal.SIGINT else os.kill)(parent.pid, how)
        parent.wait(30)
        wait_until_gone(worker)
    finally:
        if running(sleeper):
            os.kill(sleeper, signal.SIGKILL)
        parent.kill()
        parent.communicate()
    report = json.loads((tmp_path / "out" / "recording-0.json").read_text(encoding="utf-8"))
    assert report["ended"].startswith("closed" if how is signal.SIGINT else "the process that records ended")
    film = frames(tmp_path / "out" / "000-0.mp4")
    assert len(film) == report["items"][0]["frames"] >= 20
    steps = [int(row["step"]) for row in table(tmp_path / "out") if row["item"] == "0"]
    assert steps == list(range(len(steps)))
    assert len(steps) >= 20


def test_an_exception_in_training_passes_and_all_is_finished(tmp_path: Path):
    model, recorder = small_model(), Recorder(tmp_path, every=1)
    hooks = len(optimizer._global_optimizer_post_hooks)

    def training():
        with recorder:
            recorder.track_layers(model)
            train(model, 5, recorder)
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        training()
    assert not any(module._forward_hooks for module in model.modules())
    assert len(optimizer._global_optimizer_post_hooks) == hooks - 1
    assert all(counts.written == counts.seen == 5 for counts in recorder.report.values())
    assert len(frames(tmp_path / "000-0.mp4")) == 5


def test_a_slow_consumer_drops_frames_and_counts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    model = small_model()
    with Recorder(tmp_path / "out", every=1, videos=False, slots=4, timeout=30) as recorder:
        recorder.track_layers(model, "0", callback=callbacks.append_slowly, gradients=False)
        train(model, 40, recorder)
    counts = recorder.report["0"]
    seen = (tmp_path / "seen.txt").read_text(encoding="utf-8").splitlines()
    assert counts.seen == 40
    assert 0 < counts.written == len(seen) < 40
    assert counts.dropped == 40 - counts.written
    # Statistics are small and wait: all rows are there.
    assert [int(row["step"]) for row in table(tmp_path / "out") if row["item"] == "0"] == list(range(40))


def test_a_slow_consumer_that_coalesces_ends_with_the_last_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    model = small_model()
    with Recorder(tmp_path / "out", every=1, videos=False, slots=4, policy="coalesce") as recorder:
        recorder.track_layers(model, "0", callback=callbacks.append_slowly, gradients=False)
        train(model, 40, recorder)
    counts = recorder.report["0"]
    seen = [int(line.split()[1]) for line in (tmp_path / "seen.txt").read_text(encoding="utf-8").splitlines()]
    assert seen == sorted(seen)
    assert seen[-1] == 39
    assert (counts.written, counts.coalesced, counts.dropped) == (len(seen), 40 - len(seen), 0)


def test_a_slow_consumer_that_blocks_misses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    model = small_model()
    with Recorder(tmp_path / "out", every=1, videos=False, slots=4, policy="block") as recorder:
        recorder.track_layers(model, "0", callback=callbacks.append_slowly, gradients=False)
        train(model, 30, recorder)
    assert recorder.report["0"].written == 30
    assert len((tmp_path / "seen.txt").read_text(encoding="utf-8").splitlines()) == 30


def test_what_is_not_written_in_time_is_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    model, recorder = small_model(), Recorder(tmp_path / "out", every=1, videos=False, timeout=0.5)
    recorder.track_layers(model, "0", gradients=False, callback=callbacks.append_slowly)
    train(model, 1, recorder)
    while not (tmp_path / "seen.txt").exists():
        time.sleep(0.01)
    os.kill(recorder._recording.output.pids[0], signal.SIGSTOP)
    train(model, 119, recorder)
    os.kill(recorder._recording.output.pids[0], signal.SIGCONT)
    recorder.close()
    counts = recorder.report["0"]
    seen = (tmp_path / "seen.txt").read_text(encoding="utf-8").splitlines()
    assert counts.seen == 120
    assert 0 < counts.written == len(seen) < 120
    assert counts.dropped == 120 - counts.written
    report = json.loads((tmp_path / "out" / "recording-0.json").read_text(encoding="utf-8"))
    assert report["ended"] == "it was stopped before all was written"


def test_memory_does_not_grow_while_the_consumer_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "HELD", 40)
    model, recorder = small_model(), Recorder(tmp_path, every=1, slots=4, videos=False, policy="coalesce")
    recorder.track_layers(model, "0", gradients=False, callback=callbacks.ignore)
    train(model, 1, recorder)
    worker = recorder._recording.output.pids[0]
    os.kill(worker, signal.SIGSTOP)
    train(model, 300, recorder)
    os.kill(worker, signal.SIGCONT)
    recorder.close()
    counts = recorder.report["0"]
    assert recorder.rows_dropped > 400
    assert len(table(tmp_path)) + recorder.rows_dropped == 2 * 301
    assert counts.seen == 301 == counts.written + counts.coalesced
    assert counts.written < 20


def test_a_consumer_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    model, recorder = small_model(), Recorder(tmp_path / "out", videos=False, timeout=0.5)
    recorder.track_layers(model, "0", callback=callbacks.hang)
    train(model, 2, recorder)
    while not (tmp_path / "hanging.txt").exists():
        time.sleep(0.01)
    with pytest.raises(RecorderError, match=r"did not end within 0\.5 s"):
        recorder.close()
    assert not running(recorder._recording.output.pids[0])


@pytest.mark.parametrize(("callback", "said"), [("fail", "ValueError: cannot bear 0"), ("die", "status 7")])
def test_a_crash_of_the_consumer_reaches_training(callback: str, said: str, tmp_path: Path):
    model, recorder = small_model(), Recorder(tmp_path, every=1, policy="block")
    recorder.track_layers(model, "0", gradients=False, callback=getattr(callbacks, callback))
    with pytest.raises(RecorderError, match=said):
        train(model, 10_000, recorder)
    recorder.close()
    assert recorder.series["0"].step[-1] < 9_999
    # A frame is in the file when the next one tells how long it was shown.
    assert len(frames(tmp_path / "000-0.mp4")) >= 2
    assert [row["step"] for row in table(tmp_path) if row["item"] == "0"][:3] == ["0", "1", "2"]


def test_a_killed_consumer_leaves_a_video_that_plays(tmp_path: Path):
    model, recorder = small_model(), Recorder(tmp_path, every=1)
    recorder.track_layers(model, "0", gradients=False)
    train(model, 20, recorder)
    path = tmp_path / "000-0.mp4"
    for _ in range(400):
        if path.exists() and path.stat().st_size > 10_000:
            break
        time.sleep(0.05)
    os.kill(recorder._recording.output.pids[0], signal.SIGKILL)
    with pytest.raises(RecorderError, match="ended by signal 9"):
        train(model, 10_000, recorder)
    recorder.close()
    assert frames(path)


def test_with_on_error_warn_training_goes_on(tmp_path: Path):
    model, recorder = small_model(), Recorder(tmp_path, every=1, policy="block", on_error="warn")
    recorder.track_layers(model, "0", callback=callbacks.fail)
    with pytest.warns(RuntimeWarning, match="cannot bear"):
        losses = train(model, 400, recorder)
    recorder.close()
    assert losses == train(small_model(), 400)
    assert len(recorder.series["0"]) == 400


@LINUX
def test_a_full_disk_is_said_and_what_was_written_is_whole(tmp_path: Path):
    import resource

    model, recorder = small_model(), Recorder(tmp_path, every=1)
    recorder.track_layers(model)
    resource.prlimit(recorder._recording.output.pids[0], resource.RLIMIT_FSIZE, (20_000, 20_000))
    with pytest.raises(RecorderError, match="file could not be written"):
        train(model, 10_000, recorder)
    recorder.close()
    lines = (tmp_path / "series.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    assert {line.count(",") for line in lines} == {lines[0].count(",")}
    assert all(line.endswith("\n") for line in lines)
    assert any(frames(path) for path in tmp_path.glob("*.mp4"))


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path):
    (tmp_path / "file").touch()
    model, recorder = small_model(), Recorder(tmp_path / "file" / "out", every=1)
    recorder.track_layers(model)
    with pytest.raises(RecorderError, match=r"file could not be written: .*Not a directory"):
        train(model, 10_000, recorder)
    recorder.close()
