"""Options of a recorder, checked."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from dataclasses import fields
from pathlib import Path
from typing import Any

from pytest_torchlens.recorder.checks import check_flags
from pytest_torchlens.recorder.checks import check_positive
from pytest_torchlens.recorder.checks import check_text
from pytest_torchlens.recorder.checks import check_whole
from pytest_torchlens.records.near import nearest

SMALLEST, LARGEST = 160, 8192
"""Pixels of a frame's sides: its text is to be read, and its file to be played."""

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
"""Least and most of whole numbers."""
FLAGS = ("no_grad", "videos", "tensorboard", "page")
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
    slots: int = 512
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
            given["folder"] = _folder(given["folder"])
        options = cls(**given)
        options._check()
        return options

    def _check(self) -> None:
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"{name}={value!r}: choose one of {', '.join(map(repr, choices))}")
        check_text("title", self.title)
        check_flags(**{name: getattr(self, name) for name in FLAGS})
        if self.scaler is not None and (isinstance(self.scaler, type) or not hasattr(self.scaler, "get_scale")):
            raise TypeError(f"scaler={self.scaler!r}: give the torch.amp.GradScaler that scales the loss")
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
        given: Any = self.size
        if not isinstance(given, tuple | list) or len(given) != len(("width", "height")) or not all(map(_fits, given)):
            raise ValueError(f"size={self.size!r}: give width and height, even numbers from {SMALLEST} to {LARGEST:,}")

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


def _fits(side: Any) -> bool:
    return isinstance(side, int) and SMALLEST <= side <= LARGEST and side % 2 == 0


def _folder(given: Any) -> Path:
    if not isinstance(given, str | os.PathLike) or not str(given):
        raise TypeError(f"folder={given!r}: give a path, or None for no files")
    folder = Path(given).absolute()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder={str(folder)!r} is a file; name a folder")
    return folder
