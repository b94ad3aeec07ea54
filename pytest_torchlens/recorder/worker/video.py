"""Videos that can be played while they are written, and if they are cut off.

With PyAV they are H.264 in fragmented MP4, one fragment for each frame.  Without it they are animated WebP, written
frame by frame, because Pillow alone keeps all frames until the last.  A WebP file is a list of chunks, and its header
gets a new size after each frame.
"""

from __future__ import annotations

import importlib.util
import io
import struct
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import Protocol

from pytest_torchlens.recorder.worker.files import WholeFile

if TYPE_CHECKING:
    from PIL.Image import Image


class Writer(Protocol):
    """Writes one file."""

    def add(self, frame: Image) -> None:
        """Add a frame."""

    def close(self) -> None:
        """Finish the file."""


def new_video(stem: Path, settings: dict[str, Any]) -> Video:
    """Return a video: H.264 if PyAV is installed, else animated WebP."""
    if importlib.util.find_spec("av") is None:
        return Video(stem, ".webp", WebP, settings)

    return Video(stem, ".mp4", Mp4, settings)


class Video:
    """The video of one item, in one or several files.

    Attributes
    ----------
    paths : list of Path
        The files.
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


FRAGMENTS = {"movflags": "frag_every_frame+empty_moov+default_base_moof", "flush_packets": "1"}

QUALITY = {"preset": "ultrafast", "tune": "zerolatency", "crf": "20", "threads": "1", "g": "50"}


class Mp4:
    """One video file in fragmented MP4."""

    def __init__(self, path: Path, frames_per_second: int, size: tuple[int, int]) -> None:
        import av

        self._new_frame: Any = av.VideoFrame.from_image  # it is typed in part only
        self._disk = WholeFile(path)
        self._pieces = Pieces()
        self._file = av.open(self._pieces, "w", format="mp4", options=FRAGMENTS)
        self._stream = self._file.add_stream("libx264", rate=frames_per_second, options=QUALITY)
        self._stream.width, self._stream.height = size
        self._stream.pix_fmt = "yuv420p"

    def add(self, frame: Image) -> None:
        """Add a frame."""
        self._file.mux(self._stream.encode(self._new_frame(frame)))
        self._save()

    def close(self) -> None:
        """Finish the file."""
        try:
            self._file.mux(self._stream.encode(None))
            self._file.close()
            self._save()
        finally:
            self._disk.close()

    def _save(self) -> None:
        self._disk.append(self._pieces.take())


class Pieces:
    """Buffers the pieces that FFmpeg writes, so that each fragment reaches the disk complete."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        """Buffer a piece."""
        self._data += data
        return len(data)

    def take(self) -> bytes:
        """Return all pieces since the last call."""
        data = bytes(self._data)
        self._data.clear()
        return data


ANIMATED = 0b10

KEEP_BELOW = 0b10
"""Do not blend a frame with the previous one."""


class WebP:
    """One video file in animated WebP."""

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
