"""Shared memory of two processes: a ring of equal slots, allocated once.

The memory has no name, so that nothing is left behind, however the processes end.  One process fills slots in order
and reports each in a message.  The other reads and frees them in the same order.  Besides the slots, the processes
share only the number of freed slots.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np

HEAD = 64
"""Bytes before the first slot; the first eight count the freed slots."""


class Ring:
    """A ring of slots of 32-bit floats.

    Parameters
    ----------
    slots
        Number of slots.
    values
        Floats in each.
    handle
        The `handle` of the other process's ring; None allocates new memory.

    Attributes
    ----------
    num_filled : int
        Number of slots that this process has filled.
    """

    def __init__(self, slots: int, values: int, handle: str | None = None) -> None:
        self.slots = slots
        self.values = values
        self.num_filled = 0
        size = HEAD + 4 * slots * values
        self._file, self._memory = _new(size) if handle is None else _attach(handle, size)
        # If nobody calls `close`, the file closes together with the ring.
        self._close = weakref.finalize(self, os.close, self._file) if isinstance(self._file, int) else None
        self._freed: np.ndarray[Any, np.dtype[np.int64]] = np.frombuffer(self._memory, np.int64, 1)
        flat = np.frombuffer(self._memory, np.float32, slots * values, HEAD)
        self._slots = flat.reshape(slots, values)

    @property
    def handle(self) -> str:
        """Identifies the memory to the other process."""
        return str(self._file)

    @property
    def file_descriptors(self) -> tuple[int, ...]:
        """File descriptors that the other process must inherit."""
        return (self._file,) if isinstance(self._file, int) else ()

    @property
    def num_free(self) -> int:
        """Number of slots that can be filled now."""
        return self.slots - (self.num_filled - int(self._freed[0]))

    def next_slot(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return the slot to be filled next; it counts as filled once `fill` is called."""
        slot: np.ndarray[Any, np.dtype[np.float32]] = self._slots[self.num_filled % self.slots]
        return slot

    def fill(self) -> int:
        """Count the next slot as filled; return its number."""
        self.num_filled += 1
        return self.num_filled - 1

    def read(self, number: int, size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return a copy of the first `size` values of a filled slot."""
        slot: np.ndarray[Any, np.dtype[np.float32]] = self._slots[number % self.slots]
        return slot[:size].copy()

    def release(self) -> None:
        """Free the oldest filled slot."""
        self._freed[0] += 1

    def close(self) -> None:
        """Release the memory; it is freed with the last array that uses it."""
        del self._freed, self._slots, self._memory
        if self._close:
            self._close()


def _new(size: int) -> tuple[int | str, mmap.mmap]:
    if sys.platform == "win32":
        name = f"pytest-lens-{os.getpid()}-{os.urandom(8).hex()}"
        return name, mmap.mmap(-1, size, tagname=name)
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("pytest-lens-recorder")
    else:
        file, path = tempfile.mkstemp(prefix="pytest-lens-")
        Path(path).unlink()
    try:
        os.truncate(file, size)
        return file, mmap.mmap(file, size)
    except OSError:
        os.close(file)
        raise


def _attach(handle: str, size: int) -> tuple[int | str, mmap.mmap]:
    if sys.platform == "win32":
        return handle, mmap.mmap(-1, size, tagname=handle)
    return int(handle), mmap.mmap(int(handle), size)
