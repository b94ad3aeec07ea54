"""What a truth value did: which statement asked, and which branch was taken."""

from __future__ import annotations

import ast
from typing import Any

from pytest_torchlens.history.syntax import ancestors
from pytest_torchlens.history.syntax import is_condition
from pytest_torchlens.history.syntax import lines_of
from pytest_torchlens.history.syntax import parent_of
from pytest_torchlens.history.syntax import text_of

UNDECIDED = "undecided"
_WORDS: dict[type, tuple[str, str, str]] = {
    ast.If: ("if", "body", "else"),
    ast.While: ("while", "goes on", "ends"),
    ast.Assert: ("assert", "holds", "fails"),
    ast.IfExp: ("conditional expression", "body", "else"),
    ast.comprehension: ("comprehension filter", "keeps", "drops"),
}
_OPERATORS: dict[type, str] = {ast.And: "and", ast.Or: "or"}


def decision(filename: str, node: ast.expr, value: Any, is_truth_test: bool) -> dict[str, Any]:
    """Return statement, condition, branch and lines, as fields of an `EscapeRecord`.

    `node` is the expression whose value was asked for, or the ``and`` or ``or`` that asked.
    """
    if not is_truth_test:
        return _asked_within(filename, node)
    top, truth = _outcome(node, bool(value))
    above = parent_of(top)
    if is_condition(top) and above is not None:
        return _of_statement(filename, top, above, truth)
    if isinstance(top, ast.BoolOp):
        word = _OPERATORS[type(top.op)]
        stops = bool(value) is (word == "or")
        return {"statement": word, "condition": text_of(filename, top), "branch": "ends" if stops else "goes on"}
    if isinstance(top, ast.UnaryOp):
        return {"statement": "not", "condition": text_of(filename, top), "branch": str(truth)}
    return {"statement": "expression", "condition": text_of(filename, top)}


def _outcome(node: ast.expr, value: bool) -> tuple[ast.expr, bool | None]:
    """Return the largest expression whose truth follows, and that truth; None where another operand decides it."""
    truth: bool | None = value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        truth = not value  # the instruction of `not` asked
    while isinstance(above := parent_of(node), ast.BoolOp | ast.UnaryOp):
        if isinstance(above, ast.BoolOp):
            ends = truth is isinstance(above.op, ast.Or) or node is above.values[-1]
            truth = truth if ends else None
        elif isinstance(above.op, ast.Not):
            truth = None if truth is None else not truth
        else:
            break
        node = above
    return node, truth


def _of_statement(filename: str, condition: ast.expr, above: ast.AST, truth: bool | None) -> dict[str, Any]:
    word, yes, no = _WORDS[type(above)]
    found = {"statement": word, "condition": text_of(filename, condition)}
    if truth is None:
        return {**found, "branch": UNDECIDED}
    body = lines_of(getattr(above, "body", []))
    other = lines_of(getattr(above, "orelse", []))
    taken, left = (body, other) if truth else (other, body)
    return {**found, "branch": yes if truth else no, "lines_taken": taken, "lines_not_taken": left}


def _asked_within(filename: str, node: ast.expr) -> dict[str, Any]:
    """Return the condition that a number is part of; which branch it led to, Python alone knows."""
    for part in (node, *ancestors(node)):
        above = parent_of(part)
        if is_condition(part) and above is not None:
            return {"statement": _WORDS[type(above)][0], "condition": text_of(filename, part)}
        if isinstance(part, ast.stmt):
            break
    return {"statement": "expression", "condition": text_of(filename, node)}
