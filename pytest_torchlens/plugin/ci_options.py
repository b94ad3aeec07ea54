"""Options of what a CI reads."""

from __future__ import annotations

import pytest


def add_ci_options(group: pytest.OptionGroup, parser: pytest.Parser) -> None:
    """Declare them."""
    group.addoption(
        "--lens-report-md",
        metavar="FILE",
        dest="lens_report_md",
        default=None,
        help="Write the run as Markdown into this file: counts, what failed and why, a table. In a GitHub job it also "
        "goes to the summary of the step, asked for or not. Default: no file.",
    )
    group.addoption(
        "--lens-json",
        metavar="FILE",
        dest="lens_json",
        default=None,
        help="Write the run as JSON into this file, in the published form of report.json, without the models' layers. "
        "Default: no file.",
    )
    parser.addini("lens_report_md", "File for the run as Markdown, as --lens-report-md", default="")
    parser.addini("lens_json", "File for the run as JSON, as --lens-json", default="")
