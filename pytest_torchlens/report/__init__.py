"""Makes reports for people and CI from the record of a run."""

from __future__ import annotations

from pytest_torchlens.report.drawings import Graphs
from pytest_torchlens.report.drawings import save_drawing
from pytest_torchlens.report.folder import RunFolder
from pytest_torchlens.report.folder import RunFolderError
from pytest_torchlens.report.folder import write_site
from pytest_torchlens.report.markdown import github_annotations
from pytest_torchlens.report.markdown import markdown
from pytest_torchlens.report.paths import page_path
from pytest_torchlens.report.results_table import ResultTable
from pytest_torchlens.report.results_table import TableError
from pytest_torchlens.report.schema import SCHEMA_FILE
from pytest_torchlens.report.summary import is_bad
from pytest_torchlens.report.terminal import one_line
from pytest_torchlens.report.terminal import terminal_table
from pytest_torchlens.report.terminal import verbose_text

__all__ = [
    "Graphs",
    "ResultTable",
    "RunFolder",
    "RunFolderError",
    "SCHEMA_FILE",
    "TableError",
    "github_annotations",
    "is_bad",
    "markdown",
    "one_line",
    "page_path",
    "save_drawing",
    "terminal_table",
    "verbose_text",
    "write_site",
]
