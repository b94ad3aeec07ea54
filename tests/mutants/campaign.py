"""Runs each mutant in a copy of the project against the tests that reach it, and says which survived."""

from __future__ import annotations

import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace
from enum import Enum
from pathlib import Path

from tests.mutants.mutant import Mutant
from tests.mutants.reach import copy_project
from tests.mutants.reach import environment

LIMIT = 300.0
"""Seconds that the tests of one mutant may take."""
WANTED = 0.95
"""Share of the mutants that tests must kill."""


class Outcome(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    TIMED_OUT = "timed out"
    UNREACHED = "not reached by any test"
    UNUSABLE = "the tests could not run"
    NOT_RUN = "not run, for the time was up"
    DOUBTFUL = "killed by a test that fails without the change too"


_FAILING = {1: Outcome.KILLED, 0: Outcome.SURVIVED}
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/\S.*?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Result:
    """A mutant, what became of it, and by which test or with which message."""

    mutant: Mutant
    outcome: Outcome
    seconds: float = 0.0
    by: str = ""


def run_all(
    mutants: dict[Mutant, list[str]], root: Path, folder: Path, *, until: float, jobs: int = 2
) -> Iterator[Result]:
    """Yield the result of each mutant, as they come; at most `jobs` run at a time.

    Parameters
    ----------
    mutants
        Each with the tests to run, in order.
    root
        The project; nothing in it changes.
    folder
        For copies of it.
    until
        Moment of `time.monotonic` after which no further mutant begins.
    jobs
        How many copies there are.
    """
    copies: queue.Queue[Path] = queue.Queue()
    for number in range(jobs):
        copies.put(copy_project(root, folder / f"copy{number}"))
    with ThreadPoolExecutor(jobs) as pool:
        runs = [pool.submit(_run, mutant, tests, copies, until) for mutant, tests in mutants.items()]
        for run in as_completed(runs):
            yield run.result()


def _run(mutant: Mutant, tests: list[str], copies: queue.Queue[Path], until: float) -> Result:
    if not tests:
        return Result(mutant, Outcome.UNREACHED)
    if time.monotonic() > until:
        return Result(mutant, Outcome.NOT_RUN)
    copy = copies.get()
    start = time.monotonic()
    try:
        with _applied(mutant, copy):
            code, output = run_tests(tests, copy)
    finally:
        copies.put(copy)
    return _result(mutant, code, output, time.monotonic() - start)


def _result(mutant: Mutant, code: int | None, output: str, seconds: float) -> Result:
    if code is None:
        return Result(mutant, Outcome.TIMED_OUT, seconds)
    if code < 0:
        return Result(mutant, Outcome.KILLED, seconds, f"a crash of the tests, by signal {-code}")
    failed = _FAILED.findall(output)
    outcome = _FAILING.get(code, Outcome.UNUSABLE)
    if outcome is Outcome.UNUSABLE or (outcome is Outcome.KILLED and not failed):
        return Result(mutant, Outcome.UNUSABLE, seconds, output[-600:])
    return Result(mutant, outcome, seconds, failed[0] if failed else "")


@contextmanager
def _applied(mutant: Mutant, copy: Path) -> Iterator[None]:
    """Change the copy for a while; no compiled file of it outlives the change."""
    path = mutant.source(copy)
    text = path.read_text(encoding="utf-8")
    try:
        _write(path, mutant.apply(text))
        yield
    finally:
        _write(path, text)


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


def run_tests(tests: Sequence[str], copy: Path, *more: str, limit: float = LIMIT) -> tuple[int | None, str]:
    """Run tests in a copy up to the first failure; return the exit status, None after too long, and the output."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *more, *tests]
    process = subprocess.Popen(
        command,
        cwd=copy,
        env=environment(copy),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None, ""
    return process.returncode, output


def confirmed(results: Sequence[Result], folder: Path) -> list[Result]:
    """Return results in which a kill counts only if its test passes on the package as it is."""
    killers = sorted({one.by for one in results if one.outcome is Outcome.KILLED and one.by.startswith("tests/")})
    if not killers:
        return list(results)
    _, output = run_tests(killers, folder / "copy0", "--maxfail=1000", limit=2 * LIMIT)
    failing = set(_FAILED.findall(output))
    return [replace(one, outcome=Outcome.DOUBTFUL) if one.by in failing else one for one in results]


def report(results: Sequence[Result], seconds: float) -> tuple[str, bool]:
    """Return the summary, and whether enough mutants were killed and each survivor has a reason."""
    counts = Counter(result.outcome for result in results)
    share = counts[Outcome.KILLED] / len(results) if results else 0.0
    alive = [result for result in results if result.outcome is not Outcome.KILLED]
    wrong = [result for result in results if result.outcome is Outcome.KILLED and result.mutant.equivalent]
    lines = [_line(result) for result in alive]
    lines += [f"killed, though called equivalent: {result.mutant} (by {result.by})" for result in wrong]
    words = ", ".join(f"{count} {outcome.value}" for outcome, count in counts.most_common())
    lines.append(f"{len(results)} mutants in {seconds / 60:.1f} minutes: {words}; {share:.1%} killed")
    unexplained = any(not result.mutant.equivalent for result in alive)
    return "\n".join(lines), share >= WANTED and not unexplained and not wrong


def _line(result: Result) -> str:
    reason = f"\n    equivalent: {result.mutant.equivalent}" if result.mutant.equivalent else ""
    message = f"\n    {result.by}" if result.by else ""
    return f"{result.outcome.value}: {result.mutant}{reason}{message}"


def remove_copies(folder: Path) -> None:
    """Delete the copies."""
    for copy in folder.glob("copy*"):
        shutil.rmtree(copy, ignore_errors=True)
