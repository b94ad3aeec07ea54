"""Runs models in a worker process, so that a crash, a kill or a hang costs only that model.

`Isolation` runs models and replaces a worker that failed.  `Worker` is one process, seen from its parent.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from typing import TYPE_CHECKING
from typing import Any
from typing import Protocol
from typing import cast

import psutil
import torch

from pytest_torchlens.records import ErrorRecord
from pytest_torchlens.records import ModelReport
from pytest_torchlens.records import Outcome
from pytest_torchlens.records import Stage
from pytest_torchlens.records import from_json
from pytest_torchlens.records.files import temporary_file
from pytest_torchlens.run.child import ANSWERS
from pytest_torchlens.run.child import pack
from pytest_torchlens.run.errors import is_noise

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_torchlens.run.run_options import RunOptions
    from pytest_torchlens.zoo import ModelCase


POLL = 0.1
"""Seconds between two checks of a worker's time and memory."""
START = 300.0
"""Seconds for importing libraries and reading the zoo file, before the model's own time begins."""
GRACE = 1.0
"""Seconds for a worker to write its frames before it is killed."""
MOST_CHARACTERS = 80
"""Characters shown of a line that the worker did not write."""
COMMAND = [sys.executable, "-m", "pytest_torchlens.run.child"]


@dataclass(frozen=True)
class JobLimits:
    """What one model may use."""

    seconds: float
    memory: int
    """Bytes of the whole process, of which PyTorch and the model's library take 300 to 450 MB."""


def memory_share() -> int:
    """Return four fifths of the machine's memory, shared between the workers of pytest-xdist, in bytes."""
    return psutil.virtual_memory().total * 4 // 5 // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


class NoAnswerError(Exception):
    """The worker gave no answer: it crashed, was killed, or exceeded a limit."""

    def __init__(self, kind: str, stage: Stage, message: str, output: str, *, begun: bool) -> None:
        super().__init__(message)
        self.kind = kind
        """``"TimeLimit"``, ``"MemoryLimit"``, ``"StrayOutput"`` or ``"Crash"``."""
        self.stage = stage
        self.output = output
        self.begun = begun
        """Whether the worker began the model."""


