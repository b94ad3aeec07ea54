"""Videos that can be played at any time while they are written, and wherever they are cut."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import Protocol

if TYPE_CHECKING:
    from PIL.Image import Image


class Writer(Protocol):
    """Writes one file."""

    def add(self, frame: Image) -> None:
        """Add a frame."""

    def close(self) -> None:
        """Finish the file."""


class Video:
    """The video of one item, in one file after the other.

    Attributes
    ----------
    paths : list of Path
        Its files.
    """

    def __init__(self, stem: Path, suffix: str, writer: Any, settings: dict[str, Any]) -> None:
        self.paths: list[Path] = []
        self._stem, self._suffix, self._new_writer = stem, suffix, writer
        self._settings = settings
        self._writer: Writer | None = None
        self._frames = 0

    def add(self, frame: Image) -> None:
        """Add a frame."""
        if self._writer is None or self._frames == self._settings["max_frames"]:
            self._next_file()
        if self._writer:
            self._writer.add(frame)
            self._frames += 1

    def close(self) -> None:
        """Finish the last file."""
        if self._writer:
            writer, self._writer = self._writer, None
            writer.close()

    def _next_file(self) -> None:
        self.close()
        number = f".{len(self.paths) + 1}" if self.paths else ""
        path = self._stem.with_name(f"{self._stem.name}{number}{self._suffix}")
        self._writer = self._new_writer(path, self._settings["frames_per_second"], tuple(self._settings["size"]))
        self._frames = 0
        self.paths.append(path)


def new_video(stem: Path, settings: dict[str, Any]) -> Video:
    """Return a video: H.264 where PyAV is installed, animated WebP where it is not."""
    if importlib.util.find_spec("av") is None:
        from pytest_torchlens.recorder.worker.webp import WebP

        return Video(stem, ".webp", WebP, settings)
    from pytest_torchlens.recorder.worker.mp4 import Mp4

    return Video(stem, ".mp4", Mp4, settings)
