"""Options of a recorder, ranges such as ``<1e3`` or ``1e-5..1e-1``, and the recorder's errors."""

from __future__ import annotations

import importlib.util
import math
import operator
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

from pytest_torchlens.records.options import FLAG
from pytest_torchlens.records.options import POSITIVE
from pytest_torchlens.records.options import TEXT
from pytest_torchlens.records.options import Option
from pytest_torchlens.records.options import OptionError
from pytest_torchlens.records.options import check_options
from pytest_torchlens.records.options import choice
from pytest_torchlens.records.options import optional
from pytest_torchlens.records.options import whole

SMALLEST, LARGEST = 160, 8192
"""Pixels of a frame's sides: in a smaller frame its text is unreadable, and players refuse larger ones."""

NEEDED = {
    "videos": ("PIL", "record"),
    "parquet": ("pyarrow", "record"),
    "tensorboard": ("tensorboard", "tensorboard"),
}
"""The module that each feature needs, and the extra that installs it."""


@dataclass(frozen=True)
class RecorderOptions:
    """The options of a `Recorder`; its docstring explains each."""

    folder: Path | None = None
    title: str = ""
    every: int = 10
    per_second: float | None = None
    start: int = 0
    until: int | None = None
    policy: str = "drop"
    steps: str = "optimizer"
    no_grad: bool = False
    scaler: Any = None
    videos: bool = True
    series: str = "csv"
    tensorboard: bool = False
    page: bool = True
    max_frames: int = 1000
    frames_per_second: int = 10
    size: tuple[int, int] = (480, 360)
    slots: int = 512
    slot_values: int = 65_536
    workers: int = 1
    keep: int = 10_000
    timeout: float = 60.0
    on_error: str = "raise"

    @classmethod
    def of(cls, **given: Any) -> RecorderOptions:
        """Check the options and return them.

        Raises
        ------
        OptionError
            If an option is unknown, or a value not allowed.
        ImportError
            If an option needs a package that is not installed.
        """
        check_options(_OPTIONS, given)
        if given.get("folder") is not None:
            given["folder"] = _folder(given["folder"])
        options = cls(**given)
        if options.until is not None:
            whole(options.start + 1).check("until", options.until)
        options._check_packages()
        return options

    def _check_packages(self) -> None:
        if self.folder is None:
            return
        wanted = {"videos": self.videos, "parquet": self.series == "parquet", "tensorboard": self.tensorboard}
        for what, (module, extra) in NEEDED.items():
            if wanted[what] and importlib.util.find_spec(module) is None:
                off = "" if what == "parquet" else f", or pass {what}=False"
                raise ImportError(
                    f"{what} needs the package {module!r}, which is not installed: "
                    f"pip install 'pytest-torchlens[{extra}]'{off}"
                )


def _is_size(sides: Sequence[Any]) -> bool:
    return len(sides) == len(("width", "height")) and all(
        isinstance(side, int) and SMALLEST <= side <= LARGEST and side % 2 == 0 for side in sides
    )


def _is_scaler(value: Any) -> bool:
    return value is None or (hasattr(value, "get_scale") and not isinstance(value, type))


_OPTIONS = {
    "folder": Option("a path, or None for no files", (str, os.PathLike, NoneType), lambda path: str(path) != ""),
    "title": TEXT,
    "every": whole(1),
    "per_second": optional(POSITIVE),
    "start": whole(0),
    "until": optional(whole(1)),
    "policy": choice("drop", "coalesce", "block"),
    "steps": choice("optimizer", "manual"),
    "no_grad": FLAG,
    "scaler": Option("the torch.amp.GradScaler that scales the loss", (object,), _is_scaler),
    "videos": FLAG,
    "series": choice("csv", "parquet"),
    "tensorboard": FLAG,
    "page": FLAG,
    "max_frames": whole(1),
    "frames_per_second": whole(1, 240),
    "size": Option(f"width and height, even numbers from {SMALLEST} to {LARGEST:,}", (tuple, list), _is_size),
    "slots": whole(4, 1 << 20),
    "slot_values": whole(256, 1 << 28),
    "workers": whole(1, 64),
    "keep": whole(1, sys.maxsize),
    "timeout": POSITIVE,
    "on_error": choice("raise", "warn"),
}


def _folder(given: str | os.PathLike[str]) -> Path:
    folder = Path(given).absolute()
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"folder: expected a folder, got the file {str(folder)!r}")
    return folder


COMPARE = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}

_ONE = re.compile(r"\s*(<=|>=|<|>)\s*(\S+)\s*")

_TWO = re.compile(r"\s*(\S+?)\s*\.\.\s*(\S+)\s*")


@dataclass(frozen=True)
class Range:
    """A range of numbers; it never contains NaN or infinity.

    Attributes
    ----------
    text : str
        As it was written.
    bounds : tuple of (str, float)
        Comparisons that must all hold.
    """

    text: str
    bounds: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, name: str, text: object) -> Range:
        """Read a range.

        Raises
        ------
        ValueError
            If `text` is not a range.
        """
        bounds = _bounds(text) if isinstance(text, str) else None
        if not bounds or any(math.isnan(bound) for _, bound in bounds):
            raise ValueError(f"{name}: expected a range such as '<1e3', '>=0.5', '<5%' or '1e-5..1e-1', got {text!r}")
        if len(bounds) > 1 and bounds[0][1] > bounds[1][1]:
            raise ValueError(f"{name}: expected a range with its lower end first, got {text!r}")
        return cls(str(text).strip(), bounds)

    def __contains__(self, value: float) -> bool:
        return math.isfinite(value) and all(COMPARE[sign](value, bound) for sign, bound in self.bounds)

    @property
    def is_share(self) -> bool:
        """Whether it is in percent."""
        return "%" in self.text


def _bounds(text: str) -> tuple[tuple[str, float], ...] | None:
    try:
        if found := _ONE.fullmatch(text):
            return ((found[1], _number(found[2])),)
        if found := _TWO.fullmatch(text):
            return ((">=", _number(found[1])), ("<=", _number(found[2])))
    except ValueError:
        pass
    return None


def _number(text: str) -> float:
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def check_some(**flags: Any) -> None:
    """Check that each is True or False, and one of them True.

    Raises
    ------
    TypeError
        If one is neither.
    ValueError
        If all are False.
    """
    check_options(dict.fromkeys(flags, FLAG), flags)
    if not any(flags.values()):
        raise ValueError(f"expected at least one of {', '.join(flags)} to be True, got False for all")


class RecorderError(RuntimeError):
    """The recording cannot continue: its process ended, the disk is full, or a callback raised."""


class ExpectationError(AssertionError):
    """Training violated an expectation.

    Attributes
    ----------
    step : int
        The step it happened in; the first is 0.
    item : str
        Name of the tensor, as in `Recorder.series`.
    expectation : str
        Its name, as given to `Recorder.expect`.
    value : float
        The value that violated it.
    """

    def __init__(self, message: str, *, step: int, item: str, expectation: str, value: float) -> None:
        super().__init__(message)
        self.step = step
        self.item = item
        self.expectation = expectation
        self.value = value
