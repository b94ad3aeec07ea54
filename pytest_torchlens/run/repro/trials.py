"""Runs programs in two environments and measures how far their results are apart."""

from __future__ import annotations

import contextlib
import io
import subprocess
import threading
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO
from typing import TYPE_CHECKING
from typing import Any
from typing import cast

import torch

from pytest_torchlens.records.files import temporary_file
from pytest_torchlens.run.repro.gap import Gap
from pytest_torchlens.run.repro.gap import gap_between
from pytest_torchlens.run.repro.program import Program
from pytest_torchlens.run.repro.runner import send
from pytest_torchlens.run.repro.script import program_text
from pytest_torchlens.run.repro.script import stored

if TYPE_CHECKING:
    from typing_extensions import Self

_RUNNER = str(Path(__file__).with_name("runner.py"))
_SECONDS = 120
"""Time limit of each trial, and of the script that is written."""

Cuts = Mapping[str, Sequence[tuple[int, int, int]]]
"""Dimension, start and length of the parts of inputs that a trial takes, by name."""
Trial = tuple[str, Cuts]
"""A program's text, and what it takes of the inputs."""
Results = list[torch.Tensor] | str
"""What a trial computed, or the text of its error."""


class RunnerError(RuntimeError):
    """An environment does not answer."""


class HangError(RunnerError):
    """An environment does not answer in time."""


