"""The code that led to a call: file, line and function of each frame, and the line of the model's own code."""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import TypedDict
from typing import cast

import torch

from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.calls import Escape
from pytest_torchlens.capture.calls import Frames
from pytest_torchlens.records import SourcePlace

_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_NOT_THE_MODEL = (_TORCH, _OURS, contextlib.__file__, functools.__file__)


def source_place(call: Call) -> SourcePlace | None:
    """Return the line of the innermost frame that belongs neither to PyTorch nor to us."""
    return next((place_of(code, at) for code, at in model_frames(call)), None)


def first_model_place(recorded: Frames) -> SourcePlace | None:
    """Return the line of the innermost recorded frame that is the model's."""
    return next((place_of(code, at) for code, at in model_frames_of(recorded)), None)


def frames(call: Call | Escape) -> Iterator[tuple[CodeType, int]]:
    """Yield code and instruction of each frame from the call out to the outermost forward."""
    yield from _own(call.frames)
    if call.module is not None:
        for module_call in call.module.stack():
            yield from _own(module_call.frames)


def model_frames(made: Call | Escape) -> Iterator[tuple[CodeType, int]]:
    """Yield those of them that are the model's code."""
    return ((code, at) for code, at in frames(made) if is_model_code(code))


def model_frames_of(recorded: Frames) -> Iterator[tuple[CodeType, int]]:
    """Yield code and instruction of those of the recorded frames that are the model's code."""
    return ((code, at) for code, at in _own(recorded) if is_model_code(code))


def _own(recorded: Frames) -> Iterator[tuple[CodeType, int]]:
    codes = cast("tuple[CodeType, ...]", recorded[::2])
    positions = cast("tuple[int, ...]", recorded[1::2])
    return (frame for frame in zip(codes, positions, strict=True) if not frame[0].co_filename.startswith(_OURS))


def by_identity(recorded: Frames) -> tuple[int, ...]:
    """Return frames as a key: code is told apart by identity, for its own equality compares all of its bytes."""
    return tuple([part if type(part) is int else id(part) for part in recorded])


def is_model_code(code: CodeType) -> bool:
    """Return whether code is the model's (or a library's other than PyTorch)."""
    name = code.co_filename
    return has_source(name) if name.startswith("<") else not name.startswith(_NOT_THE_MODEL)


def has_source(filename: str) -> bool:
    """Return whether what is no file has source that is known, as a cell of IPython has; one by ``exec`` has none."""
    return filename.endswith(">") and filename in linecache.cache


def place_of(code: CodeType, at: int) -> SourcePlace:
    """Return the line of an instruction."""
    return SourcePlace(code.co_filename, line_of(code, at), code.co_name)


def positions(code: CodeType) -> list[tuple[int, ...]]:
    """Return first line, last line, first and last column of each instruction.

    Nothing where Python keeps lines alone: in 3.10, and with ``-X no_debug_ranges``.
    """
    found = list(code.co_positions()) if hasattr(code, "co_positions") else []
    known = any(span[2] is not None for span in found)
    return [tuple(-1 if part is None else part for part in span) for span in found] if known else []


def line_of(code: CodeType, at: int) -> int:
    """Return the line number of the instruction at byte offset `at`."""
    lines = (line for start, end, line in code.co_lines() if start <= at < end and line is not None)
    return next(lines, code.co_firstlineno)


_AROUND = 9


class StackFrame(TypedDict):
    """One frame of the code that led to a call."""

    call_fname: str
    """The file."""
    call_linenum: int
    """The line that runs, from 1."""
    function: str
    """The function's name."""
    code_context: list[str]
    """That line with the nine before and after; empty where the source cannot be read."""


def call_stack(call: Call | None) -> tuple[StackFrame, ...]:
    """Return the frames from the model's forward down to the call; the text is read now, not when recorded."""
    if call is None:
        return ()
    found = [_frame_at(code.co_filename, line_of(code, at), code.co_name) for code, at in frames(call)]
    return tuple(reversed(found))


def _frame_at(file: str, line: int, function: str) -> StackFrame:
    return {"call_fname": file, "call_linenum": line, "function": function, "code_context": _context(file, line)}


def _context(file: str, line: int) -> list[str]:
    lines = linecache.getlines(file)
    first = max(0, line - 1 - _AROUND)
    return lines[first : line + _AROUND]
