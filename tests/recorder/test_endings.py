"""However a recording ends, nothing is left running and what was recorded can be read."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.optim import optimizer

from pytest_torchlens.recorder import Recorder
from pytest_torchlens.recorder import RecorderError
from pytest_torchlens.recorder import output
from pytest_torchlens.recorder import process
from pytest_torchlens.recorder.process import Counts
from pytest_torchlens.recorder.worker import sink
from tests.recorder import callbacks
from tests.recorder.training import PATIENCE
from tests.recorder.training import frames
from tests.recorder.training import is_running
from tests.recorder.training import processes_with
from tests.recorder.training import shared_memory
from tests.recorder.training import small_model
from tests.recorder.training import table
from tests.recorder.training import train
from tests.recorder.training import wait_until

pytest.importorskip("av")
NAMED = Path("/dev/shm")  # noqa: S108 - where named memory would be
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are Linux's")
TRAINING = """
import os, signal, time
import torch
from pytest_torchlens.recorder import Recorder
from tests.recorder.training import small_model, train

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
torch.set_num_threads(1)
model = small_model()
with Recorder("out", every=1, policy="block", timeout=600) as recorder:
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


@pytest.fixture(autouse=sys.platform == "linux")
def nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Look, after each test, for processes and memory that it left."""
    mark = f"lens-test-{uuid.uuid4()}"
    monkeypatch.setenv("LENS_TEST", mark)
    before, named = shared_memory(), set(NAMED.glob("*lens*"))
    yield
    gc.collect()
    assert processes_with(mark) == set()
    assert shared_memory() - before == set()
    assert set(NAMED.glob("*lens*")) - named == set()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a process that is told to stop all the time that it needs, however busy the machine is."""
    monkeypatch.setattr(process, "FINISH_SECONDS", PATIENCE)