class Environment:
    """A process of an interpreter that runs programs; it starts anew if a program crashes it.

    Attributes
    ----------
    executable
        The interpreter.
    words
        Its versions and its CPU, in one line.
    torch
        The version of its PyTorch.
    """

    def __init__(self, executable: str) -> None:
        self.executable = executable
        self._tensors: dict[str, torch.Tensor] = {}
        self._is_sent = False
        self._awaited = 0
        facts = self._start()
        self.torch = str(facts["torch"])
        self.words = "torch {torch}, Python {python}, {platform}, {cpu}".format_map(facts)

    def _start(self) -> dict[str, Any]:
        self._errors = temporary_file()
        self._process = subprocess.Popen(  # noqa: S603
            [self.executable, "-I", _RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )
        self._is_sent = False
        return dict(self._receive())

    def keep(self, tensors: dict[str, torch.Tensor]) -> None:
        """Set the inputs of later trials."""
        self._tensors, self._is_sent = tensors, False

    def begin(self, trials: Iterable[Trial]) -> None:
        """Send trials; `finish` returns what they compute."""
        request: dict[str, Any] = {"trials": [(text, dict(cuts)) for text, cuts in trials]}
        self._awaited = len(request["trials"])
        if not self._is_sent:
            request["tensors"] = self._tensors
        self._is_sent = True
        with contextlib.suppress(OSError):  # `finish` finds out
            send(cast("IO[bytes]", self._process.stdin), request)

    def finish(self) -> list[Results]:
        """Return the results of the trials that were sent.

        Raises
        ------
        RunnerError
            If one ended the process, or `HangError` if it did not end in time.
        """
        return [self._receive() for _ in range(self._awaited)]

    def restart(self) -> None:
        """Begin anew, after a crash."""
        self.close()
        self._start()

    def _receive(self) -> Any:
        stream = cast("IO[bytes]", self._process.stdout)
        late = threading.Event()
        timer = threading.Timer(_SECONDS, self._kill, [late])
        timer.start()
        try:
            size = int.from_bytes(stream.read(8), "little")
            answer = stream.read(size)
        finally:
            timer.cancel()
        if size and len(answer) == size:
            return torch.load(io.BytesIO(answer), weights_only=True)
        if late.is_set():
            raise HangError(f"{self.executable} did not answer within {_SECONDS} s: an operation hangs there")
        raise RunnerError(f"{self.executable} cannot run it: {self._last_words()}")

    def _kill(self, late: threading.Event) -> None:
        late.set()
        self._process.kill()

    def _last_words(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it ended"

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()


@dataclass(frozen=True)
class Outcome:
    """What a trial came to.

    Attributes
    ----------
    expected, got
        The result of the trusted environment, and that of this one, which differ most.
    place
        The place of that result.
    gap
        How they differ; None if all are equal.
    error
        Why there is nothing to compare; empty otherwise.
    """

    expected: torch.Tensor | None = None
    got: torch.Tensor | None = None
    place: int = 0
    gap: Gap | None = None
    error: str = ""


class Bench:
    """Both environments.

    Parameters
    ----------
    suspect
        The interpreter in which the fault shows.
    trusted
        The interpreter that computes what is expected; None if there is none.
    """

    def __init__(self, suspect: str, trusted: str | None) -> None:
        self.suspect = Environment(suspect)
        self.trusted: Environment | None = None
        if trusted is not None:
            try:
                self.trusted = Environment(trusted)
            except BaseException:
                self.suspect.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for environment in self._environments:
            environment.close()

    @property
    def _environments(self) -> list[Environment]:
        return [self.suspect, *([self.trusted] if self.trusted else [])]

    def run(self, program: Program, expected: Sequence[torch.Tensor] | None = None) -> Outcome:
        """Run one program; `expected` takes the place of what the trusted environment would compute."""
        self.keep(program)
        (outcome,) = self.run_all([(program_text(program), {})], expected)
        return outcome

    def keep(self, program: Program) -> None:
        """Set the inputs of later trials."""
        tensors = {name: stored(tensor) for name, tensor in program.inputs.items()}
        for environment in self._environments:
            environment.keep(tensors)

    def run_all(self, trials: Sequence[Trial], expected: Sequence[torch.Tensor] | None = None) -> list[Outcome]:
        """Run trials on parts of the inputs, in both environments at once.

        Raises
        ------
        HangError
            If one does not end: to wait for each again would take hours.
        """
        try:
            got, trusted = self._answers(trials)
        except HangError:
            raise
        except RunnerError as error:
            for environment in self._environments:
                environment.restart()
            if len(trials) == 1:
                return [Outcome(error=str(error))]
            return [one for trial in trials for one in self.run_all([trial], expected)]
        if not trusted:
            trusted = [list(expected or ())] * len(trials)
        return [outcome_of(one, other) for one, other in zip(trusted, got, strict=True)]

    def suspect_results(self, program: Program, times: int) -> list[list[torch.Tensor]]:
        """Return what the suspect environment computes, several times.

        Raises
        ------
        RunnerError
            If the program does not run.
        """
        self.keep(program)
        self.suspect.begin([(program_text(program), {})] * times)
        results = self.suspect.finish()
        if error := next((one for one in results if isinstance(one, str)), ""):
            raise RunnerError(f"{self.suspect.executable} cannot run it: {error}")
        return [one for one in results if not isinstance(one, str)]

    def _answers(self, trials: Sequence[Trial]) -> tuple[list[Results], list[Results]]:
        for environment in self._environments:
            environment.begin(trials)
        got, *others = [environment.finish() for environment in self._environments]
        return got, others[0] if others else []


def outcome_of(expected: Results, got: Results) -> Outcome:
    """Return what two results come to."""
    if isinstance(expected, str) or isinstance(got, str):
        return Outcome(error=expected if isinstance(expected, str) else str(got))
    pairs = [(gap_between(one, other), place) for place, (one, other) in enumerate(zip(expected, got, strict=False))]
    found = [(gap, place) for gap, place in pairs if gap is not None]
    if not found:
        return Outcome()
    gap, place = max(found, key=lambda pair: pair[0].size)
    return Outcome(expected[place], got[place], place, gap)


def runs(executable: str, script: Path) -> tuple[int, str]:
    """Run a script with nothing but an interpreter's own packages; return its exit status and its last line."""
    command = [executable, "-I", script.name]
    try:
        done = subprocess.run(  # noqa: S603
            command, cwd=script.parent, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return -1, f"it did not end within {_SECONDS} s"
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines() or [""]
    return done.returncode, lines[-1]
