"""Options of a recorder, checked."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from dataclasses import fields
from pathlib import Path
from typing import Any

from pytest_torchlens.records.near import nearest

SMALLEST = 160
"""Pixels that a frame has at least, for its text to be read."""

CHOICES = {
    "policy": ("drop", "coalesce", "block"),
    "steps": ("optimizer", "manual"),
    "series": ("csv", "parquet"),
    "on_error": ("raise", "warn"),
}
NEEDED = {
    "videos": ("PIL", "record"),
    "parquet": ("pyarrow", "record"),
    "tensorboard": ("tensorboard", "tensorboard"),
}
"""What needs which module, and the extra that brings it."""


@dataclass(frozen=True)
class RecorderOptions:
    """What a `Recorder` is made with; its docstring says what each means."""

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
    slots: int = 128
    slot_values: int = 65_536
    workers: int = 1
    keep: int = 10_000
    timeout: float = 60.0
    on_error: str = "raise"

    @classmethod
    def of(cls, **given: Any) -> RecorderOptions:
        """Return the options given, checked.

        Raises
        ------
        TypeError
            If there is no such option.
        ValueError
            If a value is none of those allowed.
        ImportError
            If an option needs a package that is not installed.
        """
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise TypeError(f"a recorder has no option {name!r}; {nearest(name, known)}")
        if given.get("folder") is not None:
            given["folder"] = Path(given["folder"]).absolute()
        options = cls(**given)
        options._check()
        return options

    def _check(self) -> None:
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"{name}={value!r}: choose one of {', '.join(map(repr, choices))}")
        self._check_numbers()
        self._check_packages()
        if self.folder and self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"folder={str(self.folder)!r} is a file; name a folder")

    def _check_numbers(self) -> None:
        for name in ("every", "max_frames", "frames_per_second", "workers", "keep", "slot_values"):
            check_whole(name, getattr(self, name), 1)
        check_whole("slots", self.slots, 4)
        check_whole("start", self.start, 0)
        if self.until is not None:
            check_whole("until", self.until, self.start + 1)
        for name in ("per_second", "timeout"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and value > 0):
                raise ValueError(f"{name}={value!r}: give a number above 0")
        width, height = self.size
        for length in (width, height):
            if length < SMALLEST or length % 2:
                raise ValueError(f"size={self.size!r}: give width and height, even numbers from {SMALLEST} on")

    def _check_packages(self) -> None:
        if self.folder is None:
            return
        wanted = {"videos": self.videos, "parquet": self.series == "parquet", "tensorboard": self.tensorboard}
        for what, (module, extra) in NEEDED.items():
            if wanted[what] and importlib.util.find_spec(module) is None:
                off = "" if what == "parquet" else f", or turn them off: {what}=False"
                raise ImportError(
                    f"{what} need the package {module!r}, which is not installed: "
                    f"pip install 'pytest-torchlens[{extra}]'{off}"
                )


def check_whole(name: str, value: Any, least: int) -> None:
    """Check that it is a whole number, and not too small.

    Raises
    ------
    ValueError
        If it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}={value!r}: give a whole number from {least} on")
