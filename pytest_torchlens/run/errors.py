"""Describes a model's exception with the model's own frames only, and reads source lines that a history names."""

from __future__ import annotations

import contextlib
import linecache
import traceback
from pathlib import Path
from typing import Final

import torch

from pytest_torchlens.records import ErrorRecord
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import SourcePlace
from pytest_torchlens.records import Stage

PACKAGE = Path(__file__).resolve().parent.parent
ALWAYS_NOISE = tuple(f"{PACKAGE / folder}/" for folder in ("plugin", "run", "zoo"))
CALLING = (torch.nn.modules.module.__file__, torch.utils._contextlib.__file__, contextlib.__file__)
"""Files with the frames by which PyTorch calls a module, three for each call, and by which a context ends."""


_TORCH = f"{Path(torch.__file__).parent}/"


def is_noise(filename: str, innermost: str) -> bool:
    """Whether to leave out a frame of the file `filename`, for an error raised in the file `innermost`.

    Frames by which PyTorch calls a module, and frames of this package, are left out.  If this package raised the error,
    its own frames stay.
    """
    if filename.startswith(ALWAYS_NOISE) or filename in CALLING:
        return True
    ours = f"{PACKAGE}/"
    return filename.startswith(ours) and not innermost.startswith(ours)


def error_record(stage: Stage, error: BaseException) -> ErrorRecord:
    """Return `error` as text, with the model's own frames only."""
    text = traceback.TracebackException.from_exception(error)
    chained: traceback.TracebackException | None = text
    while chained:
        _cut(chained.stack)
        chained = chained.__cause__ or chained.__context__
    return ErrorRecord(
        stage=stage,
        type=_printable(type(error).__name__),
        message=_printable(str(error)),
        traceback=_printable("".join(text.format())),
        source_place=_last_place(text),
    )


def _cut(stack: traceback.StackSummary) -> None:
    innermost = stack[-1].filename if stack else ""
    stack[:] = [frame for frame in stack if not is_noise(frame.filename, innermost)]


def _last_place(text: traceback.TracebackException | None) -> SourcePlace | None:
    """Return where a traceback ends outside this package, and outside PyTorch if the model called that.

    That of a syntax error is the line with it.
    """
    while text:
        if line := getattr(text, "lineno", None):
            return SourcePlace(_printable(text.filename or "<string>"), int(line))
        if frames := [frame for frame in text.stack if not frame.filename.startswith(f"{PACKAGE}/")]:
            frame = next((one for one in reversed(frames) if not one.filename.startswith(_TORCH)), frames[-1])
            return SourcePlace(_printable(frame.filename), frame.lineno or 0, _printable(frame.name))
        text = text.__cause__ or (None if text.__suppress_context__ else text.__context__)
    return None


def _printable(text: str) -> str:
    """Return the text with surrogates escaped, which `os.fsdecode` makes of odd file names and no file can hold."""
    return text.encode(errors="backslashreplace").decode()


_AROUND: Final = 2
"""Lines to show before and after."""
_LONGEST: Final = 160


def code_of(history: HistoryRecord) -> dict[str, str]:
    """Return the code around each source line, numbered, by the text of `Operation.source_line`."""
    places = dict.fromkeys(op.source_place for op in history.operations if op.source_place)
    return {str(place): code for place in places if (code := _code(place))}


def _code(place: SourcePlace) -> str:
    at = place.line
    around = range(max(at - _AROUND, 1), at + _AROUND + 1)
    lines = {number: linecache.getline(place.file, number).rstrip("\n") for number in around}
    if not lines.get(at):
        return ""
    return "\n".join(
        f"{'>' if n == at else ' '}{n:5} {text[:_LONGEST]}" for n, text in lines.items() if text or n <= at
    )
