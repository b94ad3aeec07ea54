"""H.264 in fragmented MP4: each frame is a fragment, so that a file that is cut plays up to there."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

import av

from pytest_torchlens.recorder.worker.files import WholeFile

if TYPE_CHECKING:
    from pathlib import Path

    from PIL.Image import Image

FRAGMENTS = {"movflags": "frag_every_frame+empty_moov+default_base_moof", "flush_packets": "1"}
VIDEO_FRAME: Any = av.VideoFrame  # it is typed in part only
QUALITY = {"preset": "ultrafast", "tune": "zerolatency", "crf": "20", "threads": "1", "g": "50"}


class Pieces:
    """Takes what FFmpeg writes, in whatever pieces, for a fragment to reach the disk as a whole."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        """Take a piece."""
        self._data += data
        return len(data)

    def take(self) -> bytes:
        """Return all pieces since the last time."""
        data = bytes(self._data)
        self._data.clear()
        return data


class Mp4:
    """One file."""

    def __init__(self, path: Path, frames_per_second: int, size: tuple[int, int]) -> None:
        self._disk = WholeFile(path)
        self._pieces = Pieces()
        self._file = av.open(self._pieces, "w", format="mp4", options=FRAGMENTS)
        self._stream = self._file.add_stream("libx264", rate=frames_per_second, options=QUALITY)
        self._stream.width, self._stream.height = size
        self._stream.pix_fmt = "yuv420p"

    def add(self, frame: Image) -> None:
        """Add a frame."""
        self._file.mux(self._stream.encode(VIDEO_FRAME.from_image(frame)))
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
