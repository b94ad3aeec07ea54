"""Drawings of many models, each in a file of its own."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Final

from pytest_torchlens.draw import DrawingUnavailable
from pytest_torchlens.draw import DrawOptions
from pytest_torchlens.draw import OptionError
from pytest_torchlens.draw import check_choice
from pytest_torchlens.draw import dot_source
from pytest_torchlens.draw import write_drawing
from pytest_torchlens.draw.draw_options import check_draws
from pytest_torchlens.draw.drawing import FORMATS
from pytest_torchlens.draw.metric import MEASURED
from pytest_torchlens.draw.metric import METRICS
from pytest_torchlens.records import nearest
from pytest_torchlens.report.paths import page_path

if TYPE_CHECKING:
    from pytest_torchlens.records import ModelReport

_WORDS: Final = {"true": True, "false": False, "none": None}


def _number(text: str) -> object:
    return int(text) if text.isdecimal() else _word(text)


def _word(text: str) -> object:
    return _WORDS.get(text.lower(), text)


# What can be asked for in text, and how it is read; a mapping, a function and gradients cannot.
_SETTINGS: Final[dict[str, Callable[[str], object]]] = {
    "format": str,
    "vis_opt": str,
    "vis_nesting_depth": _number,
    "direction": str,
    "focus": str,
    "color_by": str,
    "theme": str,
    "legend": _word,
    "repeats": _word,
    "max_nodes": _number,
}

_SWITCHES: Final = ("legend", "repeats")
"""What needs no value to be asked for."""


@dataclass(frozen=True)
class Graphs:
    """Where drawings go, and what they look like."""

    folder: Path
    format: str = "svg"
    options: DrawOptions = field(default_factory=DrawOptions)
    settings: tuple[str, ...] = ()
    """The text that `of` read."""

    @classmethod
    def of(cls, folder: Path, settings: Iterable[str]) -> Graphs:
        """Read settings such as ``format=pdf``, ``vis_opt=rolled``, ``vis_nesting_depth=2``.

        Raises
        ------
        OptionError, TypeError
            If there is none of a name, or a value cannot be.
        """
        settings = tuple(settings)
        pairs = _pairs(settings)
        ending = pairs.pop("format", "svg")
        check_choice("format", ending, FORMATS)
        if (name := str(pairs.get("color_by", METRICS[0]))) not in METRICS:
            raise OptionError(f"color_by is {name!r}, which records have no numbers for; {nearest(name, METRICS)}")
        options = DrawOptions.of(**pairs)
        check_draws(options)
        return cls(folder, str(ending), options, settings)

    @property
    def needs_measurements(self) -> bool:
        """Whether fills show what is known of a measured model alone."""
        return self.options.color_by in MEASURED

    def path(self, report: ModelReport) -> Path:
        """Return where a model's drawing goes: ``<zoo>/<model>.svg`` for plain names."""
        page = page_path(report)
        return self.folder / page.parent.name / page.with_suffix(f".{self.format}").name

    def draw(self, report: ModelReport) -> str:
        """Draw a model; return why it could not be, or ``""``.

        Raises
        ------
        OptionError
            If what is asked for does not fit this model.
        """
        if report.history is None:
            return ""
        path = self.path(report)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_drawing(dot_source(report.history, self.options, measured=report.measurements), path)
        except (DrawingUnavailable, OSError) as error:
            return str(error)
        return ""


def _pairs(settings: Iterable[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in map(_pair, settings):
        if name in found:
            raise OptionError(f"{name} is given twice")
        found[name] = value
    return found


def _pair(setting: str) -> tuple[str, object]:
    name, equals, value = map(str.strip, setting.partition("="))
    if not equals and name in _SWITCHES:
        return name, True
    if not equals:
        raise OptionError(f"{setting.strip()!r} is no setting; write NAME=VALUE, as in vis_opt=rolled")
    if name not in _SETTINGS:
        raise OptionError(f"a drawing has no setting {name!r}; {nearest(name, _SETTINGS)}")
    return name, _SETTINGS[name](value)
