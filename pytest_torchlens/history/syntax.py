"""The piece of source that an instruction belongs to, found with the `executing` library's trees."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from types import CodeType

from executing import Source

from pytest_torchlens.history.source_lines import line_of

Span = tuple[int, int, int, int]
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Loop = ast.For | ast.AsyncFor | ast.While | Comprehension
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def node_at(code: CodeType, at: int) -> ast.expr | None:
    """Return the expression that the instruction at byte offset `at` evaluates; None where there is no source.

    Python 3.10 keeps lines alone: there it is the condition on that line, if there is just one.
    """
    by_span = _expressions(code.co_filename)
    span = _span(code, at)
    if span is not None:
        return _asked(by_span.get(span), code)
    line = line_of(code, at)
    asked = [node for node in by_span.values() if isinstance(node, ast.expr) and is_condition(node)]
    tests = [node for node in asked if node.lineno <= line <= _end(node)]
    return tests[0] if len(tests) == 1 else None


def _asked(node: ast.AST | None, code: CodeType) -> ast.expr | None:
    """Return the condition where the jump of a statement or expression has the place of the whole (Python 3.11)."""
    if isinstance(node, ast.If | ast.While | ast.Assert | ast.IfExp):
        return node.test
    if isinstance(node, Comprehension) and code.co_name.startswith("<"):
        filters = [condition for generator in node.generators for condition in generator.ifs]
        return filters[0] if len(filters) == 1 else None
    return node if isinstance(node, ast.expr) else None


def _span(code: CodeType, at: int) -> Span | None:
    if not hasattr(code, "co_positions"):
        return None
    first, last, start, end = list(code.co_positions())[at // 2]
    if first is None or last is None or start is None or end is None:
        return None
    return first, last, start, end


@functools.lru_cache(maxsize=64)
def _expressions(filename: str) -> dict[Span, ast.expr | ast.stmt]:
    """Return the outermost expression of each span, or the statement with a condition."""
    tree = Source.for_filename(filename).tree
    found: dict[Span, ast.expr | ast.stmt] = {}
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.expr | ast.If | ast.While | ast.Assert):
            found.setdefault((node.lineno, _end(node), node.col_offset, node.end_col_offset or 0), node)
    return found


def _end(node: ast.AST) -> int:
    return getattr(node, "end_lineno", 0) or 0


def parent_of(node: ast.AST) -> ast.AST | None:
    """Return the node around a node."""
    return getattr(node, "parent", None)


def ancestors(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes around a node, innermost first, up to the function that it is in."""
    above = parent_of(node)
    while above is not None:
        yield above
        if isinstance(above, _FUNCTIONS):
            return
        above = parent_of(above)


def is_condition(node: ast.AST) -> bool:
    """Return whether a node is the whole condition of a statement or expression."""
    above = parent_of(node)
    if isinstance(above, ast.If | ast.While | ast.IfExp | ast.Assert):
        return above.test is node
    return isinstance(above, ast.comprehension) and node in above.ifs


def loops_around(node: ast.AST) -> list[Loop]:
    """Return the loops that run a node again and again, innermost first; not one whose iterable it makes once."""
    found: list[Loop] = []
    below = node
    for above in ancestors(node):
        if isinstance(above, Loop) and not _made_once(above, below):
            found.append(above)
        below = above
    return found


def _made_once(loop: Loop, part: ast.AST) -> bool:
    if isinstance(loop, ast.For | ast.AsyncFor):
        return part is loop.iter or part in loop.orelse
    return isinstance(loop, ast.While) and part in loop.orelse


def lines_of(statements: list[ast.stmt] | ast.expr) -> tuple[int, ...]:
    """Return first and last line; nothing for no statements."""
    if isinstance(statements, ast.expr):
        return statements.lineno, _end(statements)
    return (statements[0].lineno, _end(statements[-1])) if statements else ()


def text_of(filename: str, node: ast.expr) -> str:
    """Return the source of an expression on one line."""
    lines = [line.encode() for line in Source.for_filename(filename).lines[node.lineno - 1 : _end(node)]]
    if not lines:
        return ""
    lines[-1] = lines[-1][: node.end_col_offset]
    lines[0] = lines[0][node.col_offset :]
    return " ".join(b"\n".join(lines).decode().split())
