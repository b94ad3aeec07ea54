"""One step of ``git bisect run``: compares the commit that is checked out, and ends as git expects.

It imports nothing at first: also an import that fails must not end it with 1, which says "bad" to git.
"""

from __future__ import annotations

import sys

MARK = "pytest-lens-trial "
"""Begins the line that tells the result, among those that git prints."""
FAULT = "pytest-lens-fault "
"""Begins the line that tells why there is no result."""
_STATUSES = {"good": 0, "bad": 1, "skipped": 125}
_ABORT = 255
"""Ends the search: git takes any status below 128 for a verdict."""


def main(plan: str) -> int:
    """Run the step that a file describes; return git's exit status for the result."""
    try:
        return _run(plan)
    except BaseException as error:  # noqa: BLE001 - Python would end with 1
        kind = "" if type(error).__name__ == "CommandError" else f"{type(error).__name__}: "
        print(f"\n{FAULT}{kind}{' '.join(str(error).split())}", flush=True)
        return _ABORT


def _run(plan: str) -> int:
    from pathlib import Path

    from pytest_torchlens.cli.bisect.commits import Step
    from pytest_torchlens.records import from_json
    from pytest_torchlens.records import to_json

    result = from_json(Path(plan).read_text(encoding="utf-8"), Step).run()
    print(f"{MARK}{to_json(result)}", flush=True)
    return _STATUSES[result.trial.verdict.value]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
