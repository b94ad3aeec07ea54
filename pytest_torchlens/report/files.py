"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_file(path: Path, content: str | bytes) -> Path:
    """Write a file, with the folders above it, such that no reader ever sees half of it; a link stays one.

    Raises
    ------
    OSError
        If that cannot be done; a file that was there before is then unchanged.
    """
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    if path.exists() and _takes_what_comes(path):
        with path.open("ab") as file:
            file.write(data)
        return path
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return path


def _takes_what_comes(path: Path) -> bool:
    """Whether a path stands for a device, a pipe, or what a shell wrote ``> FILE`` for (``/dev/stdout``)."""
    return not path.is_file() or path.absolute().parts[1:2] in (("dev",), ("proc",))
