"""Drawings of many models, each in a file of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_torchlens.draw import DrawingUnavailable
from pytest_torchlens.draw import DrawOptions
from pytest_torchlens.draw import OptionError
from pytest_torchlens.draw import check_choice
from pytest_torchlens.draw import dot_source
from pytest_torchlens.draw import write_drawing
from pytest_torchlens.draw.engine import FORMATS
from pytest_torchlens.report.paths import page_path

if TYPE_CHECKING:
    from pytest_torchlens.records import ModelReport

_WORDS = {"true": True, "false": False, "none": None}


@dataclass(frozen=True)
class Graphs:
    """Where drawings go, and what they look like."""

    folder: Path
    format: str = "svg"
    options: DrawOptions = field(default_factory=DrawOptions)

    @classmethod
    def of(cls, folder: Path, settings: Iterable[str]) -> Graphs:
        """Read settings such as ``format=pdf``, ``vis_opt=rolled``, ``vis_nesting_depth=2``.

        Raises
        ------
        OptionError, TypeError
            If there is none of a name, or a value cannot be.
        """
        pairs = dict(_pair(setting) for setting in settings)
        ending = pairs.pop("format", "svg")
        check_choice("format", ending, FORMATS)
        return cls(folder, str(ending), DrawOptions.of(**pairs))

    def path(self, report: ModelReport) -> Path:
        """Return where a model's drawing goes: ``<zoo>/<model>.svg`` for plain names."""
        page = page_path(report)
        return self.folder / page.parent.name / page.with_suffix(f".{self.format}").name

    def draw(self, report: ModelReport) -> str:
        """Draw a model; return why it could not be, or ``""``."""
        if report.history is None:
            return ""
        path = self.path(report)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_drawing(dot_source(report.history, self.options), path)
        except (OptionError, DrawingUnavailable, OSError) as error:
            return str(error)
        return ""


def _pair(setting: str) -> tuple[str, object]:
    name, equals, value = setting.strip().partition("=")
    if not equals:
        raise OptionError(f"{setting.strip()!r} is no setting; write NAME=VALUE, as in vis_opt=rolled")
    return name, int(value) if value.isdigit() else _WORDS.get(value.lower(), value)
