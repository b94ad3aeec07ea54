"""Which expression Python was given a tensor's value in, and what that makes of the expression."""

from __future__ import annotations

import ast
import dis
from types import CodeType
from typing import Any

from pytest_torchlens.history.carries import Unknown
from pytest_torchlens.history.source_lines import positions
from pytest_torchlens.history.syntax import called
from pytest_torchlens.history.syntax import node_at

_ASKS = "__bool__"
_OF_ARGUMENT = ("bool", "truth", _ASKS)


def asked(code: CodeType, at: int, function: str, value: Any) -> tuple[ast.expr | None, Any]:
    """Return the expression that an instruction evaluates or asks for, and its value where that is known.

    Parameters
    ----------
    code, at
        The instruction.
    function, value
        What it called of a tensor: ``"__bool__"``, ``"item"``; and what that returned.
    """
    node = node_at(code, at)
    if node is None:
        return None, Unknown.UNREAD
    if function == _ASKS:
        node = _without_not(node)
    if positions(code) or (function == _ASKS and not isinstance(node, ast.BoolOp)):
        return node, _value(code, at, node, function, value)
    return node, Unknown.UNREAD  # it may be another part of the condition on this line


def _without_not(node: ast.expr) -> ast.expr:
    return _without_not(node.operand) if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) else node


def _value(code: CodeType, at: int, node: ast.expr, function: str, value: Any) -> Any:
    if not isinstance(value, bool | int | float):
        return Unknown.UNREAD
    instruction = dis.opname[code.co_code[at]]
    if function != _ASKS:
        return value
    if "CALL" in instruction:
        return _of_call(node, value)
    if isinstance(node, ast.Compare):
        return _of_comparison(code, at, node, bool(value))
    return value


def _of_call(node: ast.expr, value: Any) -> Any:
    """Return the value of a call that asked for its argument's truth, or for those of many things."""
    name = called(node)
    if name in ("any", "all"):
        return value if bool(value) is (name == "any") else Unknown.UNDECIDED
    return value if name in _OF_ARGUMENT else Unknown.UNREAD


def _of_comparison(code: CodeType, at: int, node: ast.Compare, value: bool) -> Any:
    """Return the value of a comparison, part of which was asked: a link of a chain, or whether ``in`` found it."""
    if isinstance(node.ops[-1], ast.In | ast.NotIn) and "JUMP" not in dis.opname[code.co_code[at]]:
        return isinstance(node.ops[-1], ast.In) if value else Unknown.UNDECIDED
    return Unknown.UNDECIDED if value and len(node.ops) > 1 and _compares_again(code, at) else value


def _compares_again(code: CodeType, at: int) -> bool:
    """Return whether the comparison that an instruction is part of goes on after it, or may do."""
    spans = positions(code)
    if not spans:
        return True
    for later in range(at // 2 + 1, len(spans)):
        if not _is_within(spans[later], spans[at // 2]):
            return False
        if dis.opname[code.co_code[2 * later]] == "COMPARE_OP":
            return True
    return False


def _is_within(inner: tuple[int, ...], outer: tuple[int, ...]) -> bool:
    first, last, start, end = inner
    outer_first, outer_last, outer_start, outer_end = outer
    return (first, start) >= (outer_first, outer_start) and (last, end) <= (outer_last, outer_end)
