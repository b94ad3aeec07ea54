"""Changes important lines of the package, one at a time, and says which changes no test notices.

First it runs the tests once under coverage, to know which tests reach which line; then each change runs, in a copy of
the project, against the tests that reach it. It ends with 1 where a change survives for which the catalogue has no
reason, or where fewer than 95 % are killed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.mutants.campaign import Outcome
from tests.mutants.campaign import Result
from tests.mutants.campaign import confirmed
from tests.mutants.campaign import remove_copies
from tests.mutants.campaign import report
from tests.mutants.campaign import run_all
from tests.mutants.catalogue import MUTANTS
from tests.mutants.lines import lines_of
from tests.mutants.mutant import Mutant
from tests.mutants.reach import Reach

ROOT = Path(__file__).parents[2]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = _parser().parse_args(arguments)
    start = time.monotonic()
    folder: Path = options.folder.absolute()
    reach = Reach(folder)
    chosen = [one for one in MUTANTS if any(text in str(one) for text in options.only)]
    for one in chosen:
        lines_of(one, ROOT)  # a mutant that no longer fits ends the run now, not after the tests under coverage
    if not (options.reuse or options.tests):
        reach.measure(ROOT, options.measure, options.jobs)
    mutants = {one: list(options.tests) for one in chosen} if options.tests else reach.tests(chosen)
    results = []
    for result in run_all(mutants, ROOT, folder, until=start + 60 * options.minutes, jobs=options.jobs):
        results.append(result)
        _say(f"{len(results):>3}/{len(mutants)} {_progress(result)}")
    text, good = report(confirmed(results, folder), time.monotonic() - start)
    remove_copies(folder)
    _say(f"\n{text}")
    return 0 if good else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.mutants", description=__doc__)
    add = parser.add_argument
    add("--only", nargs="+", default=[""], metavar="TEXT", help="mutants with one of these texts in file or change")
    add("--tests", nargs="+", default=[], metavar="TEST", help="run these tests in place of those that reach a mutant")
    add("--reuse", action="store_true", help="take what the last run under coverage found")
    add("--measure", nargs="+", default=[], metavar="TEST", help="run only these under coverage, and add them to it")
    add("--minutes", type=float, default=55.0, help="begin no mutant after so many minutes")
    add("--jobs", type=int, default=2, help="mutants, and processes of tests, at a time")
    add("--folder", type=Path, default=Path(".tox/mutants-data"), help="for coverage and copies of the project")
    return parser


def _progress(result: Result) -> str:
    by = f" by {result.by}" if result.outcome is Outcome.KILLED else ""
    return f"{result.seconds:5.0f} s {result.outcome.value:<9} {_short(result.mutant)}{by}"


def _short(mutant: Mutant) -> str:
    return str(mutant)[:150]


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
