"""The code that led to a call: file, line and function of each frame, and the line of the model's own code."""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
from collections.abc import Callable
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import TypedDict
from typing import TypeVar
from typing import cast

import torch

from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.calls import Escape
from pytest_torchlens.capture.calls import Frames
from pytest_torchlens.records import SourcePlace

_T = TypeVar("_T")
_TORCH_FOLDER = f"{Path(torch.__file__).parent}{os.sep}"
_OUR_FOLDER = f"{Path(__file__).parents[1]}{os.sep}"
_NOT_THE_MODEL = (_TORCH_FOLDER, _OUR_FOLDER, contextlib.__file__, functools.__file__)


def source_place(call: Call | Escape) -> SourcePlace | None:
    """Return the line of the innermost frame that belongs neither to PyTorch nor to us."""
    for code, at in model_frames(call):
        return place_of(code, at)
    return None


def first_model_place(call_frames: Frames) -> SourcePlace | None:
    """Return the line of the innermost of `call_frames` that is the model's code."""
    return next((place_of(code, at) for code, at in model_frames_of(call_frames)), None)


def frames(call: Call | Escape) -> Iterator[tuple[CodeType, int]]:
    """Yield code and instruction of each frame, from the call outward to the model's forward."""
    yield from _without_our_frames(call.frames)
    if call.module is not None:
        for module_call in call.module.stack():
            yield from _without_our_frames(module_call.frames)


def model_frames(call: Call | Escape) -> Iterator[tuple[CodeType, int]]:
    """Yield code and instruction of each frame of the model's code, from the call outward."""
    for code, at in all_frames_of(call.frames):
        if is_model_code(code):
            yield code, at
    for module_call in () if call.module is None else call.module.stack():
        yield from model_frames_of(module_call.frames)


def model_frames_of(call_frames: Frames) -> Iterator[tuple[CodeType, int]]:
    """Yield code and instruction of each of `call_frames` that is the model's code."""
    return (frame for frame in all_frames_of(call_frames) if is_model_code(frame[0]))


def _without_our_frames(call_frames: Frames) -> Iterator[tuple[CodeType, int]]:
    return (frame for frame in all_frames_of(call_frames) if not frame[0].co_filename.startswith(_OUR_FOLDER))


def all_frames_of(call_frames: Frames) -> Iterator[tuple[CodeType, int]]:
    """Return an iterator over code and instruction of each of `call_frames`, from the call outward."""
    codes = cast("tuple[CodeType, ...]", call_frames[::2])
    positions = cast("tuple[int, ...]", call_frames[1::2])
    return zip(codes, positions, strict=True)


def by_identity(call_frames: Frames) -> tuple[int, ...]:
    """Return frames as a key that compares code by identity: the equality of code objects compares all their bytes."""
    return (*map(id, call_frames[::2]), *call_frames[1::2])  # type: ignore[arg-type]


def is_model_code(code: CodeType) -> bool:
    """Return whether code is the model's (or a library's other than PyTorch)."""
    return is_model_file(code.co_filename)


def is_model_file(name: str) -> bool:
    """Return whether the code of a file is the model's (or a library's other than PyTorch)."""
    return has_source(name) if name.startswith("<") else _is_outside_torch(name)


@functools.lru_cache(4096)
def _is_outside_torch(filename: str) -> bool:
    return not filename.startswith(_NOT_THE_MODEL)


def has_source(filename: str) -> bool:
    """Return whether code outside files has source, as a cell of IPython has; code from ``exec`` has none."""
    return filename.endswith(">") and filename in linecache.cache


def place_of(code: CodeType, at: int) -> SourcePlace:
    """Return the line of an instruction."""
    return _source_place(code.co_filename, line_of(code, at), code.co_name)


_source_place = functools.lru_cache(4096)(SourcePlace)


def positions(code: CodeType) -> list[tuple[int, ...]]:
    """Return first line, last line, first and last column of each instruction.

    The list is empty if Python keeps only lines: in 3.10, and with ``-X no_debug_ranges``.
    """
    spans = list(code.co_positions()) if hasattr(code, "co_positions") else []
    has_columns = any(span[2] is not None for span in spans)
    return [tuple([-1 if part is None else part for part in span]) for span in spans] if has_columns else []


def _kept_by_line_table(find: Callable[[CodeType, int], _T]) -> Callable[[CodeType, int], _T]:
    """Keep what `find` returns by the code's line table, which alone decides it: keys of code would keep that alive."""
    known: dict[tuple[bytes, int, int], _T] = {}

    @functools.wraps(find)
    def found(code: CodeType, at: int) -> _T:
        key = code.co_linetable, code.co_firstlineno, at
        try:
            return known[key]
        except KeyError:
            if len(known) >= _MOST_KEPT:
                known.clear()
            answer = known[key] = find(code, at)
            return answer

    return found


_MOST_KEPT = 4096


@_kept_by_line_table
def position(code: CodeType, at: int) -> tuple[int | None, ...] | None:
    """Return first line, last line, first and last column of the instruction at byte offset `at`; None if unknown."""
    spans = code.co_positions() if hasattr(code, "co_positions") else ()
    span = next(islice(spans, at // 2, None), None)
    return None if span is None or None in span else span


@_kept_by_line_table
def line_of(code: CodeType, at: int) -> int:
    """Return the line number of the instruction at byte offset `at`."""
    lines = (line for start, end, line in code.co_lines() if start <= at < end and line is not None)
    return next(lines, code.co_firstlineno)


_CONTEXT_LINES = 9


class StackFrame(TypedDict):
    """One frame of the call stack of a call."""

    call_fname: str
    """The file."""
    call_linenum: int
    """The line that runs, from 1."""
    function: str
    """The function's name."""
    code_context: list[str]
    """That line with nine before and after it; empty if the source cannot be read."""


def call_stack(call: Call | None) -> tuple[StackFrame, ...]:
    """Return the frames from the model's forward down to the call; their source is read now, not when recorded."""
    if call is None:
        return ()
    stack = [_frame_at(code.co_filename, line_of(code, at), code.co_name) for code, at in frames(call)]
    return tuple(reversed(stack))


def _frame_at(file: str, line: int, function: str) -> StackFrame:
    return {"call_fname": file, "call_linenum": line, "function": function, "code_context": _context(file, line)}


def _context(file: str, line: int) -> list[str]:
    lines = linecache.getlines(file)
    first = max(0, line - 1 - _CONTEXT_LINES)
    return lines[first : line + _CONTEXT_LINES]
