"""Follows a value that Python read through its expression, then into names, attributes and calls."""

from __future__ import annotations

import ast
import contextlib
import dis
import itertools
import operator
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from enum import Enum
from types import CodeType
from typing import Any

from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.calls import Escape
from pytest_torchlens.history.control_flow.callees import Callees
from pytest_torchlens.history.control_flow.syntax import ancestors
from pytest_torchlens.history.control_flow.syntax import branches_of
from pytest_torchlens.history.control_flow.syntax import called_name
from pytest_torchlens.history.control_flow.syntax import dotted_name
from pytest_torchlens.history.control_flow.syntax import is_condition
from pytest_torchlens.history.control_flow.syntax import node_at
from pytest_torchlens.history.control_flow.syntax import parent_of
from pytest_torchlens.history.control_flow.syntax import reads_around
from pytest_torchlens.history.control_flow.syntax import reads_in
from pytest_torchlens.history.control_flow.syntax import within
from pytest_torchlens.history.source import by_identity
from pytest_torchlens.history.source import frames
from pytest_torchlens.history.source import positions


class Unknown(Enum):
    """Why the value of an expression is unknown."""

    UNDECIDED = "undecided"
    """Another operand decides."""
    UNREAD = ""
    """It depends on other values as well."""


_TRUTH_TEST = "__bool__"


_TRUTH_OF_ARGUMENT = ("bool", "truth", _TRUTH_TEST)


def expression_and_value(
    code: CodeType, at: int, function: str, value: Any, is_last: bool
) -> tuple[ast.expr | None, Any]:
    """Return the expression that an instruction evaluates or tests, and its value if known.

    Parameters
    ----------
    code, at
        The instruction.
    function, value
        The method of the tensor that it called, as ``"__bool__"`` or ``"item"``; and what that returned.
    ends
        Whether this is the last tensor that the instruction read: ``any``, ``all`` and ``in`` read several in turn.
    """
    node = node_at(code, at)
    if node is None:
        return None, Unknown.UNREAD
    if function == _TRUTH_TEST:
        node = _without_not(node)
    if positions(code) or (function == _TRUTH_TEST and not isinstance(node, ast.BoolOp)):
        return node, _value_read(code, at, node, function, value, is_last)
    return node, Unknown.UNREAD  # the value may be of another part of the condition on this line


def _without_not(node: ast.expr) -> ast.expr:
    return _without_not(node.operand) if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) else node


def _value_read(code: CodeType, at: int, node: ast.expr, function: str, value: Any, is_last: bool) -> Any:
    if not isinstance(value, bool | int | float):
        return Unknown.UNREAD
    instruction = dis.opname[code.co_code[at]]
    if function != _TRUTH_TEST:
        return value
    if "CALL" in instruction:
        return _call_value(node, value, is_last)
    if isinstance(node, ast.Compare):
        return _comparison_value(code, at, node, bool(value), is_last)
    return value


def _call_value(node: ast.expr, value: Any, is_last: bool) -> Any:
    """Return the value of a call that tests its argument, or the items of its argument, for truth."""
    name = called_name(node)
    if name in ("any", "all"):
        return value if is_last or bool(value) is (name == "any") else Unknown.UNDECIDED
    return value if name in _TRUTH_OF_ARGUMENT else Unknown.UNREAD


def _comparison_value(code: CodeType, at: int, node: ast.Compare, value: bool, is_last: bool) -> Any:
    """Return the value of a comparison of which one part was read: a link of a chain, or one item for ``in``."""
    if isinstance(node.ops[-1], ast.In | ast.NotIn) and "JUMP" not in dis.opname[code.co_code[at]]:
        return isinstance(node.ops[-1], ast.In) is value if value or is_last else Unknown.UNDECIDED
    return Unknown.UNDECIDED if value and len(node.ops) > 1 and _has_later_comparison(code, at) else value


def _has_later_comparison(code: CodeType, at: int) -> bool:
    """Return whether the comparison that an instruction is part of has, or may have, another link after it."""
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
    """Return the ids of the escapes that are the last of several in a row from one place in the code."""
    ids = set()
    latest: dict[tuple[object, ...], Escape] = {}
    for escape in escapes:
        key = (id(escape.module), by_identity(escape.frames))
        before = latest.get(key)
        if before is not None and not all(_is_below(call, before) for call in calls[before.call : escape.call]):
            ids.add(id(before))
        latest[key] = escape
    return ids | {id(escape) for escape in latest.values()}


def _is_below(call: Call, escape: Escape) -> bool:
    """Return whether a call was made below the code that read the value, as in a generator that it iterates over."""
    place = next(frames(escape), None)
    return any(code is place[0] and at == place[1] for code, at in frames(call)) if place is not None else False


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
    """Return the largest expression around `node` that depends on its value alone, and the value of that expression.

    It may contain literals, and other operands of comparisons, ``and`` and ``or``.  It ends at a whole condition.
    """
    while not is_condition(node):
        above = parent_of(node)
        if not isinstance(above, ast.expr) or not _is_carried_to(node, above):
            break
        value = _parent_value(above, node, value)
        node = above
    return node, value


