"""Where in the source a value goes that Python was given: into names, attributes and arguments, and by conditions."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable
from collections.abc import Iterator

from pytest_torchlens.history.callees import Callees
from pytest_torchlens.history.syntax import ancestors
from pytest_torchlens.history.syntax import branches_of
from pytest_torchlens.history.syntax import dotted
from pytest_torchlens.history.syntax import reads_around
from pytest_torchlens.history.syntax import reads_in
from pytest_torchlens.history.syntax import within

_CHOICES = (ast.Constant, ast.Name, ast.Attribute, ast.UnaryOp, ast.BoolOp, ast.Compare)
_PLAIN = (*_CHOICES, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context)
"""What a branch chooses; not what it computes, which is a tensor more often than not."""


def reached(node: ast.expr, callees: Callees) -> list[ast.expr]:
    """Return an expression and all that read what its value went into."""
    found, waiting = {node: None}, [node]
    while waiting:
        for use in _uses(waiting.pop(), callees):
            if use not in found:
                found[use] = None
                waiting.append(use)
    return list(found)


def _uses(node: ast.expr, callees: Callees) -> Iterator[ast.expr]:
    for part in _around(node):
        if isinstance(part, ast.expr):
            for function, name in callees.parameters(part):
                yield from reads_in(function).get(name, ())
    for name in _given(node):
        yield from reads_around(node, of_class="." in name).get(name, ())


def _around(node: ast.expr) -> Iterator[ast.AST]:
    """Yield an expression, those that it goes into, and their statement."""
    yield node
    below: ast.AST = node
    for above in ancestors(node):
        if isinstance(above, ast.IfExp) and below is above.test and not all(map(_is_plain, branches_of(above))):
            return
        yield above
        if isinstance(above, ast.stmt):
            return
        below = above


def _given(node: ast.expr) -> Iterator[str]:
    """Yield the names that a value goes into: by assignment, or because a branch that it decides assigns to them."""
    for below, above in itertools.pairwise(_around(node)):
        if isinstance(above, ast.NamedExpr):
            yield above.target.id
        elif isinstance(above, ast.If | ast.While) and below is above.test:
            yield from _chosen(within(branches_of(above)))
        elif isinstance(above, ast.stmt) and below is getattr(above, "value", None):
            yield from _assigned(above)


def _chosen(statements: Iterable[ast.AST]) -> Iterator[str]:
    for statement in statements:
        value = getattr(statement, "value", None)
        counts = isinstance(statement, ast.AugAssign) and isinstance(value, ast.Constant)
        if counts or (isinstance(statement, ast.Assign | ast.AnnAssign) and value is not None and _is_plain(value)):
            yield from _assigned(statement)


def _is_plain(value: ast.AST) -> bool:
    return all(isinstance(part, _PLAIN) for part in ast.walk(value))


def _assigned(statement: ast.AST) -> Iterator[str]:
    """Yield the names and attributes that a statement gives its value, whole or as a part of them."""
    waiting = _targets(statement)
    while waiting:
        target = waiting.pop()
        if isinstance(target, ast.Tuple | ast.List):
            waiting += target.elts
        elif isinstance(target, ast.Subscript | ast.Starred):
            waiting.append(target.value)
        elif (name := dotted(target)) not in ("", "self"):
            yield name


def _targets(statement: ast.AST) -> list[ast.expr]:
    match statement:
        case ast.Assign(targets=targets):
            return [*targets]
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return [target]
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=changed), args=[_, *_])):
            return [changed]
    return []
