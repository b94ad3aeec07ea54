"""The lines of code that a history points to."""

from __future__ import annotations

import linecache
import re
from typing import Final

from pytest_torchlens.records import HistoryRecord

_AROUND: Final = 2
"""Lines before and after."""
_LONGEST: Final = 160
_PLACE: Final = re.compile(r"(?P<file>.+):(?P<line>\d+), in ")


def code_of(history: HistoryRecord) -> dict[str, str]:
    """Return the code around each source line, numbered, by the text of `Operation.source_line`."""
    found = {line: _code(line) for line in dict.fromkeys(op.source_line for op in history.operations)}
    return {line: code for line, code in found.items() if code}


def _code(source_line: str) -> str:
    place = _PLACE.match(source_line)
    if not place:
        return ""
    at = int(place["line"])
    around = range(max(at - _AROUND, 1), at + _AROUND + 1)
    lines = {number: linecache.getline(place["file"], number).rstrip("\n") for number in around}
    if not lines.get(at):
        return ""
    return "\n".join(
        f"{'>' if n == at else ' '}{n:5} {text[:_LONGEST]}" for n, text in lines.items() if text or n <= at
    )