def wait_until_dead(pid: int) -> None:
    """Wait for a child to end; that it did is left to be found out by the recorder."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@LINUX
def test_what_stays_is_seen(tmp_path: Path):
    """The looks after each test see a recorder that is open: its process, and its memory."""
    mark, before = os.environ["LENS_TEST"], shared_memory()
    with Recorder(tmp_path, videos=False, page=False, timeout=PATIENCE) as recorder:
        recorder.step(loss=1.0)
        pids = set(recorder._recording.output.pids)
        wait_until(lambda: processes_with(mark) == pids, "the recorder's process")  # a new one has no environment yet
        assert len(shared_memory() - before) == 1


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
        parent.wait(PATIENCE)
        wait_until(lambda: not is_running(worker), "the end of the process beside")
    finally:
        if is_running(sleeper):
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
    hooks = set(optimizer._global_optimizer_post_hooks)
    model, recorder = small_model(), Recorder(tmp_path, every=1, timeout=PATIENCE)

    def training():
        with recorder:
            recorder.track_layers(model)
            train(model, 5, recorder)
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        training()
    assert not any(module._forward_hooks for module in model.modules())
    assert set(optimizer._global_optimizer_post_hooks) <= hooks
    assert all(counts.written == counts.seen == 5 for counts in recorder.report.values())
    assert len(frames(tmp_path / "000-0.mp4")) == 5


def slowly_consumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str) -> tuple[Counts, list[int]]:
    """Train 40 steps while the first frame is still being consumed; return what came of the frames, and their steps."""
    monkeypatch.chdir(tmp_path)
    model = small_model()
    with Recorder(tmp_path / "out", every=1, videos=False, slots=4, policy=policy, timeout=PATIENCE) as recorder:
        recorder.track_layers(model, "0", callback=callbacks.append_at_a_sign, gradients=False)
        train(model, 1, recorder)
        wait_until(Path("seen.txt").exists, "the first frame")
        if policy == "block":
            threading.Timer(0.2, Path("go").touch).start()
        train(model, 39, recorder)
        Path("go").touch()
    # Statistics are small and wait: all rows are there.
    assert [int(row["step"]) for row in table(tmp_path / "out") if row["item"] == "0"] == list(range(40))
    return recorder.report["0"], [int(line.split()[1]) for line in Path("seen.txt").read_text().splitlines()]


def test_a_slow_consumer_drops_frames_and_counts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    counts, seen = slowly_consumed(tmp_path, monkeypatch, "drop")
    assert counts.seen == 40
    assert 0 < counts.written == len(seen) < 40
    assert counts.dropped == 40 - counts.written


def test_a_slow_consumer_that_coalesces_ends_with_the_last_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    counts, seen = slowly_consumed(tmp_path, monkeypatch, "coalesce")
    assert seen == sorted(seen)
    assert seen[-1] == 39
    assert (counts.written, counts.coalesced, counts.dropped) == (len(seen), 40 - len(seen), 0)
    assert len(seen) < 40


def test_a_slow_consumer_that_blocks_misses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    counts, seen = slowly_consumed(tmp_path, monkeypatch, "block")
    assert counts.written == 40
    assert seen == list(range(40))


def test_what_is_not_written_in_time_is_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patient: None
):
    monkeypatch.chdir(tmp_path)
    model, recorder = small_model(), Recorder(tmp_path / "out", every=1, videos=False, timeout=0.5)
    recorder.track_layers(model, "0", gradients=False, callback=callbacks.append_at_a_sign)
    train(model, 60, recorder)
    stop = subprocess.Popen.terminate

    def stop_and_let_go_on(stopped: subprocess.Popen[bytes]) -> None:
        stop(stopped)
        Path("go").touch()

    monkeypatch.setattr(subprocess.Popen, "terminate", stop_and_let_go_on)
    wait_until(Path("seen.txt").exists, "the first frame")
    recorder.close()
    counts = recorder.report["0"]
    assert counts.seen == 60
    assert counts.written == len(Path("seen.txt").read_text(encoding="utf-8").splitlines()) == 1
    assert counts.dropped == 59
    report = json.loads((tmp_path / "out" / "recording-0.json").read_text(encoding="utf-8"))
    assert report["ended"] == "it was stopped before all was written"


def test_memory_does_not_grow_while_the_consumer_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "MAX_PENDING_ROWS", 40)
    model = small_model()
    recorder = Recorder(tmp_path, every=1, slots=4, videos=False, policy="coalesce", timeout=PATIENCE)
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
    monkeypatch.setattr(process, "FINISH_SECONDS", 0.1)
    wait_until(Path("hanging.txt").exists, "the first frame")
    with pytest.raises(RecorderError, match=r"did not end within 0\.5 s"):
        recorder.close()
    assert not is_running(recorder._recording.output.pids[0])


@pytest.mark.parametrize(("callback", "said"), [("fail", "ValueError: cannot bear 0"), ("die", "status 7")])
def test_a_crash_of_the_consumer_reaches_training(callback: str, said: str, tmp_path: Path):
    model, recorder = small_model(), Recorder(tmp_path, every=1, policy="block", timeout=PATIENCE)
    recorder.track_layers(model, "0", gradients=False, callback=getattr(callbacks, callback))
    with pytest.raises(RecorderError, match=said):
        train(model, 10_000, recorder)
    recorder.close()
    assert recorder.series["0"].step[-1] < 9_999
    # A frame is in the file when the next one tells how long it was shown.
    assert len(frames(tmp_path / "000-0.mp4")) >= 2
    assert [row["step"] for row in table(tmp_path) if row["item"] == "0"][:3] == ["0", "1", "2"]


def test_of_what_a_consumer_said_an_error_repeats_the_end(tmp_path: Path):
    model, recorder = small_model(), Recorder(tmp_path, every=1, videos=False, page=False, timeout=PATIENCE)
    recorder.track_layers(model, "0", gradients=False, callback=callbacks.fail_after_long_talk)
    train(model, 1, recorder)
    with pytest.raises(RecorderError, match="ValueError: enough") as caught:
        recorder.close()
    assert len(str(caught.value)) < 10_000


def test_a_killed_consumer_leaves_a_video_that_plays(tmp_path: Path):
    model, recorder = small_model(), Recorder(tmp_path, every=1, timeout=PATIENCE)
    recorder.track_layers(model, "0", gradients=False)
    train(model, 20, recorder)
    path, worker = tmp_path / "000-0.mp4", recorder._recording.output.pids[0]
    wait_until(lambda: path.exists() and path.stat().st_size > 10_000, "a frame in the file")
    os.kill(worker, signal.SIGKILL)
    wait_until_dead(worker)
    with pytest.raises(RecorderError, match="ended by signal 9"):
        train(model, 1, recorder)
    recorder.close()
    assert frames(path)
    lines = (tmp_path / "series.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    assert {line.count(",") for line in lines} == {lines[0].count(",")}
    assert lines[-1].endswith("\n")


def test_with_on_error_warn_training_goes_on(tmp_path: Path):
    model, recorder = small_model(), Recorder(tmp_path, every=1, policy="block", on_error="warn", timeout=PATIENCE)
    recorder.track_layers(model, "0", callback=callbacks.fail)
    with pytest.warns(RuntimeWarning, match="cannot bear"):
        losses = train(model, 400, recorder)
    recorder.close()
    assert losses == train(small_model(), 400)
    assert len(recorder.series["0"]) == 400


@LINUX
def test_a_full_disk_is_said_and_what_was_written_is_whole(tmp_path: Path):
    import resource

    model, recorder = small_model(), Recorder(tmp_path, every=1, policy="block", timeout=PATIENCE)
    recorder.track_layers(model)
    resource.prlimit(recorder._recording.output.pids[0], resource.RLIMIT_FSIZE, (20_000, 20_000))
    with pytest.raises(RecorderError, match=r"\.mp4 cannot be written: File too large"):
        train(model, 10_000, recorder)
    recorder.close()
    lines = (tmp_path / "series.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    assert {line.count(",") for line in lines} == {lines[0].count(",")}
    assert all(line.endswith("\n") for line in lines)
    assert any(frames(path) for path in tmp_path.glob("*.mp4"))


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path):
    (tmp_path / "file").touch()
    model, recorder = small_model(), Recorder(tmp_path / "file" / "out", every=1, timeout=PATIENCE)
    recorder.track_layers(model)
    with pytest.raises(RecorderError, match=r"out cannot be written: Not a directory"):
        train(model, 1, recorder)
    recorder.close()


def test_a_folder_belongs_to_one_recorder_at_a_time(tmp_path: Path):
    model, other = small_model(), small_model()
    with Recorder(tmp_path, every=1, videos=False, page=False, timeout=PATIENCE) as first:
        first.track_layers(model, "0", gradients=False)
        second = Recorder(tmp_path, every=1, timeout=PATIENCE)
        second.track_layers(other)
        with pytest.raises(RecorderError, match="another recorder writes into it; close that one first, or give each"):
            train(other, 1, second)
        second.close()
        train(model, 3, first)
    assert [int(row["step"]) for row in table(tmp_path) if row["item"] == "0"] == [0, 1, 2]
    with Recorder(tmp_path, videos=False, page=False, timeout=PATIENCE) as third:
        third.track_layers(other)
        train(other, 1, third)
    assert not any(path.name.endswith(".lock") for path in tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_neither_keeps_nor_releases_the_folder(tmp_path: Path):
    first = output.RecordingFolder(tmp_path)
    release, wait = os.pipe()
    child = os.fork()
    if child == 0:
        first.close()
        os.write(wait, b"x")
        time.sleep(PATIENCE)
        os._exit(0)
    try:
        os.read(release, 1)
        with pytest.raises(RecorderError, match="another recorder writes into it"):
            output.RecordingFolder(tmp_path)
        first.close()
        output.RecordingFolder(tmp_path).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_a_killed_process_left_over_locks_nothing(tmp_path: Path):
    script = "import os, sys, pathlib; from pytest_torchlens.recorder.output import RecordingFolder; "
    script += "folder = RecordingFolder(pathlib.Path(sys.argv[1])); os._exit(9)"
    subprocess.run([sys.executable, "-c", script, tmp_path], check=False)
    assert [path.name for path in tmp_path.iterdir()] == [output.LOCK]
    output.RecordingFolder(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_a_process_beside_that_starts_late_removes_nothing_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Seen under load: the first, yet to start, took the report of the other for that of an earlier recording."""
    model, recorder = small_model(), Recorder(tmp_path, every=1, workers=2, timeout=PATIENCE)
    recorder.track_layers(model, ["0", "2"], gradients=False)
    late = recorder._recording.output.pids[0]
    os.kill(late, signal.SIGSTOP)
    close = process.RecorderProcess.close

    def close_and_let_go_on(worker: process.RecorderProcess) -> RecorderError | None:
        error = close(worker)
        if worker.pid != late:
            os.kill(late, signal.SIGCONT)
        return error

    monkeypatch.setattr(process.RecorderProcess, "close", close_and_let_go_on)
    train(model, 2, recorder)
    recorder.close()
    assert sorted(path.name for path in tmp_path.glob("recording-*")) == ["recording-0.json", "recording-1.json"]
    assert (tmp_path / "index.html").read_text(encoding="utf-8").count('src="data:video/mp4;base64,') == 2


def test_a_process_beside_that_hangs_ends_when_it_is_alone(monkeypatch: pytest.MonkeyPatch):
    """It ends once no message was done with between two looks at it; as long as it gets on it lives."""
    source, parent = os.pipe()
    os.write(parent, b'{"do": "frame"}\n' * 3)
    os.close(parent)
    begun, ended = threading.Event(), threading.Event()
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        begun.wait()
        looks.append(seconds)
        next(taken, None)

    monkeypatch.setattr(sink, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(sink, "os", SimpleNamespace(read=os.read, _exit=lambda status: ended.set()))
    taken = iter(sink.Messages(source))
    next(taken)
    begun.set()
    assert ended.wait(PATIENCE)
    os.close(source)
    assert len(looks) == 4  # at three of them one of the three messages had been done with since the last
