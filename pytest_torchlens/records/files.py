"""Writes and removes every file of the package: whole or not at all, and with the same error if that fails.

Other modules call these functions; `tests/packaging/test_writers.py` finds those that do not.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO
from typing import Final

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


class UnwritableError(OSError):
    """A file or folder cannot be written; the message names it, the reason and the fix."""

    done = "written"
    """What cannot be done to it."""
    fix = ""
    """What the user can do; empty for the usual advice."""

    def __str__(self) -> str:
        path = str(self.filename)
        fix = self.fix or _FIXES.get(self.errno or 0, "name another path")
        return f"{path if path.isprintable() else repr(path)} cannot be {self.done}: {self.strerror}; {fix}"


_FREE_SPACE = "free space on its disk, or name another path"
_PERMIT = "allow writing to its folder, or name another path"
_FIXES: Final = {
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.EFBIG: "raise the limit on file sizes (ulimit -f), or name another path",
    errno.EROFS: _PERMIT,
    errno.EACCES: _PERMIT,
    errno.EPERM: _PERMIT,
    errno.ENAMETOOLONG: "name a shorter path",
    errno.EISDIR: "name a file, not a folder",
    errno.ENOTDIR: "a file stands where a folder is needed: name another path",
    errno.EEXIST: "a file stands where a folder is needed: name another path",
    errno.ENOENT: "make its folder first",
    errno.ETIMEDOUT: "another process writes it: wait for that one to end",
}


@contextlib.contextmanager
def writing(path: Path, done: str = "written") -> Iterator[None]:
    """Turn any `OSError` of a block that writes `path` into an `UnwritableError` that names it.

    A text that cannot be a path is such an error, too; the block then does not run.

    Parameters
    ----------
    path
        The path as the user knows it.
    done
        What cannot be done to it: ``"written"``, ``"removed"``.
    """
    try:
        if why := why_no_path(path):
            raise OSError(errno.EINVAL, why)
        yield
    except UnwritableError:
        raise
    except OSError as error:
        raise unwritable(path, error, done) from None


def why_no_path(path: Path | str) -> str:
    """Return why a text is not a valid path; ``""`` if it is."""
    if "\0" in str(path):
        return "it has a null character"
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        return f"{error.object[error.start : error.end]!r} is not a valid character"
    return ""


def unwritable(path: Path, error: OSError, done: str = "written") -> UnwritableError:
    """Return the error that names `path`, with the reason of another error."""
    found = UnwritableError(error.errno, error.strerror or str(error) or type(error).__name__, str(path))
    found.done = done
    return found


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
    UnwritableError
        If the file cannot be written.  The old file is then unchanged, and no temporary file is left.
    """
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    with writing(path):
        if _cannot_be_replaced(path):
            append(path, data)
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
        The file.  A symbolic link stays, and a replaced file keeps its mode; a new one has that of the umask.
    make_folders
        Make the folders above the file.

    Yields
    ------
    Path
        An empty file in the same folder.  It is removed if the block raises.

    Raises
    ------
    UnwritableError
        If the file cannot be put in place.  The old file is then unchanged.
    """
    with writing(path):
        target = Path(os.path.realpath(path))
        part = target.with_name(f".{os.urandom(8).hex()}.part")
        if make_folders:
            target.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.touch()
            usual = part.stat().st_mode  # by the umask; the caller's library may make the file with another one
            yield part
            _set_mode(part, target.stat().st_mode if target.exists() else usual)
            part.replace(target)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to report
                part.unlink()
            raise


def append(path: Path, data: bytes) -> None:
    """Append to a file that other programs read or write too: a pipe, a log of a CI.

    Raises
    ------
    UnwritableError
        If that fails; a part may then be written.
    """
    with writing(path), path.open("ab") as file:
        file.write(data)


def make_folder(folder: Path) -> Path:
    """Make a folder and those above it, where they are missing; return it.

    Raises
    ------
    UnwritableError
        If that fails.
    """
    with writing(folder):
        Path(os.path.realpath(folder)).mkdir(parents=True, exist_ok=True)
    return folder


def touch(path: Path) -> None:
    """Make an empty file, a mark; its folder exists.

    Raises
    ------
    UnwritableError
        If that fails.
    """
    with writing(path):
        path.touch()


def remove(path: Path) -> None:
    """Remove a file; one that does not exist is left so, also on a read-only disk.

    Raises
    ------
    UnwritableError
        If that fails.
    """
    if os.path.lexists(path):
        with writing(path, "removed"):
            path.unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Remove a folder with all that is in it, as far as that is allowed."""
    shutil.rmtree(folder, ignore_errors=True)


