"""Reproduces a fault of a model: finds it, shrinks it, writes it, and runs what it wrote in both environments."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path

from pytest_torchlens.baseline.store import Store
from pytest_torchlens.run.other_python import OtherPython
from pytest_torchlens.run.repro.accused import Accused
from pytest_torchlens.run.repro.accused import NothingToReproduceError
from pytest_torchlens.run.repro.accused import Pass
from pytest_torchlens.run.repro.accused import ReproError
from pytest_torchlens.run.repro.accused import compared_pass
from pytest_torchlens.run.repro.folder import check_is_ours
from pytest_torchlens.run.repro.folder import write_reproduction
from pytest_torchlens.run.repro.gap import Form
from pytest_torchlens.run.repro.gap import Gap
from pytest_torchlens.run.repro.gap import gap_between
from pytest_torchlens.run.repro.program import Program
from pytest_torchlens.run.repro.script import SCRIPT
from pytest_torchlens.run.repro.script import Story
from pytest_torchlens.run.repro.script import script_text
from pytest_torchlens.run.repro.search import Search
from pytest_torchlens.run.repro.shrink import shrink
from pytest_torchlens.run.repro.trials import Bench
from pytest_torchlens.run.repro.trials import Outcome
from pytest_torchlens.run.repro.trials import RunnerError
from pytest_torchlens.run.repro.trials import runs
from pytest_torchlens.zoo import ModelCase

_RUNS = 20


@dataclass(frozen=True)
class Reproduction:
    """A reproduction that was written.

    Attributes
    ----------
    operation
        The accused operation.
    script
        Its file.
    confirmed
        Whether the file fails here, and passes in the other environment if there is one.
    lines
        What it is and how it ran, for readers.
    """

    operation: str
    script: Path
    confirmed: bool
    lines: tuple[str, ...]


def reproduce(
    case: ModelCase, operation: str, other: OtherPython | None, store: Store, folder: Path | None
) -> Reproduction:
    """Write the reproduction of what a model, or one of its operations, computes wrongly in this environment.

    Parameters
    ----------
    case
        The model.
    operation
        Its id in a comparison, or its label; empty for the first that is accused.
    other
        The interpreter that computes what is expected; None to take it from the saved activations of the baseline.
    store
        The project's baselines.
    folder
        Where to write; None for a folder here, named after the operation.

    Raises
    ------
    ReproError
        If there can be none; `NothingToReproduceError` if nothing differs.
    FolderError
        If the folder is not ours to write to.
    """
    with compared_pass(case, other, store) as both:
        return reproduce_pass(both, operation, other.executable if other else None, folder)


def reproduce_pass(both: Pass, operation: str, other: str | None, folder: Path | None) -> Reproduction:
    """Do the same for a pass that was compared; `other` is the path of the interpreter.

    Raises
    ------
    ReproError, NothingToReproduceError, FolderError
        As `reproduce`.
    """
    accused = both.accused(operation)
    folder = folder or Path(folder_name(accused))
    check_is_ours(folder)
    try:
        with Bench(sys.executable, other) as bench:
            return _Reproducing(accused, both, bench).write(folder)
    except RunnerError as error:
        raise ReproError(str(error)) from None


class _Reproducing:
    def __init__(self, accused: Accused, both: Pass, bench: Bench) -> None:
        self._accused = accused
        self._bench = bench
        self._expected = None if bench.trusted else both.expected(accused.call)
        self._search = Search(accused, bench, both.stored, self._expected)
        self._first_size = 0

    def write(self, folder: Path) -> Reproduction:
        program, outcome = (self._repeated() if self._accused.repeats else None) or self._different()
        gap, expected = outcome.gap, outcome.expected
        assert gap is not None  # noqa: S101 - both raise otherwise
        text = script_text(program, expected, gap, self._story(program, gap))
        write_reproduction(folder, text, program, expected, gap)
        return self._confirmed(folder / SCRIPT, program)

    def _different(self) -> tuple[Program, Outcome]:
        """Return a program whose results differ, and how."""
        if self._bench.trusted is None and self._expected is None:
            raise ReproError(
                f"what {self._accused.operation} should compute is not known: name the interpreter of the environment "
                "that computes it rightly (--against=../old/bin/python), or keep its activations with the baseline "
                "(pytest --lens-keep=activations)"
            )
        found = self._search.shortest()
        assert found.outcome.gap is not None  # noqa: S101 - it raises otherwise
        whole = found.program.with_result(found.outcome.place), replace(found.outcome, place=0)
        self._first_size = found.program.size
        if self._bench.trusted is None:
            return whole
        program = shrink(whole[0], self._bench, found.outcome.gap)
        outcome = self._bench.run(program)
        return whole if outcome.gap is None else (program, outcome)

    def _repeated(self) -> tuple[Program, Outcome] | None:
        """Return a program that gives other values each time; None if it gives the same where another may differ."""
        program = self._search.alone()
        self._first_size = program.size
        results = self._bench.suspect_results(program, _RUNS)
        differing = [
            (gap_between(results[0][place], one[place]), place) for one in results[1:] for place in range(len(one))
        ]
        found = [(gap, place) for gap, place in differing if gap is not None]
        if not found and (self._bench.trusted or self._expected):
            return None
        if not found:
            raise NothingToReproduceError(
                f"{self._accused.operation} gives the same values {_RUNS} times when it runs alone: nothing to "
                "reproduce by torch alone; the failure is in what surrounds it"
            )
        worst, place = max(found, key=lambda pair: pair[0].size)
        gap = Gap(Form.REPEATS, worst.size, words=worst.words)
        return program.with_result(place), Outcome(gap=gap)

    # -- what the file says ------------------------------------------------------------------------------------------

    def _story(self, program: Program, gap: Gap) -> Story:
        function = function_name(program)
        suspect, trusted = self._bench.suspect, self._bench.trusted
        there = f" than in {_named(trusted.torch)}" if trusted and trusted.torch != suspect.torch else ""
        what = {
            Form.VALUES: f"computes other values in {_named(suspect.torch)}{there}",
            Form.FORM: f"returns another shape, dtype or strides in {_named(suspect.torch)}{there}",
            Form.REPEATS: f"gives other values each time in {_named(suspect.torch)}",
        }[gap.form]
        good = trusted.words if trusted else "from the saved baseline; not confirmed in the other environment"
        origin = [f"From {self._accused.model}, at {self._accused.operation}."]
        if self._accused.source_line:
            origin.append(f"Line: {short_place(self._accused.source_line)}")
        origin.append("Needs torch alone. Exit status: 0 where the result is as expected, 1 where it is not.")
        environments = [f"expected: {good}"] if gap.form is not Form.REPEATS else []
        environments += [f"got:      {suspect.words}", f"          {gap.words}"]
        return Story(f"{function} {what}.", tuple(environments), tuple(origin))

    def _confirmed(self, script: Path, program: Program) -> Reproduction:
        """Run the file in both environments."""
        status, line = runs(self._bench.suspect.executable, script)
        lines = [f"{self._accused.model}, {self._accused.operation}: {self._accused.why}".rstrip(": ")]
        lines += [f"smallest run: {len(program.statements)} operations"] if len(program.statements) > 1 else []
        if self._bench.trusted is None:
            lines.append("inputs as they were: smaller ones need the other environment (--against)")
        elif program.size < self._first_size:
            lines.append(f"inputs shrunk from {self._first_size:,} to {program.size:,} elements")
        lines += [f"written: {script}", f"here:  exit {status}: {line}"]
        if self._bench.trusted is None:
            lines.append("not confirmed in the other environment: none was named (--against)")
            return Reproduction(self._accused.operation, script, status == 1, tuple(lines))
        other_status, other_line = runs(self._bench.trusted.executable, script)
        lines.append(f"there: exit {other_status}: {other_line}")
        is_confirmed = (status, other_status) == (1, 0)
        lines.append("confirmed: it fails here and passes there" if is_confirmed else "not confirmed")
        return Reproduction(self._accused.operation, script, is_confirmed, tuple(lines))


def folder_name(accused: Accused) -> str:
    """Return the folder of a reproduction, if none is named."""
    return "-".join(["repro", *re.findall(r"[\w.]+", f"{accused.model} {accused.operation}")])


def short_place(line: str) -> str:
    """Return a line's place without what is only on this machine."""
    posix = line.replace("\\", "/")
    return posix.rpartition("site-packages/")[2].removeprefix(f"{Path.cwd().as_posix()}/")


def _named(version: str) -> str:
    return f"torch {version.partition('+')[0]}"


def function_name(program: Program) -> str:
    """Return the function of the accused call."""
    name = program.statements[-1].function
    return f"torch.Tensor{name.replace('=', '.')}" if name[0] in ".=" else name
