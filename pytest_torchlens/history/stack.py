"""The code that led to a call: file, line and function of each frame, with the lines around."""

from __future__ import annotations

import linecache
from typing import TypedDict

from pytest_torchlens.capture.calls import Call
from pytest_torchlens.history.source_lines import frames
from pytest_torchlens.history.source_lines import line_of

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
