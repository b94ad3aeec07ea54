"""How a value goes on through an expression: what ``not int(x) > 3`` is when ``x`` is known."""

from __future__ import annotations

import ast
import contextlib
import operator
from collections.abc import Callable
from enum import Enum
from typing import Any

from pytest_torchlens.history.syntax import is_condition
from pytest_torchlens.history.syntax import parent_of


class Unknown(Enum):
    """Why the value of an expression is not known."""

    UNDECIDED = "undecided"
    """Another operand decides."""
    UNREAD = ""
    """Something else goes into it."""


_FUNCTIONS: dict[str, Callable[..., Any]] = {"bool": bool, "int": int, "float": float, "abs": abs, "round": round}
_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def carry(node: ast.expr, value: Any) -> tuple[ast.expr, Any]:
    """Return the largest expression that is a number or truth made of a value alone, and what it is.

    Literals may go into it, and other operands of comparisons, ``and`` and ``or``; it ends at a whole condition.
    """
    while not is_condition(node):
        above = parent_of(node)
        if not isinstance(above, ast.expr) or not _goes_on(node, above):
            break
        value = _value_of(above, node, value)
        node = above
    return node, value


def _goes_on(node: ast.expr, above: ast.expr) -> bool:
    if isinstance(above, ast.IfExp):
        return node is not above.test
    if isinstance(above, ast.BinOp):
        return all(_literal(part) for part in (above.left, above.right) if part is not node)
    if isinstance(above, ast.Call):
        return _name_of(above) in _FUNCTIONS and node in above.args
    return isinstance(above, ast.NamedExpr | ast.BoolOp | ast.UnaryOp | ast.Compare)


def _value_of(above: ast.expr, node: ast.expr, value: Any) -> Any:
    """Return the value of the expression around one, given the value of that one."""
    if isinstance(above, ast.NamedExpr | ast.IfExp):
        return value
    if isinstance(above, ast.BoolOp):
        return _of_several(above, node, value)
    if isinstance(value, Unknown):
        return value
    with contextlib.suppress(ArithmeticError, ValueError, TypeError, KeyError):
        return _computed(above, node, value)
    return Unknown.UNREAD


def _of_several(above: ast.BoolOp, node: ast.expr, value: Any) -> Any:
    """Return the value of an ``and`` or ``or`` that came to this operand."""
    if node is above.values[-1]:
        return value
    stops = not isinstance(value, Unknown) and bool(value) is isinstance(above.op, ast.Or)
    return value if stops else Unknown.UNDECIDED


def _computed(above: ast.expr, node: ast.expr, value: Any) -> Any:
    def of(part: ast.expr) -> Any:
        return value if part is node else ast.literal_eval(part)

    match above:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _OPERATORS[type(op)](of(left), of(right))
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](of(left), of(right))
        case ast.UnaryOp(op=op):
            return _OPERATORS[type(op)](value)
        case ast.Call(args=args, keywords=[]):
            return _FUNCTIONS[_name_of(above)](*map(of, args))
    return Unknown.UNREAD


def _literal(node: ast.expr) -> bool:
    with contextlib.suppress(ValueError):
        ast.literal_eval(node)
        return True
    return False


def _name_of(call: ast.expr) -> str:
    """Return the name that a call calls; ``""`` for what has no plain one."""
    return call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""
