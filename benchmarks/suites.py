"""Run a test suite with and without `--lens-validate`, and compare outcomes: `python -m benchmarks.suites -- tests`.

In each order the suite runs plain and with `--lens-validate`, and plain once more if outcomes differ: tests that
change by themselves are told apart so. A random order needs the package pytest-randomly, `-n 2` needs pytest-xdist.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
from dataclasses import asdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from benchmarks.table import environment
from benchmarks.table import markdown

ORDERS = ("-p no:randomly", "--randomly-seed=1", "--randomly-seed=2", "-p no:randomly -n 2")
PLAIN, VALIDATED = ("-p", "no:lens"), ("--lens-validate",)
RAN = (0, 1)
"""Exit statuses of a pytest that ran to its end."""
TROUBLE = re.compile(r"^lens: .*: validation .*|^please report this error.*\n.*", re.MULTILINE)
"""Failed verdicts, and errors of our own."""
KINDS = ("failure", "error", "skipped")


@dataclass(frozen=True)
class Run:
    """One run of the suite: the outcome of each test, what pytest printed, and user and system CPU time."""

    outcomes: dict[str, str]
    printed: str
    seconds: float

    @property
    def total(self) -> int:
        """Module calls seen, from the summary line."""
        calls = re.search(r"([\d,]+) outermost module calls? in", self.printed)
        return _number(calls[1]) if calls else 0

    @property
    def split(self) -> dict[str, int]:
        """Number of calls by what became of them, from the summary line."""
        line = re.search(r"outermost module calls? in [\d,]+ tests?: (.*)", self.printed)
        parts = (part.split(" ", 1) for part in line[1].split(", ")) if line else ()
        return {word: _number(count) for count, word in parts}

    @property
    def left_out(self) -> dict[str, int]:
        """Number of calls that were left out, by reason."""
        lines = re.findall(r"^left out: ([\d,]+) calls?:? (.*?)(?: \(first in .*)?$", self.printed, re.MULTILINE)
        return {reason: _number(count) for count, reason in lines}


@dataclass(frozen=True)
class Result:
    """The runs of a suite in one order; `again` is a second plain run where the outcomes differ."""

    order: str
    plain: Run
    again: Run
    validated: Run

    @property
    def flaky(self) -> list[str]:
        """Tests whose outcomes in the two plain runs differ."""
        return _differing(self.plain.outcomes, self.again.outcomes)

    @property
    def differences(self) -> list[str]:
        """Tests with another outcome under `--lens-validate`."""
        return sorted({*_differing(self.plain.outcomes, self.validated.outcomes)} - {*self.flaky})

    def problems(self) -> list[str]:
        """Return one line for each thing that must not be."""
        run, before = self.validated, self.plain.outcomes
        lines = [f"{test}: {before.get(test)}, then {run.outcomes.get(test)}" for test in self.differences]
        if sum(run.split.values()) != run.total:
            lines.append(f"{run.total} calls, but {run.split}")
        if sum(run.left_out.values()) != run.split.get("left out", 0):
            lines.append(f"{run.split.get('left out', 0)} calls left out, but {run.left_out}")
        return lines + TROUBLE.findall(run.printed)


def main() -> int:
    """Run the suite in each order and print what was found; return 1 if anything is wrong."""
    options = _parser().parse_args()
    results = [compare(order, options) for order in options.order or ORDERS]
    print(f"{environment()}\n\n{table(results)}\n")
    for result in results:
        lines = [f"DIFFERS {line}" for line in result.problems()] + [f"flaky {test}" for test in result.flaky]
        lines += [f"left out: {count:,}: {reason}" for reason, count in result.validated.left_out.items()]
        print("\n".join([f"{result.order}:", *lines]))
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n", encoding="utf-8")
    return int(any(result.problems() for result in results))


def compare(order: str, options: argparse.Namespace) -> Result:
    """Run the suite in one order."""
    print(f"running {order} …", file=sys.stderr)
    plain, validated = (run([*order.split(), *mode], options) for mode in (PLAIN, VALIDATED))
    is_same = plain.outcomes == validated.outcomes
    return Result(order, plain, plain if is_same else run([*order.split(), *PLAIN], options), validated)


def run(arguments: list[str], options: argparse.Namespace) -> Run:
    """Run the suite once in a new process, which must come to its end."""
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", *options.tests, *arguments, f"--junit-xml={junit}"]
        before = cpu_seconds()
        process = subprocess.run(command, cwd=options.folder, capture_output=True, text=True, check=False)
        if process.returncode not in RAN:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{process.stdout}{process.stderr}")
        return Run(outcomes(junit), process.stdout, cpu_seconds() - before)


def outcomes(junit: Path) -> dict[str, str]:
    """Return the outcome of each test of a JUnit file: ``""`` if it passed, else what kept it from passing."""
    found: dict[str, list[str]] = {}
    for case in ET.parse(junit).iter("testcase"):  # noqa: S314 - we had it written
        kinds = [f"{child.tag} {child.get('type', '')}".strip() for child in case if child.tag in KINDS]
        found.setdefault(f"{case.get('classname')}::{case.get('name')}", []).extend(kinds or ["passed"])
    return {test: ", ".join(sorted(kinds)) for test, kinds in found.items()}


def table(results: list[Result]) -> str:
    """Return one row for each order."""
    head = ["order", "tests", "differ", "flaky", "calls", "split", "plain", "validated", "times"]
    return markdown(head, [_row(result) for result in results])


def _row(result: Result) -> list[Any]:
    run, plain = result.validated, min(result.plain.seconds, result.again.seconds)
    counts = [len(run.outcomes), len(result.differences), len(result.flaky), f"{run.total:,}"]
    split = ", ".join(f"{count:,} {word}" for word, count in run.split.items())
    times = [f"{plain:.1f} s", f"{run.seconds:.1f} s", f"{run.seconds / plain:.2f}"]
    return [result.order, *counts, split, *times]


def _differing(one: dict[str, str], other: dict[str, str]) -> list[str]:
    return sorted(test for test in one.keys() | other.keys() if one.get(test) != other.get(test))


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def cpu_seconds() -> float:
    """Return the user and system CPU time of all processes that were started and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suites", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path(), help="Folder in which pytest runs (default: this one)")
    parser.add_argument("--order", action="append", metavar="OPTIONS", help=f"pytest's options; default: {ORDERS}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="Also write outcomes and outputs to this file")
    parser.add_argument("tests", nargs="*", help="Arguments of pytest, after --")
    return parser


if __name__ == "__main__":
    sys.exit(main())