def _is_carried_to(node: ast.expr, above: ast.expr) -> bool:
    if isinstance(above, ast.IfExp):
        return node is not above.test
    if isinstance(above, ast.BinOp):
        return all(_is_literal(part) for part in (above.left, above.right) if part is not node)
    if isinstance(above, ast.Call):
        return _name_of(above) in _FUNCTIONS and node in above.args
    return isinstance(above, ast.NamedExpr | ast.BoolOp | ast.UnaryOp | ast.Compare)


def _parent_value(above: ast.expr, node: ast.expr, value: Any) -> Any:
    """Return the value of the expression `above`, given the value of its part `node`."""
    if isinstance(above, ast.NamedExpr | ast.IfExp):
        return value
    if isinstance(above, ast.BoolOp):
        return _bool_op_value(above, node, value)
    if isinstance(value, Unknown):
        return value
    with contextlib.suppress(ArithmeticError, ValueError, TypeError, KeyError):
        return _apply(above, node, value)
    return Unknown.UNREAD


def _bool_op_value(above: ast.BoolOp, node: ast.expr, value: Any) -> Any:
    """Return the value of an ``and`` or ``or`` that evaluated this operand."""
    if node is above.values[-1]:
        return value
    stops = not isinstance(value, Unknown) and bool(value) is isinstance(above.op, ast.Or)
    return value if stops else Unknown.UNDECIDED


def _apply(above: ast.expr, node: ast.expr, value: Any) -> Any:
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


def _is_literal(node: ast.expr) -> bool:
    with contextlib.suppress(ValueError):
        ast.literal_eval(node)
        return True
    return False


def _name_of(call: ast.expr) -> str:
    """Return the plain name that a call calls; ``""`` for anything else."""
    return call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""


_CHOICES = (ast.Constant, ast.Name, ast.Attribute, ast.UnaryOp, ast.BoolOp, ast.Compare)


_PLAIN = (*_CHOICES, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context)
"""Nodes of a plain choice; what a branch computes is usually a tensor, so it does not count as chosen."""


def uses_of_value(node: ast.expr, callees: Callees) -> list[ast.expr]:
    """Return an expression, and all expressions that read what its value was stored in or passed to."""
    uses, waiting = {node: None}, [node]
    while waiting:
        for use in _next_uses(waiting.pop(), callees):
            if use not in uses:
                uses[use] = None
                waiting.append(use)
    return list(uses)


def _next_uses(node: ast.expr, callees: Callees) -> tuple[ast.expr, ...]:
    if node not in callees.next_uses:  # values meet: what one of them goes through, many do
        callees.next_uses[node] = tuple(_find_uses(node, callees))
    return callees.next_uses[node]


def _find_uses(node: ast.expr, callees: Callees) -> Iterator[ast.expr]:
    for part in _enclosing_nodes(node):
        if isinstance(part, ast.expr):
            for function, name in callees.parameters(part):
                yield from reads_in(function).get(name, ())
    for name in _target_names(node):
        yield from reads_around(node, of_class="." in name).get(name, ())


def _enclosing_nodes(node: ast.expr) -> Iterator[ast.AST]:
    """Yield an expression, the expressions around it, and their statement."""
    yield node
    below: ast.AST = node
    for above in ancestors(node):
        if isinstance(above, ast.IfExp) and below is above.test and not all(map(_is_plain, branches_of(above))):
            return
        yield above
        if isinstance(above, ast.stmt):
            return
        below = above


def _target_names(node: ast.expr) -> Iterator[str]:
    """Yield the names that get a value: by assignment, or because a branch that it decides assigns to them."""
    for below, above in itertools.pairwise(_enclosing_nodes(node)):
        if isinstance(above, ast.NamedExpr):
            yield above.target.id
        elif isinstance(above, ast.If | ast.While) and below is above.test:
            yield from _names_chosen(within(branches_of(above)))
        elif isinstance(above, ast.stmt) and below is getattr(above, "value", None):
            yield from _assigned_names(above)


def _names_chosen(statements: Iterable[ast.AST]) -> Iterator[str]:
    for statement in statements:
        value = getattr(statement, "value", None)
        is_counter = isinstance(statement, ast.AugAssign) and isinstance(value, ast.Constant)
        if is_counter or (isinstance(statement, ast.Assign | ast.AnnAssign) and value is not None and _is_plain(value)):
            yield from _assigned_names(statement)


def _is_plain(value: ast.AST) -> bool:
    return all(isinstance(part, _PLAIN) for part in ast.walk(value))


def _assigned_names(statement: ast.AST) -> Iterator[str]:
    """Yield the names and attributes that a statement assigns to, whole or in part."""
    waiting = _targets(statement)
    while waiting:
        target = waiting.pop()
        if isinstance(target, ast.Tuple | ast.List):
            waiting += target.elts
        elif isinstance(target, ast.Subscript | ast.Starred):
            waiting.append(target.value)
        elif (name := dotted_name(target)) not in ("", "self"):
            yield name


def _targets(statement: ast.AST) -> list[ast.expr]:
    match statement:
        case ast.Assign(targets=targets):
            return [*targets]
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return [target]
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=container), args=[_, *_])):
            return [container]
    return []
