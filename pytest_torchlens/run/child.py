"""The worker process: runs one model after another, as the parent process asks.

Jobs and answers are lines of JSON on two pipes, which start as standard input and output.  Whatever a model prints goes
to standard error, which is a file of the parent.  A model that reads standard input finds it empty.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import queue
import signal
import sys
import threading
from dataclasses import asdict
from dataclasses import fields
from pathlib import Path
from typing import IO
from typing import TYPE_CHECKING
from typing import Any

from pytest_torchlens.baseline.policy import Policy
from pytest_torchlens.report import Graphs
from pytest_torchlens.run.run_options import RunOptions
from pytest_torchlens.zoo import load_zoo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_torchlens.zoo import ModelCase
    from pytest_torchlens.zoo import Zoo


JOBS, ANSWERS = 198, 199
"""File descriptors of a worker's two pipes; models rarely use such high numbers."""
_TUPLES = ("update", "fail_on", "keep")


def pack(case: ModelCase, options: RunOptions) -> dict[str, Any]:
    """Return a job as plain data for JSON.

    Raises
    ------
    ValueError
        If the case does not come from a zoo file: the worker builds its model from that file.
    """
    if case.file is None:
        raise ValueError(f"{case.zoo}:{case.name}: expected a model of a zoo file, which another process can build")
    plain = {field.name: getattr(options, field.name) for field in fields(options) if field.name != "own_checks"}
    plain["folder"] = options.folder and str(options.folder)
    plain["graphs"] = options.graphs and [str(options.graphs.folder), *options.graphs.settings]
    plain["baseline"] = options.baseline and asdict(options.baseline)
    return {"zoo": str(case.file), "name": case.name, "options": plain}


class Unpacker:
    """Reads jobs, and each zoo file once."""

    def __init__(self) -> None:
        self._zoos: dict[str, Zoo] = {}

    def unpack(self, job: Mapping[str, Any]) -> tuple[ModelCase, RunOptions]:
        """Return the model case and the options of its run."""
        path = job["zoo"]
        if path not in self._zoos:
            self._zoos[path] = load_zoo(Path(path))
        return self._zoos[path].case(job["name"]), _options(job["options"])


def _options(plain: dict[str, Any]) -> RunOptions:
    graphs, folder, parts = plain["graphs"], plain["folder"], plain["parts"]
    plain["graphs"] = graphs and Graphs.of(Path(graphs[0]), graphs[1:])
    plain["folder"] = folder and Path(folder)
    plain["parts"] = parts and tuple(parts)
    plain["checks"] = plain["checks"] and tuple(plain["checks"])
    plain["ignore"] = tuple(plain["ignore"])
    baseline = plain["baseline"]
    plain["baseline"] = baseline and Policy(**{**baseline, **{key: tuple(baseline[key]) for key in _TUPLES}})
    return RunOptions(**plain)


def main() -> None:
    """Run jobs until the parent closes the input or ends."""
    jobs, answers_to = _move(0, JOBS), _move(1, ANSWERS)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    answers = os.fdopen(answers_to, "w", encoding="utf-8")
    faulthandler.enable()
    if hasattr(faulthandler, "register"):  # not on Windows
        faulthandler.register(signal.SIGUSR1)
    _raise_oom_score()
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(jobs, lines), daemon=True).start()
    setup = json.loads(lines.get())
    if setup["path"] is not None:
        sys.path[:] = setup["path"]
    _serve(lines, answers, setup["threads"])


def _move(own: int, place: int) -> int:
    """Duplicate a pipe to the descriptor `place`, or to any free one if ``ulimit -n`` is lower; return it."""
    try:
        return os.dup2(own, place, inheritable=False)
    except OSError:
        return os.dup(own)


def _serve(lines: queue.SimpleQueue[str], answers: IO[str], threads: int) -> None:
    import torch

    from pytest_torchlens.records import Stage
    from pytest_torchlens.records import to_json
    from pytest_torchlens.run import run_case
    from pytest_torchlens.run.errors import error_record
    from pytest_torchlens.zoo.errors import end_forks

    def answer(message: dict[str, Any]) -> None:
        sys.stdout.flush()
        answers.write(json.dumps({**message, "job": job["number"]}) + "\n")
        answers.flush()

    job: dict[str, Any] = {}
    stage = Stage.BUILD

    def progress(begun: Stage) -> None:
        nonlocal stage
        stage = begun
        answer({"stage": begun.value})

    torch.set_num_threads(threads)
    jobs = Unpacker()
    modules = _spare_collector(0)
    while True:
        job, stage = json.loads(lines.get()), Stage.BUILD
        try:
            with end_forks():  # both run the user's code
                case, options = jobs.unpack(job)
                report = run_case(case, options, progress).report
        except BaseException as error:  # noqa: BLE001 - pytest.skip in forward, or a Ctrl-C that the model makes
            answer({"answer": {"raised": to_json(error_record(stage, error))}})
        else:
            answer({"answer": {"report": to_json(report)}})
        case = report = None  # type: ignore[assignment] # free the model before the next is built
        modules = _spare_collector(modules)


def _spare_collector(modules: int) -> int:
    """Free what can be freed, and return how many modules there are now.

    If they are more than `modules`, what is left is not looked at in later collections: a collection looks at 400,000
    objects of imported libraries otherwise, which takes as long as a small model's pass.
    """
    gc.collect()
    if len(sys.modules) > modules:
        gc.freeze()
    return len(sys.modules)


def _read(jobs_from: int, lines: queue.SimpleQueue[str]) -> None:
    """Pass on each line; at the end of the input the parent is gone, so end this process at once."""
    with os.fdopen(jobs_from, encoding="utf-8") as jobs:
        for line in jobs:
            lines.put(line)
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():  # with all processes that models forked
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _raise_oom_score() -> None:
    """Raise our OOM score, so that the kernel kills this worker before the pytest process."""
    score = Path("/proc/self/oom_score_adj")
    if score.exists():
        score.write_text("1000", encoding="ascii")


if __name__ == "__main__":
    main()