def rename(path: Path, name: Path) -> None:
    """Give a file or folder another name, which nothing has.

    Raises
    ------
    UnwritableError
        If that fails.
    """
    with writing(name):
        path.rename(name)


def check_file(path: Path, *, make_folders: bool = True) -> None:
    """Check that a file can be written, before the work whose result it will hold.  Nothing is left behind.

    Raises
    ------
    UnwritableError
        If it cannot.
    """
    with writing(path):
        if path.is_dir():
            raise _error(errno.EISDIR)
        if _cannot_be_replaced(path):
            return
        parent = Path(os.path.realpath(path)).parent
        if not make_folders and not parent.exists():
            raise _error(errno.ENOENT)
        _check(parent, path.name)


def check_folder(folder: Path) -> None:
    """Check that files can be written into a folder, or that it can be made.  Nothing is left behind.

    Raises
    ------
    UnwritableError
        If they cannot.
    """
    with writing(folder):
        _check(Path(os.path.realpath(folder)))


_BLOCK = 4096
"""Bytes to write into a file without a name, for a full disk to be noticed."""


def _check(folder: Path, name: str = "x") -> None:
    existing = next(parent for parent in (folder, *folder.parents) if os.path.lexists(parent))
    if not existing.is_dir():
        raise _error(errno.ENOTDIR)
    for part in (*folder.relative_to(existing).parts, name):
        _check_name(existing / part)
    _check_name(folder / name)
    try:
        with tempfile.TemporaryFile(dir=existing, buffering=0) as file:
            file.write(bytes(_BLOCK))
    except FileNotFoundError:  # the answer of /proc, which takes no files
        raise _error(errno.EACCES) from None


def _check_name(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.lstat()


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Let one process of this machine at a time read and rewrite a file; others wait.

    The lock file is in the user's temporary folder, so that nothing is left next to the file.

    Raises
    ------
    UnwritableError
        If another process holds the lock for a minute, or the lock cannot be made.
    """
    from filelock import FileLock  # it loads asyncio, and a run without models locks nothing
    from filelock import Timeout

    with writing(path):
        digest = hashlib.sha256(os.path.realpath(path).encode(errors="surrogatepass")).hexdigest()[:32]
    folder = temporary_path(f"pytest-torchlens-{os.getuid() if hasattr(os, 'getuid') else 'user'}")
    lock = FileLock(folder / f"{digest}.lock", timeout=_PATIENCE)
    with writing(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            lock.acquire()
        except Timeout:
            raise unwritable(path, _error(errno.ETIMEDOUT)) from None
    try:
        yield
    finally:
        lock.release()


_PATIENCE = 60
"""Seconds to wait for another process that rewrites the same file."""


def temporary_path(name: str) -> Path:
    """Return a path in the folder for temporary files.

    Raises
    ------
    UnwritableError
        If there is no such folder that can be written.
    """
    with _writing_temporary():
        return Path(tempfile.gettempdir(), name)


def temporary_file() -> IO[bytes]:
    """Return an open file without a name, for the output of a process.

    Raises
    ------
    UnwritableError
        If there is no folder for it that can be written.
    """
    with _writing_temporary():
        return tempfile.TemporaryFile()


def temporary_folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """Return a new folder, which is removed by its ``cleanup()``.

    Raises
    ------
    UnwritableError
        If there is no folder for it that can be written.
    """
    with _writing_temporary():
        return tempfile.TemporaryDirectory(prefix=prefix)


@contextlib.contextmanager
def _writing_temporary() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        found = unwritable(Path("a temporary file"), error)
        found.fix = "name a folder for such files with the environment variable TMPDIR"
        raise found from None


def _set_mode(path: Path, mode: int) -> None:
    with contextlib.suppress(OSError):  # the file system has no modes
        path.chmod(stat.S_IMODE(mode))


def _cannot_be_replaced(path: Path) -> bool:
    """Return whether a path is a device, a pipe or another process's open file (``/dev/stdout``)."""
    return path.exists() and (not path.is_file() or path.absolute().parts[1:2] in (("dev",), ("proc",)))
