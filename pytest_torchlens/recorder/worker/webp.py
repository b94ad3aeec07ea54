"""Animated WebP, written frame by frame: Pillow alone keeps all frames until the last.

A file is a list of chunks; the sizes in its head are set anew after each frame, so that it is whole at any time.
"""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING

from pytest_torchlens.recorder.worker.files import WholeFile

if TYPE_CHECKING:
    from pathlib import Path

    from PIL.Image import Image

ANIMATED = 0b10
KEEP_BELOW = 0b10
"""Do not mix a frame with the one before it."""


class WebP:
    """One file."""

    def __init__(self, path: Path, frames_per_second: int, size: tuple[int, int]) -> None:
        self._duration = 1000 // frames_per_second
        self._file = WholeFile(path)
        width, height = (_three_bytes(length - 1) for length in size)
        head = _chunk(b"VP8X", bytes([ANIMATED, 0, 0, 0]) + width + height)
        background, loops = bytes(4), bytes(2)
        self._append(b"RIFF" + bytes(4) + b"WEBP" + head + _chunk(b"ANIM", background + loops))

    def add(self, frame: Image) -> None:
        """Add a frame."""
        still = io.BytesIO()
        frame.save(still, "WEBP", quality=80, method=0)
        width, height = (_three_bytes(length - 1) for length in frame.size)
        place = _three_bytes(0) * 2 + width + height + _three_bytes(self._duration) + bytes([KEEP_BELOW])
        # A still picture is "RIFF", its size, "WEBP", and the chunks that are a frame here.
        self._append(_chunk(b"ANMF", place + still.getvalue()[12:]))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, data: bytes) -> None:
        self._file.append(data)
        self._file.replace(0, b"RIFF" + struct.pack("<I", self._file.size - 8))


def _chunk(name: bytes, content: bytes) -> bytes:
    return name + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)


def _three_bytes(number: int) -> bytes:
    return struct.pack("<I", number)[:3]
