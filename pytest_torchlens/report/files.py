"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_file(path: Path, content: str | bytes) -> Path:
    """Write a file, with the folders above it, such that no reader ever sees half of it.

    Raises
    ------
    OSError
        If that cannot be done; a file that was there before is then unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{os.getpid()}.part")
    try:
        part.write_bytes(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path
