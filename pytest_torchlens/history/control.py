"""Conditions and loops of the model's code, as far as tensors' values decide them."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator
from types import CodeType
from typing import Any

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture.calls import Escape
from pytest_torchlens.history.decisions import decision
from pytest_torchlens.history.endings import loops_decided_by
from pytest_torchlens.history.graph import Node
from pytest_torchlens.history.graph import by_value
from pytest_torchlens.history.source_lines import describe
from pytest_torchlens.history.source_lines import frames
from pytest_torchlens.history.source_lines import frames_by_module
from pytest_torchlens.history.source_lines import is_model_code
from pytest_torchlens.history.syntax import ancestors
from pytest_torchlens.history.syntax import loops_around
from pytest_torchlens.history.syntax import node_at
from pytest_torchlens.records import EscapeRecord
from pytest_torchlens.records import LoopRecord
from pytest_torchlens.records.control import TRUTH_TESTS

_LoopKey = tuple[str, int, int]


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
        code, at = next(_model_frames(escape), (None, 0))
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


def _model_frames(made: Escape) -> Iterator[tuple[CodeType, int]]:
    return ((code, at) for code, at in frames(made) if is_model_code(code))


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


def loop_records(recording: Recording, nodes: list[Node], records: Iterable[EscapeRecord]) -> tuple[LoopRecord, ...]:
    """Return the loops of the source that ran layers several times, with what decides when each ends."""
    decided = _decided(recording, records)
    layers: dict[_LoopKey, list[Node]] = defaultdict(list)
    lines: dict[_LoopKey, str] = {}
    for node in nodes:
        if len(node.passes) > 1 and node.pass_num == 1 and node.call is not None:
            for key, line in _innermost_loop(node):
                layers[key].append(node)
                lines[key] = line
    return tuple(
        LoopRecord(
            source_line=lines[key],
            layers=tuple(node.layer_label for node in found),
            num_passes=max(len(node.passes) for node in found),
            decided_by=tuple(dict.fromkeys(decided.get(key, ()))),
        )
        for key, found in layers.items()
    )


def _innermost_loop(node: Node) -> Iterator[tuple[_LoopKey, str]]:
    """Yield the innermost loop around the first pass, in a module call that the second pass is in as well."""
    first, second = node.passes[0].call, node.passes[1].call
    assert first is not None  # noqa: S101 - the caller looked
    around = second.module.stack() if second is not None and second.module is not None else ()
    shared = {id(call) for call in around}
    for module_call, code, at in frames_by_module(first):
        expression = node_at(code, at) if is_model_code(code) and id(module_call) in shared else None
        for loop in loops_around(expression)[:1] if expression is not None else ():
            yield _key(code, loop), f"{code.co_filename}:{loop.lineno}, in {code.co_name}"
            return


def _decided(recording: Recording, records: Iterable[EscapeRecord]) -> dict[_LoopKey, list[str]]:
    """Return by loop the values that decide when it ends; a helper's result counts where its caller uses it."""
    found: dict[_LoopKey, list[str]] = defaultdict(list)
    seen: set[object] = set()
    for escape, record in zip(recording.escapes, records, strict=True):
        layer = record.operation.rpartition(":")[0] or record.operation
        said = f"{layer or 'a value'}, asked by {record.statement}: {record.source_line}"
        if (said, escape.module and escape.module.address) in seen:
            continue
        seen.add((said, escape.module and escape.module.address))
        for code, at in _model_frames(escape):
            expression = node_at(code, at)
            if expression is None:
                break
            for loop in loops_decided_by(expression):
                found[_key(code, loop)].append(said)
            if not _is_returned(expression):
                break
    return found


def _is_returned(expression: ast.expr) -> bool:
    """Return whether the value of an expression, or a branch that it decides, is what its function returns."""
    statement = next((above for above in ancestors(expression) if isinstance(above, ast.stmt | ast.Lambda)), None)
    return isinstance(statement, ast.Return | ast.Lambda)


def _key(code: CodeType, loop: ast.AST) -> _LoopKey:
    return code.co_filename, getattr(loop, "lineno", 0), getattr(loop, "col_offset", 0)


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
