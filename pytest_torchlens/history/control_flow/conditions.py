"""Conditions of the model's code: which statement read a tensor's value, and which branch it took."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator
from types import CodeType
from typing import Any

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture.calls import Escape
from pytest_torchlens.history.control_flow.expressions import Unknown
from pytest_torchlens.history.control_flow.expressions import carry
from pytest_torchlens.history.control_flow.expressions import expression_and_value
from pytest_torchlens.history.control_flow.expressions import last_in_turn
from pytest_torchlens.history.control_flow.syntax import ancestors
from pytest_torchlens.history.control_flow.syntax import called_name
from pytest_torchlens.history.control_flow.syntax import lines_of
from pytest_torchlens.history.control_flow.syntax import node_at
from pytest_torchlens.history.control_flow.syntax import owner_of_condition
from pytest_torchlens.history.control_flow.syntax import parent_of
from pytest_torchlens.history.control_flow.syntax import reads_around
from pytest_torchlens.history.control_flow.syntax import text_of
from pytest_torchlens.history.graph import Node
from pytest_torchlens.history.graph import by_value
from pytest_torchlens.history.source import by_identity
from pytest_torchlens.history.source import frames
from pytest_torchlens.history.source import is_model_code
from pytest_torchlens.history.source import model_frames
from pytest_torchlens.history.source import place_of
from pytest_torchlens.records import EscapeRecord


def escape_records(recording: Recording, nodes: list[Node]) -> tuple[EscapeRecord, ...]:
    """Return a record of each value that Python read, in order, with what the value decided."""
    node_by_value, decisions = by_value(nodes), _Decisions(recording)
    return tuple(_record(escape, node_by_value.get(id(escape.value)), decisions) for escape in recording.escapes)


class _Decisions:
    """What each place in the code did with each value; a loop reads many values at one place."""

    def __init__(self, recording: Recording) -> None:
        self._cache: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._last_ids = last_in_turn(recording.escapes, recording.calls)

    def of(self, escape: Escape) -> dict[str, Any]:
        place = (escape.module and escape.module.address, by_identity(escape.frames), escape.name)
        key = (*place, escape.result, id(escape) in self._last_ids)
        if key not in self._cache:
            self._cache[key] = self._find(escape)
        return self._cache[key]

    def _find(self, escape: Escape) -> dict[str, Any]:
        frames = list(model_frames(escape))
        if not frames:
            return {}
        where = {"source_place": place_of(*frames[0])}
        if _is_read_by_generated_code(escape):
            return where
        node, value = expression_and_value(*frames[0], escape.name, escape.result, id(escape) in self._last_ids)
        if node is None:
            return where
        return {
            **where,
            **decision(_expressions_outward(node, frames), value if _is_read_by_model(escape) else Unknown.UNREAD),
        }


def _expressions_outward(node: ast.expr, frames: list[tuple[CodeType, int]]) -> Iterator[tuple[str, ast.expr]]:
    """Yield file and expression of each frame, from that of `node` outward, until a frame without source."""
    yield frames[0][0].co_filename, node
    for code, at in frames[1:]:
        around = node_at(code, at)
        if around is None:
            return
        yield code.co_filename, around


def _is_read_by_model(escape: Escape) -> bool:
    """Return whether the model's own code read the value, and not a function of PyTorch that it called."""
    return is_model_code(next(frames(escape))[0])


def _record(escape: Escape, node: Node | None, decisions: _Decisions) -> EscapeRecord:
    return EscapeRecord(
        function=escape.name,
        operation=node.label if node is not None else "",
        value=None if isinstance(escape.result, complex) else escape.result,
        before_call=escape.call,
        **decisions.of(escape),
    )


def _is_read_by_generated_code(escape: Escape) -> bool:
    """Return whether the code that read the value was made by ``exec`` or the like."""
    reader = next((code for code, _ in frames(escape) if is_model_code(code) or code.co_filename.startswith("<")), None)
    return reader is not None and not is_model_code(reader)