class Worker:
    """One process that runs models until it is closed.

    Parameters
    ----------
    command
        The command of another interpreter; None for this interpreter with the `sys.path` of this process.
    """

    def __init__(self, command: list[str] | None = None) -> None:
        self._stderr = temporary_file()
        self._process = subprocess.Popen(  # noqa: S603
            command or COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            encoding="utf-8",
            errors="backslashreplace",
            start_new_session=True,
        )
        self._stdin = cast("IO[str]", self._process.stdin)
        self._stdout = cast("IO[str]", self._process.stdout)
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._begin = 0
        """Where the output of the current model begins."""
        self._number = 0
        """Number of the current model, in each of its messages; messages left from an earlier model have another."""
        self._begun = False
        """Whether the current model has begun."""
        self._silent = False
        """Whether no more messages can come."""
        self._zoos: set[str] = set()
        """Zoo files that the process has read."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._send({"path": None if command else sys.path, "threads": torch.get_num_threads()})

    def run(self, job: dict[str, Any], limits: JobLimits, progress: Callable[[Stage], None]) -> dict[str, Any]:
        """Return the answer to a job.

        Raises
        ------
        NoAnswerError
            If the process gives none.
        """
        self._begin, self._begun = self._end(), False
        self._number += 1
        self._send({**job, "number": self._number})
        stage, deadline = Stage.BUILD, time.monotonic() + (limits.seconds if job["zoo"] in self._zoos else START)
        while True:
            message = self._next(limits, stage, deadline)
            if "answer" in message:
                return dict(message["answer"])
            if not self._begun:
                deadline, self._begun = time.monotonic() + limits.seconds, True
                self._zoos.add(job["zoo"])
            stage = self._stage(message, stage)
            progress(stage)

    def output(self) -> str:
        """Return what the current model wrote, and what Python wrote about a crash."""
        self._stderr.seek(self._begin)
        return self._stderr.read().decode(errors="replace")

    def memory(self, *, shared_once: bool = False) -> int:
        """Return the bytes that the process and its children hold; 0 if it has ended.

        With `shared_once`, which takes longer, memory that a child shares with its parent counts once.
        """
        nbytes, family = 0, self._family()
        for process in family:
            with contextlib.suppress(psutil.Error):
                nbytes += _share(process) if shared_once and len(family) > 1 else process.memory_info().rss
        return nbytes

    def close(self) -> None:
        """Kill the process and all that it started."""
        self._kill()
        self._process.wait()
        self._reader.join(GRACE)
        for file in (self._stdin, self._stderr, *(() if self._reader.is_alive() else (self._stdout,))):
            with contextlib.suppress(OSError):  # unsent data
                file.close()

    def _kill(self) -> None:
        """Kill the process, its children, and all other processes of its session."""
        if self._process.returncode is not None:
            return  # already killed and waited for: other processes may have its numbers now
        for process in self._family():
            with contextlib.suppress(psutil.Error):
                process.kill()
        if hasattr(os, "killpg"):
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _family(self) -> list[psutil.Process]:
        try:
            process = psutil.Process(self._process.pid)
            return [*process.children(recursive=True), process]
        except psutil.Error:
            return []

    def _send(self, message: dict[str, Any]) -> None:
        """Send a line; if nobody reads it any more, waiting for the answer will show that."""
        with contextlib.suppress(OSError):
            self._stdin.write(json.dumps(message) + "\n")
            self._stdin.flush()

    def _read(self) -> None:
        try:
            for line in self._stdout:
                self._messages.put(_message(line))
        finally:
            self._messages.put(None)

    def _next(self, limits: JobLimits, stage: Stage, deadline: float) -> dict[str, Any]:
        """Return the next message; check the limits while waiting."""
        while True:
            with contextlib.suppress(queue.Empty):
                if message := self._messages.get(timeout=POLL):
                    if "stray" not in message and message.get("job") != self._number:
                        return {"stray": json.dumps(message)[:MOST_CHARACTERS]}
                    return message
                self._silent = True
            if self._has_ended():
                self._kill()  # a process that it forked may hold the pipe open
                if self._silent:
                    raise self._crash(stage)
            if time.monotonic() > deadline:
                raise self._too_long(limits, stage)
            if self.memory() > limits.memory and (nbytes := self.memory(shared_once=True)) > limits.memory:
                sizes = f"{nbytes / 2**30:.1f} GiB of memory, more than the {limits.memory / 2**30:.1f} GiB it may have"
                raise self._died("MemoryLimit", stage, f"its process took {sizes}")

    def _has_ended(self) -> bool:
        """Whether the process has ended; does not wait for it, which would free its number."""
        try:
            return bool(psutil.Process(self._process.pid).status() == psutil.STATUS_ZOMBIE)
        except psutil.Error:
            return True

    def _stage(self, message: dict[str, Any], stage: Stage) -> Stage:
        """Return the stage that a message announces; any other line is the model's stray output."""
        if "stray" not in message:
            return Stage(message["stage"])
        pipe = f"the pipe by which its process answers (file descriptor {ANSWERS})"
        raise self._died("StrayOutput", stage, f"it wrote to {pipe}: {message['stray']!r}")

    def _too_long(self, limits: JobLimits, stage: Stage) -> NoAnswerError:
        if hasattr(signal, "SIGUSR1"):
            with contextlib.suppress(OSError):  # `Popen.send_signal` would wait for it if it has ended
                os.kill(self._process.pid, signal.SIGUSR1)  # Python writes its frames to stderr
            time.sleep(GRACE)
        return self._died("TimeLimit", stage, f"took more than the {limits.seconds:g} s it may{_place(self.output())}")

    def _crash(self, stage: Stage) -> NoAnswerError:
        code = self._process.wait()
        if code >= 0:
            return self._died("Crash", stage, f"its process ended itself with status {code}")
        name = signal.Signals(-code).name
        cause = " (out of memory, most likely)" if name == "SIGKILL" else _place(self.output())
        return self._died("Crash", stage, f"its process was ended by {name}{cause}")

    def _died(self, kind: str, stage: Stage, message: str) -> NoAnswerError:
        return NoAnswerError(kind, stage, message, self.output(), begun=self._begun)

    def _end(self) -> int:
        return self._stderr.seek(0, io.SEEK_END)


def _message(line: str) -> dict[str, Any]:
    """Return the message on a line, or the line as stray output if it is not one."""
    with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
        message = json.loads(line)
        if isinstance(message, dict) and (isinstance(message.get("answer"), dict) or message["stage"] in _STAGES):
            return message
    return {"stray": line[:MOST_CHARACTERS]}


