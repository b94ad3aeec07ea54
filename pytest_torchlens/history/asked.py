"""Which expression Python was given a tensor's value in, and what that makes of the expression."""

from __future__ import annotations

import ast
import dis
from types import CodeType
from typing import Any

from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.calls import Escape
from pytest_torchlens.history.carries import Unknown
from pytest_torchlens.history.source_lines import by_identity
from pytest_torchlens.history.source_lines import frames
from pytest_torchlens.history.source_lines import positions
from pytest_torchlens.history.syntax import called
from pytest_torchlens.history.syntax import node_at

_ASKS = "__bool__"
_OF_ARGUMENT = ("bool", "truth", _ASKS)


def asked(code: CodeType, at: int, function: str, value: Any, ends: bool) -> tuple[ast.expr | None, Any]:
    """Return the expression that an instruction evaluates or asks for, and its value where that is known.

    Parameters
    ----------
    code, at
        The instruction.
    function, value
        What it called of a tensor: ``"__bool__"``, ``"item"``; and what that returned.
    ends
        Whether it asked no further tensor, being one that asks many in turn: ``any``, ``all``, ``in``.
    """
    node = node_at(code, at)
    if node is None:
        return None, Unknown.UNREAD
    if function == _ASKS:
        node = _without_not(node)
    if positions(code) or (function == _ASKS and not isinstance(node, ast.BoolOp)):
        return node, _value(code, at, node, function, value, ends)
    return node, Unknown.UNREAD  # it may be another part of the condition on this line


def _without_not(node: ast.expr) -> ast.expr:
    return _without_not(node.operand) if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) else node


def _value(code: CodeType, at: int, node: ast.expr, function: str, value: Any, ends: bool) -> Any:
    if not isinstance(value, bool | int | float):
        return Unknown.UNREAD
    instruction = dis.opname[code.co_code[at]]
    if function != _ASKS:
        return value
    if "CALL" in instruction:
        return _of_call(node, value, ends)
    if isinstance(node, ast.Compare):
        return _of_comparison(code, at, node, bool(value), ends)
    return value


def _of_call(node: ast.expr, value: Any, ends: bool) -> Any:
    """Return the value of a call that asked for its argument's truth, or for those of many things."""
    name = called(node)
    if name in ("any", "all"):
        return value if ends or bool(value) is (name == "any") else Unknown.UNDECIDED
    return value if name in _OF_ARGUMENT else Unknown.UNREAD


def _of_comparison(code: CodeType, at: int, node: ast.Compare, value: bool, ends: bool) -> Any:
    """Return the value of a comparison, part of which was asked: a link of a chain, or whether ``in`` found it."""
    if isinstance(node.ops[-1], ast.In | ast.NotIn) and "JUMP" not in dis.opname[code.co_code[at]]:
        return isinstance(node.ops[-1], ast.In) is value if value or ends else Unknown.UNDECIDED
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


def last_in_turn(escapes: list[Escape], calls: list[Call]) -> set[int]:
    """Return the ids of the values after which a place in the code asked no more, until other code had run."""
    found = set()
    latest: dict[tuple[object, ...], Escape] = {}
    for escape in escapes:
        key = (id(escape.module), by_identity(escape.frames))
        before = latest.get(key)
        if before is not None and not all(_is_below(call, before) for call in calls[before.call : escape.call]):
            found.add(id(before))
        latest[key] = escape
    return found | {id(escape) for escape in latest.values()}


def _is_below(call: Call, asking: Escape) -> bool:
    """Return whether a call was made by what the asking code goes through, a generator that it reads."""
    place = next(frames(asking), None)
    return any(code is place[0] and at == place[1] for code, at in frames(call)) if place is not None else False
