"""Makes file names from any model name, and writes files whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

_LONGEST = 80
# Lower case only: on some file systems `Net` and `net` are the same file.
_SAFE = re.compile(rf"[a-z0-9](?:[a-z0-9._-]{{0,{_LONGEST - 2}}}[a-z0-9])?")
_DIGESTED = re.compile(r".*-[0-9a-f]{12}")
_RESERVED_ON_WINDOWS = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?")


def file_name(name: str) -> str:
    """Return a name that every file system accepts: a plain name unchanged, else its readable part and a digest."""
    taken = _DIGESTED.fullmatch(name) or _RESERVED_ON_WINDOWS.fullmatch(name)
    if _SAFE.fullmatch(name) and not taken:
        return name
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:12]
    readable = re.sub(r"[^a-z0-9._]+", "-", name.lower())[:_LONGEST].strip("-._")
    return f"{readable or 'unnamed'}-{digest}"


def write_atomically(path: Path, content: str | bytes, *, make_folders: bool = True) -> Path:
    """Write a file so that a reader sees the old content or the new one, and nothing between.

    A symbolic link stays, and the file that it points to is replaced.  A device, a pipe and ``/dev/stdout`` cannot be
    replaced; the content is appended to them.

    Parameters
    ----------
    path
        The file.  A replaced file keeps its mode.
    content
        Bytes or text.  Text is written as UTF-8, its line endings unchanged; characters that UTF-8 lacks are escaped.
    make_folders
        Make the folders above the file.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    OSError
        If the file cannot be written.  The old file is then unchanged, and no temporary file is left.
    """
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    if _cannot_be_replaced(path):
        with path.open("ab") as file:
            file.write(data)
        return path
    with replacing(path, make_folders=make_folders) as part:
        part.write_bytes(data)
    return path


@contextlib.contextmanager
def replacing(path: Path, *, make_folders: bool = True) -> Iterator[Path]:
    """Let the caller write a temporary file, which then takes the place of `path`.

    This is `write_atomically` for writers that need a path: Parquet, safetensors.

    Parameters
    ----------
    path
        The file.  A symbolic link stays, and a replaced file keeps its mode.
    make_folders
        Make the folders above the file.

    Yields
    ------
    Path
        A new path in the same folder.  Its file is removed if the block raises.

    Raises
    ------
    OSError
        If the file cannot be put in place.  The old file is then unchanged.
    """
    target = Path(os.path.realpath(path))
    if make_folders:
        target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{os.urandom(8).hex()}.part")
    try:
        yield part
        _copy_mode(target, part)
        part.replace(target)
    except OSError as error:
        if error.filename == str(part):  # users know the file by its own name
            error.filename = str(path)
            del error.filename2  # it is shown even if it is None
        raise
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Let one process of this machine at a time read and rewrite a file; others wait.

    The lock file is in the user's temporary folder, so that nothing is left next to the file.

    Raises
    ------
    OSError
        If another process holds the lock for a minute, or the lock cannot be made.
    """
    digest = hashlib.sha256(os.path.realpath(path).encode(errors="surrogatepass")).hexdigest()[:32]
    folder = Path(tempfile.gettempdir()) / f"pytest-torchlens-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with FileLock(folder / f"{digest}.lock", timeout=_PATIENCE):
        yield


_PATIENCE = 60
"""Seconds to wait for another process that rewrites the same file."""


def _copy_mode(source: Path, target: Path) -> None:
    with contextlib.suppress(OSError):  # `source` does not exist yet, or the file system has no modes
        target.chmod(stat.S_IMODE(source.stat().st_mode))


def _cannot_be_replaced(path: Path) -> bool:
    """Return whether a path is a device, a pipe or another process's open file (``/dev/stdout``)."""
    return path.exists() and (not path.is_file() or path.absolute().parts[1:2] in (("dev",), ("proc",)))
