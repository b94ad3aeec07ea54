"""Which loops a value that Python was given may end, or how often they run."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from collections.abc import Iterator

from pytest_torchlens.history.callees import Callees
from pytest_torchlens.history.control_flow.expressions import reached
from pytest_torchlens.history.syntax import Function
from pytest_torchlens.history.syntax import Repeated
from pytest_torchlens.history.syntax import ancestors
from pytest_torchlens.history.syntax import branches_of
from pytest_torchlens.history.syntax import called
from pytest_torchlens.history.syntax import loops_around
from pytest_torchlens.history.syntax import within


def repeated_by(node: ast.expr, callees: Callees) -> list[Repeated]:
    """Return the loops, and functions that may call themselves, whose number of passes hangs on an expression.

    It does where the expression, or what it went into, is in a ``while`` condition, in what a ``for`` goes over, or in
    a condition that leaves the loop or calls again.
    """
    return list(dict.fromkeys(found for use in reached(node, callees) for found in _decided(use)))


def is_returned(node: ast.expr, callees: Callees) -> bool:
    """Return whether an expression, what it went into, or a branch that it decides, is what its function returns."""
    function = next(_functions_around(node), None)
    uses = (use for use in reached(node, callees) if next(_functions_around(use), None) is function)
    return any(map(_is_result, uses))


def _is_result(node: ast.expr) -> bool:
    below: ast.AST = node
    for above in ancestors(node):
        if isinstance(above, ast.Return | ast.Lambda):
            return True
        if isinstance(above, ast.If) and below is above.test:
            returned = (part.value for part in within(branches_of(above)) if isinstance(part, ast.Return))
            return any(map(_is_literal, returned))
        if isinstance(above, ast.stmt):
            return False
        below = above
    return False


def _is_literal(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is not None


def _decided(node: ast.expr) -> Iterator[Repeated]:
    below: ast.AST = node
    for above in ancestors(node):
        if isinstance(above, ast.If | ast.IfExp) and below is above.test:
            yield from _left_by(above)
        elif isinstance(above, ast.BoolOp) and below is not above.values[-1]:
            yield from _calls_again(above, above.values)
        elif isinstance(above, ast.While | ast.For | ast.AsyncFor) and below in (
            getattr(above, "test", None),
            getattr(above, "iter", None),
        ):
            yield above
            yield from _calls_again(above, above.body)
        if isinstance(above, ast.stmt):
            return
        below = above


def _left_by(condition: ast.If | ast.IfExp) -> Iterator[Repeated]:
    """Yield the loops that a branch leaves, and the function around it if a branch leaves that or calls it again."""
    around = [loop for loop in loops_around(condition) if isinstance(loop, ast.stmt)]
    branches = branches_of(condition)
    for inner in within(branches):
        if isinstance(inner, ast.Return | ast.Raise):
            yield from around
            yield from _functions_around(condition) if isinstance(inner, ast.Return) else ()
        elif isinstance(inner, ast.Break):
            yield from [loop for loop in loops_around(inner) if isinstance(loop, ast.stmt)][:1]
    yield from _calls_again(condition, branches)


def _calls_again(condition: ast.AST, parts: Iterable[ast.AST]) -> Iterator[Repeated]:
    for function in _functions_around(condition):
        names = {getattr(function, "name", ""), "self"}
        if any(called(inner) in names for inner in within(parts)):
            yield function


def _functions_around(node: ast.AST) -> Iterator[Function]:
    return (above for above in ancestors(node) if isinstance(above, Function))
