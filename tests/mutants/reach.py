"""Knows which tests reach which lines, and how long each takes: from one run of the tests under coverage."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Sequence
from itertools import chain
from itertools import zip_longest
from pathlib import Path

import coverage

from tests.mutants.contexts import TIMES
from tests.mutants.lines import lines_of
from tests.mutants.mutant import PACKAGE
from tests.mutants.mutant import Mutant

SUITES = "baseline capture cli history measure plugin records recorder replay report run validate zoo".split()
"""Folders of tests that reach what the catalogue changes."""
NARROW = 80
"""Near tests that run first: those that reach the fewest lines in all are about the changed line most likely."""
SLOW = 5.0
"""Seconds from which on a test is not run first."""
MOST_TESTS = 300
MOST_SECONDS = 60.0
"""Of all other tests together that one mutant is run against, as measured under coverage."""
_LEFT_OUT = shutil.ignore_patterns(
    *(".*_cache", ".git", ".tox", ".venv", ".hypothesis", ".lens"),
    *("__pycache__", "*.egg-info", "build", "dist", "lens-report"),
)


def copy_project(root: Path, target: Path) -> Path:
    """Copy a project without what tools made in it; return the copy."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(root, target, ignore=_LEFT_OUT)
    return target


def environment(root: Path, **more: str) -> dict[str, str]:
    """Return the environment of a process that imports the package from `root`, on one thread."""
    return {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", **more}


class Reach:
    """The results of a run under coverage.

    Parameters
    ----------
    folder
        Where they are kept, with the copy of the project that ran.
    """

    def __init__(self, folder: Path) -> None:
        self.tree = folder / "tree"
        self._data_file = folder / ".coverage"
        self._times_file = folder / "times.json"

    def measure(self, root: Path, tests: Sequence[str] = (), jobs: int = 2) -> None:
        """Run tests under coverage, all suites if none are named; the results are added to those of former runs.

        Raises
        ------
        ValueError
            If the package is not the one of the former runs.
        """
        if tests and not self._is_current(root):
            raise ValueError("the package has changed since the run under coverage: measure all tests again")
        if not tests:
            self._data_file.unlink(missing_ok=True)
            self._times_file.unlink(missing_ok=True)
        copy_project(root, self.tree)
        new_times = self._times_file.with_name("new.json")
        settings = {
            "COVERAGE_PROCESS_START": str(self.tree / "tests/mutants/coverage.ini"),
            "MUTANTS_DATA": str(self._data_file.absolute()),
            TIMES: str(new_times.absolute()),
        }
        wanted = tests or [f"tests/{name}" for name in SUITES]
        run = ["-m", "pytest", "-q", "-n", str(jobs), "-p", "tests.mutants.contexts", *wanted]
        self._python(run, settings, cwd=self.tree, check=False)
        rcfile = f"--rcfile={settings['COVERAGE_PROCESS_START']}"
        self._python(["-m", "coverage", "combine", "-q", "--append", rcfile], settings, cwd=self.tree, check=True)
        times = self._times() | json.loads(new_times.read_text(encoding="utf-8"))
        self._times_file.write_text(json.dumps(times), encoding="utf-8")

    def _python(self, arguments: list[str], settings: dict[str, str], *, cwd: Path, check: bool) -> None:
        """Run Python; a test that fails is not an error, for it is only left out."""
        subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment(self.tree, **settings), check=check)

    def _is_current(self, root: Path) -> bool:
        now, then = (
            {path.relative_to(side): path.read_bytes() for path in (side / PACKAGE).rglob("*.py")}
            for side in (root, self.tree)
        )
        return now == then

    def _times(self) -> dict[str, float]:
        if not self._times_file.exists():
            return {}
        times: dict[str, float] = json.loads(self._times_file.read_text(encoding="utf-8"))
        return times

    def tests(self, mutants: Iterable[Mutant]) -> dict[Mutant, list[str]]:
        """Return the tests to run for each mutant, in order."""
        seconds = self._times()
        data = coverage.CoverageData(str(self._data_file))
        data.read()
        reached: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for path in data.measured_files():
            for line, contexts in data.contexts_by_lineno(path).items():
                reached[path.partition(f"/{PACKAGE}/")[2]][line].update(contexts)
        breadth = Counter(context for lines in reached.values() for contexts in lines.values() for context in contexts)
        return {one: self._ranked(one, reached, seconds, breadth) for one in mutants}

    def _ranked(
        self, mutant: Mutant, reached: dict[str, dict[int, set[str]]], seconds: dict[str, float], breadth: Counter[str]
    ) -> list[str]:
        """Return the tests made for the line, the narrowest near ones, then one case of each other test function."""
        contexts: set[str] = set()
        for file, lines in lines_of(mutant, self.tree).items():
            contexts.update(chain.from_iterable(reached.get(file, {}).get(line, ()) for line in lines))
        names = {part for context in contexts for part in context.split("|")}
        tests = [test for test in seconds if test in names or test.partition("::")[0] in names]
        folder = f"tests/{mutant.file.partition('/')[0]}/"
        near = [test for test in tests if test in names and test.startswith(folder) and seconds[test] < SLOW]
        narrow = sorted(near, key=lambda test: (breadth[test], seconds[test], test))[:NARROW]
        held_by = [test for test in tests if mutant.held_by and test.startswith(mutant.held_by)]
        first = [*dict.fromkeys(held_by + narrow)]
        return first + nearest_first(set(tests) - set(first), seconds, folder)


def nearest_first(
    tests: Iterable[str], seconds: dict[str, float], folder: str, most_seconds: float = MOST_SECONDS
) -> list[str]:
    """Return tests in the order to run: one case of each test function, fastest first, then a second one of each.

    Those of the nearest folder come before the others; it ends where `most_seconds` or `MOST_TESTS` are reached.
    """
    by_function: dict[str, list[str]] = defaultdict(list)
    for test in sorted(tests, key=lambda test: (seconds[test], test)):
        by_function[test.partition("[")[0]].append(test)
    chosen, total = [], 0.0
    for is_near in (True, False):
        groups = [group for name, group in by_function.items() if name.startswith(folder) is is_near]
        for test in filter(None, chain.from_iterable(zip_longest(*groups))):
            total += seconds[test]
            if chosen and (total > most_seconds or len(chosen) >= MOST_TESTS):
                return chosen
            chosen.append(test)
    return chosen