def _share(process: psutil.Process) -> int:
    """Return the bytes that a process holds, with its part of the memory that it shares."""
    try:
        found = process.memory_full_info()
    except psutil.AccessDenied:
        return int(process.memory_info().rss)
    return int(getattr(found, "pss", found.uss))


def _place(output: str) -> str:
    """Return the model's innermost line in the frames that Python wrote about a crash or hang."""
    block = output.rpartition("most recent call first")[2]
    for filename, line, function in _FRAME.findall(block):
        if not (is_noise(filename, "") or filename.startswith(("<frozen", _TORCH)) or _is_pythons(filename)):
            return f", at {filename}:{line} in {function}"
    return ""


def _is_pythons(filename: str) -> bool:
    return filename.startswith(_PYTHON) and "-packages" not in filename


_STAGES = {stage.value for stage in Stage}
_FRAME = re.compile(r'File "(.+?)", line (\d+) in (.+)')
_TORCH = str(Path(torch.__file__).parent)
_PYTHON = str(Path(os.__file__).parent)


AT_REST = 2 * 2**30
"""Bytes that a worker may hold between two models; one that holds more is replaced."""


@dataclass(frozen=True)
class IsolatedResult:
    """The result of one model in a worker process."""

    report: ModelReport
    output: str = ""
    """What the model printed."""
    skipped: str | None = None
    """The reason, if the model called `pytest.skip`."""


class Runner(Protocol):
    """Runs models somewhere: `Isolation`, and what the hook ``pytest_lens_make_runner`` gives."""

    def run(self, case: ModelCase, progress: Callable[[Stage], None]) -> IsolatedResult:
        """Run one model through all stages, up to the first that fails; call `progress` as each begins."""

    def close(self) -> None:
        """Free everything; called once, at the end of the run."""


class Isolation:
    """Runs models in one worker process, and replaces it when it fails or grows.

    Parameters
    ----------
    options
        What to do with each model.
    limits
        What a model may use, unless its zoo file sets other limits.
    command
        The worker's command; None for this interpreter.
    """

    def __init__(self, options: RunOptions, limits: JobLimits, command: list[str] | None = None) -> None:
        self._command = command
        self._options = options
        self._limits = limits
        self._worker: Worker | None = None

    def run(self, case: ModelCase, progress: Callable[[Stage], None]) -> IsolatedResult:
        """Run one model through all stages, up to the first that fails.

        A model whose worker dies is run again in a new worker if the old one had run other models before, which may be
        the cause; but not if the model itself exceeded its time.
        """
        worn = self._worker is not None
        try:
            return self._attempt(case, progress)
        except NoAnswerError as error:
            if not worn or (error.kind == "TimeLimit" and error.begun):
                return _obituary(case, error)
        try:
            return self._attempt(case, progress)
        except NoAnswerError as error:
            return _obituary(case, error)

    def close(self) -> None:
        """End the worker."""
        if self._worker:
            self._worker.close()
            self._worker = None

    def _attempt(self, case: ModelCase, progress: Callable[[Stage], None]) -> IsolatedResult:
        self._worker = worker = self._worker or Worker(self._command)
        try:
            answer = worker.run(pack(case, self._options), self._limits_of(case), progress)
            output = worker.output()
        except BaseException:  # also on Ctrl-C: the worker is busy
            self.close()
            raise
        if worker.memory() > AT_REST:
            self.close()
        if "raised" in answer:
            return _interrupted(case, from_json(answer["raised"], ErrorRecord), output)
        return IsolatedResult(from_json(answer["report"], ModelReport), output)

    def _limits_of(self, case: ModelCase) -> JobLimits:
        settings = case.settings
        return JobLimits(settings.timeout or self._limits.seconds, settings.memory or self._limits.memory)


def _interrupted(case: ModelCase, error: ErrorRecord, output: str) -> IsolatedResult:
    if error.type == "Skipped":
        return IsolatedResult(_failed(case, error.stage), output, skipped=error.message)
    return IsolatedResult(_failed(case, error.stage, error), output)


def _obituary(case: ModelCase, error: NoAnswerError) -> IsolatedResult:
    record = ErrorRecord(stage=error.stage, type=error.kind, message=str(error))
    return IsolatedResult(_failed(case, error.stage, record), error.output)


def _failed(case: ModelCase, stage: Stage, error: ErrorRecord | None = None) -> ModelReport:
    return ModelReport(
        zoo=case.zoo,
        name=case.name,
        weights=case.settings.weights,
        outcome=Outcome.FAILED,
        stage=stage,
        error=error,
    )
