"""Saves and restores objects with an internal state: arrays, buffers, files, random generators, caches, iterators."""

from __future__ import annotations

import array
import functools
import io
import operator
import queue
import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from pytest_torchlens.capture.looks import class_attribute
from pytest_torchlens.capture.looks import home_of
from pytest_torchlens.capture.looks import is_a

RestoreState = Callable[[], bool]
"""Restores an object; returns whether that succeeded."""
_LARGEST_MAP = 1 << 28
_GENERATORS: tuple[tuple[type, Any, Any], ...] = (
    (torch.Generator, torch.Generator.get_state, torch.Generator.set_state),
    (random.Random, random.Random.getstate, random.Random.setstate),
    (np.random.Generator, lambda g: g.bit_generator.state, lambda g, state: setattr(g.bit_generator, "state", state)),
    (np.random.BitGenerator, lambda g: g.state, lambda g, state: setattr(g, "state", state)),
    (np.random.RandomState, np.random.RandomState.get_state, np.random.RandomState.set_state),
)


def random_generator(value: Any) -> RestoreState:
    """Save the state of a random generator."""
    get, put = next((get, put) for kind, get, put in _GENERATORS if is_a(value, kind))
    return functools.partial(_put_state, value, get(value), put)


def _put_state(value: Any, state: Any, put: Any) -> bool:
    put(value, state)
    return True


def numpy_array(value: Any) -> RestoreState | None:
    """Save the contents of an array; nothing for a large file mapped into memory."""
    if not value.flags.writeable:
        return None
    if is_a(value, np.memmap) and value.nbytes > _LARGEST_MAP:
        return None
    former = value.view(np.ndarray).copy()

    def restore() -> bool:
        if value.shape != former.shape:
            value.shape = former.shape
        np.copyto(value.view(np.ndarray), former)
        return True

    return restore


def raw_bytes(value: Any) -> RestoreState | None:
    """Save the contents of a Python buffer."""
    if not is_a(value, memoryview):
        return functools.partial(_refill, value, value[:])
    if value.readonly or not value.c_contiguous:
        return None
    former = value.tobytes()

    def restore() -> bool:
        value.cast("B")[:] = former
        return True

    return restore


def _refill(value: Any, contents: Any) -> bool:
    value[:] = contents
    return True


def file(value: Any) -> RestoreState | None:
    """Save the position of a file, and the contents of an in-memory file.  Writes to files on disk are not undone."""
    if value.closed:
        return None
    place, contents = _place(value), value.getvalue() if isinstance(value, _IN_MEMORY) else None

    def restore() -> bool:
        if isinstance(value, _IN_MEMORY) and not value.closed and value.getvalue() != contents:
            value.seek(0)
            value.truncate()
            value.write(contents)  # type: ignore[arg-type]
        if _place(value) != place and not value.closed and value.readable():
            value.seek(place)
        return _place(value) == place

    return restore


_IN_MEMORY = (io.BytesIO, io.StringIO)


def _place(value: io.IOBase) -> int:
    """Return the position of a file; -1 if it has none."""
    try:
        return value.tell() if value.seekable() else -1
    except (OSError, ValueError):  # during an iteration over its lines, or closed
        return -1


def cache(value: Any) -> RestoreState:
    """Save the size of a `functools.lru_cache`: it can be cleared, but entries cannot be restored."""
    former = value.cache_info()

    def restore() -> bool:
        if value.cache_info().misses != former.misses and not former.currsize:
            value.cache_clear()
        return value.cache_info().misses in (0, former.misses)

    return restore


_KINDS: tuple[tuple[tuple[type, ...], Callable[[Any], RestoreState | None]], ...] = (
    (tuple(kind for kind, _, _ in _GENERATORS), random_generator),
    ((np.ndarray,), numpy_array),
    ((bytearray, array.array, memoryview), raw_bytes),
    ((io.IOBase,), file),
    ((functools._lru_cache_wrapper,), cache),
)


def kinds_of(kind: type) -> list[Callable[[Any], RestoreState | None]]:
    """Return the functions that save the state of objects of a class; none for classes without an internal state."""
    return [note for kinds, note in _KINDS if issubclass(kind, kinds)]


def may_be_used_up(kind: type) -> bool:
    """Return whether reading from an object of a class may consume items that cannot be restored."""
    if kind in (queue.SimpleQueue, types.CoroutineType, types.AsyncGeneratorType):
        return True
    by = class_attribute(kind, "__next__")
    own = type(by) is types.FunctionType and not home_of(kind).startswith("torch.")
    return by is not None and (issubclass(kind, io.IOBase) or not own)


def is_used_up(value: Any) -> bool:
    """Return whether reading from such an object does consume them: of files, those that can only be read on."""
    return not is_a(value, io.IOBase) or (not value.closed and value.readable() and not value.seekable())


def progress(value: Any) -> Any:
    """Return a value that changes as an iterator is read; None if there is no such value."""
    if is_a(value, types.GeneratorType):
        return value.gi_frame.f_lasti if value.gi_frame is not None else "finished"
    if is_a(value, queue.SimpleQueue):
        return value.qsize()
    if type(value).__name__ == "count":
        return repr(value)
    left = operator.length_hint(value, -1)
    return left if left >= 0 else None
