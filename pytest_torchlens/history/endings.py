"""Which loops a value that Python was given may end, or how often they run."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pytest_torchlens.history.syntax import Loop
from pytest_torchlens.history.syntax import ancestors
from pytest_torchlens.history.syntax import loops_around


def loops_decided_by(node: ast.expr) -> list[Loop]:
    """Return the loops whose number of passes hangs on an expression.

    It does where the expression is in a ``while`` condition, in what a ``for`` goes over, in an ``if`` that leaves the
    loop, or goes by assignment into a name that is.
    """
    function = next((above for above in ancestors(node) if isinstance(above, ast.FunctionDef)), None)
    found = list(_decided(node))
    if function is not None and (names := _names_from(node, function)):
        for use in ast.walk(function):
            if isinstance(use, ast.Name) and use.id in names and isinstance(use.ctx, ast.Load):
                found += _decided(use)
    return list(dict.fromkeys(found))


def _decided(node: ast.expr) -> Iterator[Loop]:
    below: ast.AST = node
    for above in ancestors(node):
        if isinstance(above, ast.If) and below is above.test:
            yield from _left_by(above)
        elif isinstance(above, ast.While | ast.For | ast.AsyncFor) and below in (
            getattr(above, "test", None),
            getattr(above, "iter", None),
        ):
            yield above
        if isinstance(above, ast.stmt):
            return
        below = above


def _left_by(statement: ast.If) -> Iterator[Loop]:
    """Yield the loops that a branch of an ``if`` leaves."""
    around = [loop for loop in loops_around(statement) if isinstance(loop, ast.stmt)]
    for inner in _without_functions([*statement.body, *statement.orelse]):
        if isinstance(inner, ast.Return | ast.Raise):
            yield from around
        elif isinstance(inner, ast.Break):
            yield from [loop for loop in loops_around(inner) if isinstance(loop, ast.stmt)][:1]


def _without_functions(statements: list[ast.stmt]) -> Iterator[ast.AST]:
    waiting: list[ast.AST] = list(statements)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))


def _names_from(node: ast.expr, function: ast.FunctionDef) -> set[str]:
    """Return the names that the value of an expression is assigned to, directly or through other names."""
    statement = next((above for above in ancestors(node) if isinstance(above, ast.stmt)), None)
    names = set(_assigned(statement)) if statement is not None else set()
    known = -1
    while names and len(names) != known:
        known = len(names)
        for assignment in _without_functions(function.body):
            if isinstance(assignment, ast.stmt) and _reads(assignment, names):
                names |= set(_assigned(assignment))
    return names


def _assigned(statement: ast.AST) -> Iterator[str]:
    if isinstance(statement, ast.Assign):
        targets: list[ast.expr] = statement.targets
    elif isinstance(statement, ast.AugAssign | ast.AnnAssign):
        targets = [statement.target]
    else:
        return
    for target in targets:
        for part in ast.walk(target):
            if isinstance(part, ast.Name):
                yield part.id


def _reads(statement: ast.AST, names: set[str]) -> bool:
    value = getattr(statement, "value", None)
    return isinstance(value, ast.AST) and any(
        isinstance(part, ast.Name) and part.id in names for part in ast.walk(value)
    )
