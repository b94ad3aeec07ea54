"""Options of a recorder and their checks, ranges such as ``<1e3`` or ``1e-5..1e-1``, and the recorder's errors."""

from __future__ import annotations

import importlib.util
import math
import operator
import os
import re
import sys
from dataclasses import dataclass
from dataclasses import fields
from pathlib import Path
from typing import Any

from pytest_torchlens.records.names import nearest

SMALLEST, LARGEST = 160, 8192
"""Pixels of a frame's sides: in a smaller frame its text is unreadable, and players refuse larger ones."""

CHOICES = {
    "policy": ("drop", "coalesce", "block"),
    "steps": ("optimizer", "manual"),
    "series": ("csv", "parquet"),
    "on_error": ("raise", "warn"),
}

WHOLE = {
    "every": (1, None),
    "start": (0, None),
    "max_frames": (1, None),
    "frames_per_second": (1, 240),
    "slots": (4, 1 << 20),
    "slot_values": (256, 1 << 28),
    "workers": (1, 64),
    "keep": (1, sys.maxsize),
}
"""Minimum and maximum of each whole number; None is no maximum."""

FLAGS = ("no_grad", "videos", "tensorboard", "page")

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
    def of(cls, **arguments: Any) -> RecorderOptions:
        """Check the options and return them.

        Raises
        ------
        TypeError
            If an option is unknown.
        ValueError
            If a value is not allowed.
        ImportError
            If an option needs a package that is not installed.
        """
        names = [field.name for field in fields(cls)]
        for name in arguments:
            if name not in names:
                raise TypeError(f"a recorder has no option {name!r}; {nearest(name, names)}")
        if arguments.get("folder") is not None:
            arguments["folder"] = _folder(arguments["folder"])
        options = cls(**arguments)
        options._check()
        return options

    def _check(self) -> None:
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"{name}: expected one of {', '.join(map(repr, choices))}, got {value!r}")
        check_text("title", self.title)
        check_flags(**{name: getattr(self, name) for name in FLAGS})
        if self.scaler is not None and (isinstance(self.scaler, type) or not hasattr(self.scaler, "get_scale")):
            raise TypeError(f"scaler: expected the torch.amp.GradScaler that scales the loss, got {self.scaler!r}")
        self._check_numbers()
        self._check_size()
        self._check_packages()

    def _check_numbers(self) -> None:
        for name, (least, most) in WHOLE.items():
            check_whole(name, getattr(self, name), least, most)
        if self.until is not None:
            check_whole("until", self.until, self.start + 1)
        if self.per_second is not None:
            check_positive("per_second", self.per_second)
        check_positive("timeout", self.timeout)

    def _check_size(self) -> None:
        size: Any = self.size
        if not isinstance(size, tuple | list) or len(size) != len(("width", "height")) or not all(map(_fits, size)):
            raise ValueError(
                f"size: expected width and height, even numbers from {SMALLEST} to {LARGEST:,}, got {self.size!r}"
            )

    def _check_packages(self) -> None:
        if self.folder is None:
            return
        features = {"videos": self.videos, "parquet": self.series == "parquet", "tensorboard": self.tensorboard}
        for what, (module, extra) in NEEDED.items():
            if features[what] and importlib.util.find_spec(module) is None:
                off = "" if what == "parquet" else f", or pass {what}=False"
                raise ImportError(
                    f"{what} needs the package {module!r}, which is not installed: "
                    f"pip install 'pytest-torchlens[{extra}]'{off}"
                )


def _fits(side: Any) -> bool:
    return isinstance(side, int) and SMALLEST <= side <= LARGEST and side % 2 == 0


def _folder(value: Any) -> Path:
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise TypeError(f"folder: expected a path, or None for no files, got {value!r}")
    folder = Path(value).absolute()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder: expected a folder, got the file {str(folder)!r}")
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
        The range as the user wrote it.
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
            If the text is not a range.
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
        if match := _ONE.fullmatch(text):
            return ((match[1], _number(match[2])),)
        if match := _TWO.fullmatch(text):
            return ((">=", _number(match[1])), ("<=", _number(match[2])))
    except ValueError:
        pass
    return None


def _number(text: str) -> float:
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def check_whole(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Check that it is a whole number between two limits.

    Raises
    ------
    ValueError
        If it is not.
    """
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < least or (most is not None and value > most):
        span = f"of at least {least}" if most is None else f"from {least:,} to {most:,}"
        raise ValueError(f"{name}: expected a whole number {span}, got {value!r}")


def check_positive(name: str, value: Any) -> None:
    """Check that it is a finite number above 0.

    Raises
    ------
    ValueError
        If it is not.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise ValueError(f"{name}: expected a finite number above 0, got {value!r}")


def check_flags(**flags: Any) -> None:
    """Check that each is True or False.

    Raises
    ------
    TypeError
        If one is not.
    """
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name}: expected True or False, got {value!r}")


def check_some(**flags: Any) -> None:
    """Check that each is True or False, and at least one is True.

    Raises
    ------
    TypeError
        If one is neither.
    ValueError
        If all are False.
    """
    check_flags(**flags)
    if not any(flags.values()):
        raise ValueError(f"expected at least one of {', '.join(flags)} to be True, got False for all")


def check_text(name: str, value: Any) -> None:
    """Check that it is a string.

    Raises
    ------
    TypeError
        If it is not.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected a string, got {value!r}")


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
