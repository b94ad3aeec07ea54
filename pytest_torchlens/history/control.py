"""Conditions of the model's code, as far as tensors' values decide them."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator
from types import CodeType
from typing import Any

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture.calls import Escape
from pytest_torchlens.history.control_flow.expressions import Unknown
from pytest_torchlens.history.control_flow.expressions import asked
from pytest_torchlens.history.control_flow.expressions import last_in_turn
from pytest_torchlens.history.decisions import decision
from pytest_torchlens.history.graph import Node
from pytest_torchlens.history.graph import by_value
from pytest_torchlens.history.source_lines import by_identity
from pytest_torchlens.history.source_lines import describe
from pytest_torchlens.history.source_lines import frames
from pytest_torchlens.history.source_lines import is_model_code
from pytest_torchlens.history.source_lines import model_frames
from pytest_torchlens.history.syntax import node_at
from pytest_torchlens.records import EscapeRecord


def escape_records(recording: Recording, nodes: list[Node]) -> tuple[EscapeRecord, ...]:
    """Return each value handed over to Python, in order, with what was decided by it."""
    read, decisions = by_value(nodes), _Decisions(recording)
    return tuple(_record(escape, read.get(id(escape.value)), decisions) for escape in recording.escapes)


class _Decisions:
    """What each place in the code did with a value; a loop asks at one place again and again."""

    def __init__(self, recording: Recording) -> None:
        self._known: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._last = last_in_turn(recording.escapes, recording.calls)

    def of(self, escape: Escape) -> dict[str, Any]:
        place = (escape.module and escape.module.address, by_identity(escape.frames), escape.name)
        key = (*place, escape.result, id(escape) in self._last)
        if key not in self._known:
            self._known[key] = self._find(escape)
        return self._known[key]

    def _find(self, escape: Escape) -> dict[str, Any]:
        frames = list(model_frames(escape))
        if not frames:
            return {}
        where = {"source_line": describe(*frames[0])}
        if _asked_without_source(escape):
            return where
        node, value = asked(*frames[0], escape.name, escape.result, id(escape) in self._last)
        if node is None:
            return where
        return {**where, **decision(_places(node, frames), value if _is_direct(escape) else Unknown.UNREAD)}


def _places(node: ast.expr, frames: list[tuple[CodeType, int]]) -> Iterator[tuple[str, ast.expr]]:
    """Yield file and expression of each frame, from that of `node` out, as far as there is source."""
    yield frames[0][0].co_filename, node
    for code, at in frames[1:]:
        around = node_at(code, at)
        if around is None:
            return
        yield code.co_filename, around


def _is_direct(escape: Escape) -> bool:
    """Return whether the model's own code asked, and not a function of PyTorch that it called."""
    return is_model_code(next(frames(escape))[0])


def _record(escape: Escape, asked: Node | None, decisions: _Decisions) -> EscapeRecord:
    return EscapeRecord(
        function=escape.name,
        operation=asked.label if asked is not None else "",
        value=None if isinstance(escape.result, complex) else escape.result,
        before_call=escape.call,
        **decisions.of(escape),
    )


def _asked_without_source(escape: Escape) -> bool:
    """Return whether the code that asked was made by ``exec`` or the like."""
    asking = next((code for code, _ in frames(escape) if is_model_code(code) or code.co_filename.startswith("<")), None)
    return asking is not None and not is_model_code(asking)


def mark_conditions(recording: Recording, nodes: list[Node], records: Iterable[EscapeRecord]) -> None:
    """Mark the operations whose values conditions asked for, and all that serve nothing else."""
    asked = by_value(nodes)
    waiting = []
    for escape, record in zip(recording.escapes, records, strict=True):
        for value in (escape.value, *escape.others) if record.is_condition else ():
            if (node := asked.get(id(value))) is not None:
                node.is_condition = True
                waiting.append(node)
    while waiting:
        node = waiting.pop()
        if node.kind == "operation" and not node.to_output and not node.in_cond_branch:
            node.in_cond_branch = True
            waiting.extend(parent for parent, _, _ in node.parents)


def lines_by_branch(records: Iterable[EscapeRecord]) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Return by file the lines that conditions led to, and those that none did.

    The innermost branch that a line is in decides: one that was gone into at least once.
    """
    branches: dict[str, dict[tuple[int, ...], bool]] = defaultdict(dict)
    for record in records:
        filename = record.source_line.rpartition(", in ")[0].rpartition(":")[0]
        for lines, is_taken in ((record.lines_taken, True), (record.lines_not_taken, False)):
            for piece in zip(lines[::2], lines[1::2], strict=True):
                branches[filename][piece] = is_taken or branches[filename].get(piece, False)
    decided = {filename: _by_innermost(found) for filename, found in branches.items()}
    taken = {filename: sorted(line for line, went in lines.items() if went) for filename, lines in decided.items()}
    left = {filename: sorted(line for line, went in lines.items() if not went) for filename, lines in decided.items()}
    return {f: lines for f, lines in taken.items() if lines}, {f: lines for f, lines in left.items() if lines}


def _by_innermost(branches: dict[tuple[int, ...], bool]) -> dict[int, bool]:
    """Return whether each line was gone into; the largest branches come first, the smaller ones overrule them."""
    lines: dict[int, bool] = {}
    for (first, last), is_taken in sorted(branches.items(), key=lambda item: (item[0][0] - item[0][1], item[1])):
        lines.update(dict.fromkeys(range(first, last + 1), is_taken))
    return lines
