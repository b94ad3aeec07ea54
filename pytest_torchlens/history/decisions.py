"""What a value that Python was given did: which statement asked, and which branch was taken."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

from pytest_torchlens.history.control_flow.expressions import Unknown
from pytest_torchlens.history.control_flow.expressions import carry
from pytest_torchlens.history.syntax import ancestors
from pytest_torchlens.history.syntax import called
from pytest_torchlens.history.syntax import decided_by
from pytest_torchlens.history.syntax import lines_of
from pytest_torchlens.history.syntax import parent_of
from pytest_torchlens.history.syntax import reads_around
from pytest_torchlens.history.syntax import text_of

_WORDS: dict[type, tuple[str, str, str]] = {
    ast.If: ("if", "body", "else"),
    ast.While: ("while", "goes on", "ends"),
    ast.Assert: ("assert", "holds", "fails"),
    ast.IfExp: ("conditional expression", "body", "else"),
    ast.comprehension: ("comprehension filter", "keeps", "drops"),
    ast.match_case: ("case", "body", "goes on"),
}
_OPERATORS: dict[type, str] = {ast.And: "and", ast.Or: "or"}
_Place = tuple[str, ast.expr]
"""File and expression."""


def decision(places: Iterable[_Place], value: Any) -> dict[str, Any]:
    """Return statement, condition, branch and lines, as fields of an `EscapeRecord`.

    Parameters
    ----------
    places
        The expression whose value Python was given; then, in the functions around, those that called.  They are gone
        through as long as each is what its function returns.
    value
        What the expression is; `Unknown` where that is not known.
    """
    found: dict[str, Any] = {}
    asked_in = ""
    for filename, node in places:
        top, value = carry(node, value)
        asked_in = asked_in or filename
        decided = _at(filename, top, value)
        if decided["statement"] != "expression":
            return decided if filename == asked_in else {**decided, "lines_taken": (), "lines_not_taken": ()}
        found = found or decided
        if not _is_returned(top):
            break
    return found


def _at(filename: str, top: ast.expr, value: Any) -> dict[str, Any]:
    if (above := decided_by(top)) is not None:
        return _of_statement(filename, top, above, value)
    condition = text_of(filename, top)
    if isinstance(top, ast.BoolOp):
        branch = "goes on" if isinstance(value, Unknown) else "ends"
        return {"statement": _OPERATORS[type(top.op)], "condition": condition, "branch": branch}
    if isinstance(top, ast.UnaryOp) and isinstance(top.op, ast.Not):
        return {"statement": "not", "condition": condition, "branch": _said(value)}
    if isinstance(top, ast.Call) and called(top) == "_assert" and top.args:  # torch._assert, for torch.fx
        return {"statement": "assert", "condition": text_of(filename, top.args[0])}
    return _later(filename, top) or {"statement": "expression", "condition": condition}


def _said(value: Any) -> str:
    return str(value.value if isinstance(value, Unknown) else bool(value))


def _of_statement(filename: str, condition: ast.expr, above: ast.AST, value: Any) -> dict[str, Any]:
    if isinstance(above, ast.Match):
        return _of_match(filename, above, value)
    word, yes, no = _WORDS[type(above)]
    found = {"statement": word, "condition": text_of(filename, condition)}
    if isinstance(value, Unknown):
        return {**found, "branch": value.value}
    body = lines_of(getattr(above, "body", []))
    other = lines_of(getattr(above, "orelse", []))
    taken, left = (body, other) if value else (other, body)
    return {**found, "branch": yes if value else no, "lines_taken": taken, "lines_not_taken": left}


def _of_match(filename: str, statement: ast.Match, value: Any) -> dict[str, Any]:
    found = {"statement": "match", "condition": text_of(filename, statement.subject)}
    for case in [] if isinstance(value, Unknown) else statement.cases:
        match case:
            case ast.match_case(pattern=ast.MatchValue(value=ast.Constant(value=other)), guard=None) if value != other:
                continue
            case ast.match_case(pattern=ast.MatchValue(value=ast.Constant()) | ast.MatchAs(pattern=None), guard=None):
                left = [lines_of(other.body) for other in statement.cases if other is not case]
                return {**found, "branch": "body", "lines_taken": lines_of(case.body), "lines_not_taken": sum(left, ())}
        break
    return {**found, "branch": ""}


# -- where an expression alone does not say ---------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _later(filename: str, top: ast.expr) -> dict[str, Any] | None:
    """Return the condition that a value is part of, or that asks for a name that it was given."""
    condition = next((part for part in _expressions_around(top) if decided_by(part) is not None), None)
    above = decided_by(condition) if condition is not None else None
    if condition is None or above is None:
        uses = _uses(top)
        condition, above = next(((use, by) for use in uses if (by := decided_by(use)) is not None), (None, None))
    if condition is None or above is None:
        return None
    return _of_statement(filename, condition, above, Unknown.UNREAD)


def _expressions_around(node: ast.expr) -> Iterator[ast.expr]:
    for part in (node, *ancestors(node)):
        if isinstance(part, ast.stmt):
            return
        if isinstance(part, ast.expr):
            yield part


def _uses(value: ast.expr) -> Iterator[ast.expr]:
    """Yield what is made, as far as `carry` goes, of the names that a value was given, and of those made from them."""
    reads = reads_around(value)
    waiting, seen = [value], set[str]()
    while waiting:
        new = _named(waiting.pop(0)) - seen
        seen |= new
        for read in (read for name in sorted(new) for read in reads.get(name, ())):
            use, _ = carry(read, Unknown.UNREAD)
            yield use
            waiting.append(use)


def _named(value: ast.expr) -> set[str]:
    """Return the names that a value is given, in it and by the assignment that it is the value of."""
    statement = parent_of(value)
    named = {part.target.id for part in ast.walk(value) if isinstance(part, ast.NamedExpr)}
    if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is value:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        named |= {target.id for target in targets if isinstance(target, ast.Name)}
    return named


def _is_returned(node: ast.expr) -> bool:
    above = parent_of(node)
    return isinstance(above, ast.Return) or (isinstance(above, ast.Lambda) and above.body is node)
