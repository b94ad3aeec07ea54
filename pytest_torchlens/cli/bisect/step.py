"""One step of ``git bisect run``: compares the commit that is checked out, and ends as git expects."""

from __future__ import annotations

import sys
from pathlib import Path

from pytest_torchlens.cli.bisect.commits import MARK
from pytest_torchlens.cli.bisect.commits import Step
from pytest_torchlens.cli.bisect.trial import Verdict
from pytest_torchlens.records import from_json
from pytest_torchlens.records import to_json

STATUSES = {Verdict.GOOD: 0, Verdict.BAD: 1, Verdict.SKIPPED: 125}


def main(plan: str) -> int:
    """Run the step that a file describes; return git's exit status for the result."""
    result = from_json(Path(plan).read_text(encoding="utf-8"), Step).run()
    print(f"{MARK}{to_json(result)}", flush=True)
    return STATUSES[result.trial.verdict]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
