"""The worker process: runs one model after another, as it is told.

Jobs and answers are lines of JSON, on two pipes that begin as standard input and output.  Whatever a model prints goes
to standard error, a file of the parent's; a model that reads finds nothing.
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
from pathlib import Path
from typing import IO
from typing import Any

from pytest_torchlens.run.job import ANSWERS
from pytest_torchlens.run.job import JOBS


def main() -> None:
    """Answer jobs until the parent closes the input, or is gone."""
    jobs, answers_to = _move(0, JOBS), _move(1, ANSWERS)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    answers = os.fdopen(answers_to, "w", encoding="utf-8")
    faulthandler.enable()
    if hasattr(faulthandler, "register"):  # not on Windows
        faulthandler.register(signal.SIGUSR1)
    _offer_oneself_to_the_kernel()
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(jobs, lines), daemon=True).start()
    setup = json.loads(lines.get())
    if setup["path"] is not None:
        sys.path[:] = setup["path"]
    _serve(lines, answers, setup["threads"])


def _move(own: int, place: int) -> int:
    """Return where a pipe goes on: in its place, or wherever there is room where that is beyond ``ulimit -n``."""
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
    from pytest_torchlens.run.job import Unpacker
    from pytest_torchlens.zoo.forks import forks_end

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
    while True:
        job, stage = json.loads(lines.get()), Stage.BUILD
        try:
            with forks_end():  # the user's code runs in both
                case, options = jobs.unpack(job)
                report = run_case(case, options, progress).report
        except BaseException as error:  # noqa: BLE001 - pytest.skip in forward, or a Ctrl-C that the model makes
            answer({"answer": {"raised": to_json(error_record(stage, error))}})
        else:
            answer({"answer": {"report": to_json(report)}})
        case = report = None  # type: ignore[assignment] # let go of the model before the next is built
        gc.collect()


def _read(jobs_from: int, lines: queue.SimpleQueue[str]) -> None:
    """Hand on each line; when there are no more the parent is gone, and nobody waits for what is being run."""
    with os.fdopen(jobs_from, encoding="utf-8") as jobs:
        for line in jobs:
            lines.put(line)
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():  # what models forked as well
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _offer_oneself_to_the_kernel() -> None:
    """Where memory runs out, the kernel shall end this process, and not the one that tells of it."""
    score = Path("/proc/self/oom_score_adj")
    if score.exists():
        score.write_text("1000", encoding="ascii")


if __name__ == "__main__":
    main()
