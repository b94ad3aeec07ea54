"""Conditions of the model's code, as far as tensors' values decide them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture.calls import Escape
from pytest_torchlens.history.decisions import decision
from pytest_torchlens.history.graph import Node
from pytest_torchlens.history.graph import by_value
from pytest_torchlens.history.source_lines import describe
from pytest_torchlens.history.source_lines import frames
from pytest_torchlens.history.source_lines import is_model_code
from pytest_torchlens.history.source_lines import model_frames
from pytest_torchlens.history.syntax import node_at
from pytest_torchlens.records import EscapeRecord
from pytest_torchlens.records.control import TRUTH_TESTS


def escape_records(recording: Recording, nodes: list[Node]) -> tuple[EscapeRecord, ...]:
    """Return each value handed over to Python, in order, with what was decided by it."""
    asked, decisions = by_value(nodes), _Decisions()
    return tuple(_record(escape, asked.get(id(escape.value)), decisions) for escape in recording.escapes)


class _Decisions:
    """What each place in the code did with a value; a loop asks at one place again and again."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def of(self, escape: Escape) -> dict[str, Any]:
        truth = escape.name in TRUTH_TESTS
        frames_key = [part if isinstance(part, int) else id(part) for part in escape.frames]
        key = (escape.module and escape.module.address, *frames_key, truth and bool(escape.result), escape.name)
        if key not in self._known:
            self._known[key] = self._find(escape, truth)
        return self._known[key]

    def _find(self, escape: Escape, truth: bool) -> dict[str, Any]:
        code, at = next(model_frames(escape), (None, 0))
        if code is None:
            return {}
        where = {"source_line": describe(code, at)}
        expression = None if _asked_without_source(escape) else node_at(code, at)
        if expression is None:
            return where
        return {**where, **decision(code.co_filename, expression, escape.result, truth)}


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
    return asking is not None and asking.co_filename.startswith("<")


def mark_conditions(recording: Recording, nodes: list[Node], records: Iterable[EscapeRecord]) -> None:
    """Mark the operations whose values conditions asked for, and all that serve nothing else."""
    asked = by_value(nodes)
    waiting = []
    for escape, record in zip(recording.escapes, records, strict=True):
        node = asked.get(id(escape.value))
        if node is not None and (record.is_truth_test or record.statement != "expression"):
            node.is_condition = True
            waiting.append(node)
    while waiting:
        node = waiting.pop()
        if node.kind == "operation" and not node.to_output and not node.in_cond_branch:
            node.in_cond_branch = True
            waiting.extend(parent for parent, _, _ in node.parents)


def lines_by_branch(records: Iterable[EscapeRecord]) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Return by file the lines that conditions led to, and those that none did."""
    taken: dict[str, set[int]] = defaultdict(set)
    left: dict[str, set[int]] = defaultdict(set)
    for record in records:
        filename = record.source_line.rpartition(", in ")[0].rpartition(":")[0]
        for lines, into in ((record.lines_taken, taken), (record.lines_not_taken, left)):
            if lines:
                into[filename].update(range(lines[0], lines[1] + 1))
    never = {filename: sorted(lines - taken[filename]) for filename, lines in left.items()}
    went = {filename: sorted(lines) for filename, lines in taken.items() if lines}
    return went, {filename: lines for filename, lines in never.items() if lines}