def mark_conditions(recording: Recording, nodes: list[Node], records: Iterable[EscapeRecord]) -> None:
    """Mark the operations whose values conditions read, and their ancestors that serve only conditions."""
    node_by_value = by_value(nodes)
    waiting = []
    for escape, record in zip(recording.escapes, records, strict=True):
        for value in (escape.value, *escape.others) if record.is_condition else ():
            if (node := node_by_value.get(id(value))) is not None:
                node.is_condition = True
                waiting.append(node)
    while waiting:
        node = waiting.pop()
        if node.kind == "operation" and not node.to_output and not node.in_cond_branch:
            node.in_cond_branch = True
            waiting.extend(parent for parent, _, _ in node.parents)


def lines_by_branch(records: Iterable[EscapeRecord]) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Return by file the lines in branches that were taken, and the lines in branches that never were.

    The innermost branch around a line decides; it counts as taken if it was taken at least once.
    """
    branches: dict[str, dict[tuple[int, ...], bool]] = defaultdict(dict)
    for record in records:
        filename = record.source_place.file if record.source_place else ""
        for lines, is_taken in ((record.lines_taken, True), (record.lines_not_taken, False)):
            for piece in zip(lines[::2], lines[1::2], strict=True):
                branches[filename][piece] = is_taken or branches[filename].get(piece, False)
    decided = {filename: _by_innermost(found) for filename, found in branches.items()}
    taken = {filename: sorted(line for line, went in lines.items() if went) for filename, lines in decided.items()}
    left = {filename: sorted(line for line, went in lines.items() if not went) for filename, lines in decided.items()}
    return {f: lines for f, lines in taken.items() if lines}, {f: lines for f, lines in left.items() if lines}


def _by_innermost(branches: dict[tuple[int, ...], bool]) -> dict[int, bool]:
    """Return whether each line was run; the largest branches come first, smaller ones overrule them."""
    lines: dict[int, bool] = {}
    for (first, last), is_taken in sorted(branches.items(), key=lambda item: (item[0][0] - item[0][1], item[1])):
        lines.update(dict.fromkeys(range(first, last + 1), is_taken))
    return lines


_WORDS: dict[type, tuple[str, str, str]] = {
    ast.If: ("if", "body", "else"),
    ast.While: ("while", "goes on", "ends"),
    ast.Assert: ("assert", "holds", "fails"),
    ast.IfExp: ("conditional expression", "body", "else"),
    ast.comprehension: ("comprehension filter", "keeps", "drops"),
    ast.match_case: ("case", "body", "goes on"),
}
_BOOL_OPERATORS: dict[type, str] = {ast.And: "and", ast.Or: "or"}
_Place = tuple[str, ast.expr]
"""File and expression."""


def decision(places: Iterable[_Place], value: Any) -> dict[str, Any]:
    """Return statement, condition, branch and lines, as fields of an `EscapeRecord`.

    Parameters
    ----------
    places
        The expression whose value Python read; then, in each outer frame, the expression that called the inner one.
        The next one is looked at only if the expression is what its function returns.
    value
        The value of the expression; an `Unknown` if it is not known.
    """
    fields: dict[str, Any] = {}
    first_file = ""
    for filename, node in places:
        top, value = carry(node, value)
        first_file = first_file or filename
        fields_here = _fields_at(filename, top, value)
        if fields_here["statement"] != "expression":
            return fields_here if filename == first_file else {**fields_here, "lines_taken": (), "lines_not_taken": ()}
        fields = fields or fields_here
        if not _is_returned(top):
            break
    return fields


def _fields_at(filename: str, top: ast.expr, value: Any) -> dict[str, Any]:
    if (above := owner_of_condition(top)) is not None:
        return _statement_fields(filename, top, above, value)
    condition = text_of(filename, top)
    if isinstance(top, ast.BoolOp):
        branch = "goes on" if isinstance(value, Unknown) else "ends"
        return {"statement": _BOOL_OPERATORS[type(top.op)], "condition": condition, "branch": branch}
    if isinstance(top, ast.UnaryOp) and isinstance(top.op, ast.Not):
        return {"statement": "not", "condition": condition, "branch": _branch_text(value)}
    if isinstance(top, ast.Call) and called_name(top) == "_assert" and top.args:  # torch._assert, for torch.fx
        return {"statement": "assert", "condition": text_of(filename, top.args[0])}
    return _later_condition(filename, top) or {"statement": "expression", "condition": condition}


def _branch_text(value: Any) -> str:
    return str(value.value if isinstance(value, Unknown) else bool(value))


def _statement_fields(filename: str, condition: ast.expr, above: ast.AST, value: Any) -> dict[str, Any]:
    if isinstance(above, ast.Match):
        return _match_fields(filename, above, value)
    word, yes, no = _WORDS[type(above)]
    fields = {"statement": word, "condition": text_of(filename, condition)}
    if isinstance(value, Unknown):
        return {**fields, "branch": value.value}
    body = lines_of(getattr(above, "body", []))
    other = lines_of(getattr(above, "orelse", []))
    taken, skipped = (body, other) if value else (other, body)
    return {**fields, "branch": yes if value else no, "lines_taken": taken, "lines_not_taken": skipped}


def _match_fields(filename: str, statement: ast.Match, value: Any) -> dict[str, Any]:
    fields = {"statement": "match", "condition": text_of(filename, statement.subject)}
    for case in [] if isinstance(value, Unknown) else statement.cases:
        match case:
            case ast.match_case(pattern=ast.MatchValue(value=ast.Constant(value=other)), guard=None) if value != other:
                continue
            case ast.match_case(pattern=ast.MatchValue(value=ast.Constant()) | ast.MatchAs(pattern=None), guard=None):
                skipped = [lines_of(other.body) for other in statement.cases if other is not case]
                return {
                    **fields,
                    "branch": "body",
                    "lines_taken": lines_of(case.body),
                    "lines_not_taken": sum(skipped, ()),
                }
        break
    return {**fields, "branch": ""}


# -- conditions that read the value later ----------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _later_condition(filename: str, top: ast.expr) -> dict[str, Any] | None:
    """Return the fields of the condition that a value is part of, or that reads a name assigned from it."""
    condition = next((part for part in _expressions_around(top) if owner_of_condition(part) is not None), None)
    above = owner_of_condition(condition) if condition is not None else None
    if condition is None or above is None:
        uses = _uses(top)
        condition, above = next(
            ((use, by) for use in uses if (by := owner_of_condition(use)) is not None), (None, None)
        )
    if condition is None or above is None:
        return None
    return _statement_fields(filename, condition, above, Unknown.UNREAD)


def _expressions_around(node: ast.expr) -> Iterator[ast.expr]:
    for part in (node, *ancestors(node)):
        if isinstance(part, ast.stmt):
            return
        if isinstance(part, ast.expr):
            yield part


def _uses(value: ast.expr) -> Iterator[ast.expr]:
    """Yield what `carry` makes of the names assigned from a value, and of the names assigned from those."""
    reads = reads_around(value)
    waiting, seen = [value], set[str]()
    while waiting:
        new = _names_assigned(waiting.pop(0)) - seen
        seen |= new
        for read in (read for name in sorted(new) for read in reads.get(name, ())):
            use, _ = carry(read, Unknown.UNREAD)
            yield use
            waiting.append(use)


def _names_assigned(value: ast.expr) -> set[str]:
    """Return the names that a value is assigned to, in it or by the statement around it."""
    statement = parent_of(value)
    names = {part.target.id for part in ast.walk(value) if isinstance(part, ast.NamedExpr)}
    if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is value:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def _is_returned(node: ast.expr) -> bool:
    above = parent_of(node)
    return isinstance(above, ast.Return) or (isinstance(above, ast.Lambda) and above.body is node)
