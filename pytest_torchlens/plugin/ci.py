"""What a run leaves for a CI: files, the summary of a GitHub step, annotations."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_torchlens.plugin.settings import CiOptions
    from pytest_torchlens.records import RunReport


def write_files(run: RunReport, options: CiOptions) -> None:
    """Write the files that were asked for, and the summary of the step where there is one.

    Raises
    ------
    OSError
        If a file cannot be written.
    """
    from pytest_torchlens.records import to_json
    from pytest_torchlens.report import markdown
    from pytest_torchlens.report.files import write_file

    if options.json:
        write_file(options.json, to_json(run, indent=1))
    if options.markdown:
        write_file(options.markdown, markdown(run))
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(markdown(run))


def annotated(run: RunReport, root: Path) -> Iterator[str]:
    """Yield the lines that annotate a GitHub job; none elsewhere."""
    from pytest_torchlens.report import github_annotations

    if os.environ.get("GITHUB_ACTIONS") == "true":
        yield from github_annotations(run.models, root)
