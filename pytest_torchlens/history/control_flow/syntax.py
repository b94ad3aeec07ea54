"""The piece of source that an instruction belongs to, found with the `executing` library's trees."""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from types import CodeType

from executing import Source

from pytest_torchlens.history.source import line_of
from pytest_torchlens.history.source import positions

Span = tuple[int, ...]
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Loop = ast.For | ast.AsyncFor | ast.While | Comprehension
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
LoopOrFunction = Loop | Function
"""A loop, or a function that calls itself."""


@functools.lru_cache(maxsize=1024)
def node_at(code: CodeType, at: int) -> ast.expr | None:
    """Return the expression that the instruction at byte offset `at` evaluates or tests for truth.

    None if the source cannot be read.  If Python keeps only lines (3.10), the condition on that line if there is just
    one.
    """
    by_span = _expressions(code.co_filename)
    spans = positions(code)
    if not spans:
        return _only_condition(by_span.values(), line_of(code, at))
    node = by_span.get(spans[at // 2])
    if isinstance(node, ast.If | ast.While | ast.Assert | ast.IfExp | ast.BoolOp | Comprehension):
        before = [by_span.get(span) for span in spans[max(0, at // 2 - _LOOK_BACK) : at // 2]]
        return _operand(node, before) or _expression_of(node)
    return _expression_of(node)


_LOOK_BACK = 32
"""How many instructions to look back for the operand that a jump tests, cache entries included."""


def _expression_of(node: ast.AST | None) -> ast.expr | None:
    """Return an expression itself, the condition of a statement, or what a statement adds (``x[i] += y``)."""
    if isinstance(node, ast.If | ast.While | ast.Assert):
        return node.test
    if isinstance(node, ast.AugAssign):  # the addition in `x[i] += y` has the place of the statement
        return node.value
    return node if isinstance(node, ast.expr) else None


def _operand(whole: ast.AST, before: Sequence[ast.AST | None]) -> ast.expr | None:
    """Return the expression evaluated last before a jump; in Python 3.11 the jump has the position of the whole."""
    last = next((node for node in reversed(before) if node is not whole), None)
    if not isinstance(last, ast.expr):
        return None
    parts = itertools.takewhile(lambda part: part is not whole, (last, *ancestors(last)))
    return last if isinstance(whole, ast.BoolOp) or any(map(is_condition, parts)) else None


def _only_condition(nodes: Iterable[ast.AST], line: int) -> ast.expr | None:
    conditions = [node for node in nodes if isinstance(node, ast.expr) and is_condition(node)]
    tests = [node for node in conditions if node.lineno <= line <= _end(node)]
    return tests[0] if len(tests) == 1 else None


@functools.lru_cache(maxsize=64)
def _expressions(filename: str) -> dict[Span, ast.expr | ast.stmt]:
    """Return the outermost expression of each span, or the statement with a condition or an operator (``+=``)."""
    tree = Source.for_filename(filename).tree
    by_span: dict[Span, ast.expr | ast.stmt] = {}
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.expr | ast.If | ast.While | ast.Assert | ast.AugAssign):
            by_span.setdefault((node.lineno, _end(node), node.col_offset, node.end_col_offset or 0), node)
            if name := _name_on_a_later_line(node):
                by_span.setdefault((*name, node.end_col_offset or 0), node)
    return by_span


def _name_on_a_later_line(node: ast.AST) -> Span:
    """Return the lines and the first column that Python 3.11 gives to a call whose name is not on its first line.

    They begin at that name, and not where the expression does.
    """
    attribute = node.func if isinstance(node, ast.Call) else node
    if not isinstance(attribute, ast.Attribute) or _end(attribute) == attribute.lineno:
        return ()
    return _end(attribute), _end(node), (attribute.end_col_offset or 0) - len(attribute.attr)


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
        if isinstance(above, Function):
            return
        above = parent_of(above)


@functools.lru_cache(maxsize=64)
def reads_in(scope: Function | ast.ClassDef) -> dict[str, list[ast.expr]]:
    """Return the reads in a function or class, by name or dotted name."""
    reads: dict[str, list[ast.expr]] = {}
    for part in ast.walk(scope):
        if isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Load):
            reads.setdefault(dotted_name(part), []).append(part)
    return reads


def reads_around(node: ast.AST, of_class: bool = False) -> dict[str, list[ast.expr]]:
    """Return the reads in the function, or class, around a node, by name; ``{}`` outside any function."""
    scope = next((above for above in ancestors(node) if isinstance(above, ast.FunctionDef)), None)
    above = parent_of(scope) if scope is not None and of_class else None
    if isinstance(above, ast.ClassDef):
        return reads_in(above)
    return reads_in(scope) if scope is not None else {}


def dotted_name(node: ast.AST) -> str:
    """Return a name, or a name with its attributes, as ``"self.step"``; ``""`` for anything else."""
    if isinstance(node, ast.Attribute):
        base = dotted_name(node.value)
        return f"{base}.{node.attr}" if base else ""
    return node.id if isinstance(node, ast.Name) else ""


def branches_of(condition: ast.If | ast.While | ast.IfExp) -> list[ast.AST]:
    """Return the nodes of both branches of a condition."""
    if isinstance(condition, ast.IfExp):
        return [condition.body, condition.orelse]
    return [*condition.body, *condition.orelse]


def within(parts: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield all nodes below `parts`, without those inside functions and classes defined there."""
    waiting = list(parts)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function | ast.ClassDef):
            waiting.extend(ast.iter_child_nodes(node))


def owner_of_condition(node: ast.AST) -> ast.AST | None:
    """Return the statement, expression or case that a node is the whole condition of."""
    above = parent_of(node)
    if isinstance(above, ast.If | ast.While | ast.IfExp | ast.Assert):
        return above if above.test is node else None
    if isinstance(above, ast.comprehension):
        return above if node in above.ifs else None
    if isinstance(above, ast.MatchValue):
        above = parent_of(above)
        return above if isinstance(above, ast.match_case) else None
    if isinstance(above, ast.Match):
        return above if above.subject is node else None
    return above if isinstance(above, ast.match_case) and above.guard is node else None


def is_condition(node: ast.AST) -> bool:
    """Return whether a node is the whole condition of a statement, an expression or a case."""
    return owner_of_condition(node) is not None


def called_name(node: ast.AST) -> str:
    """Return the name of the function or method that a call calls; ``""`` for other nodes."""
    function = node.func if isinstance(node, ast.Call) else None
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def function_of(code: CodeType) -> Function | None:
    """Return the function that a code object was compiled from."""
    return _functions(code.co_filename).get((code.co_name, code.co_firstlineno))


@functools.lru_cache(maxsize=64)
def _functions(filename: str) -> dict[tuple[str, int], Function]:
    """Return functions by name and first line, which is a decorator's if there is one."""
    tree = Source.for_filename(filename).tree
    functions: dict[tuple[str, int], Function] = {}
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, Function):
            lines = [node.lineno, *(part.lineno for part in getattr(node, "decorator_list", ()))]
            functions[getattr(node, "name", "<lambda>"), min(lines)] = node
    return functions


def loops_at(code: CodeType, at: int) -> list[Loop]:
    """Return the loops that run an instruction in each pass, innermost first."""
    node: ast.AST | None = node_at(code, at)
    if node is None and not positions(code):
        line = line_of(code, at)
        statements = [node for node in _statements(code.co_filename) if node.lineno <= line <= _end(node)]
        node = max(statements, key=lambda node: (node.lineno, -_end(node)), default=None)
    return loops_around(node) if node is not None else []


@functools.lru_cache(maxsize=64)
def _statements(filename: str) -> list[ast.stmt]:
    """Return all statements of a file."""
    tree = Source.for_filename(filename).tree
    return [node for node in ast.walk(tree) if isinstance(node, ast.stmt)] if tree is not None else []


def loops_around(node: ast.AST) -> list[Loop]:
    """Return the loops that run a node in each pass, innermost first; a loop computes its iterable only once."""
    loops: list[Loop] = []
    below = node
    for above in ancestors(node):
        if isinstance(above, Loop) and not _runs_once(above, below):
            loops.append(above)
        below = above
    return loops


def _runs_once(loop: Loop, part: ast.AST) -> bool:
    if isinstance(loop, ast.For | ast.AsyncFor):
        return part is loop.iter or part in loop.orelse
    return isinstance(loop, ast.While) and part in loop.orelse


def lines_of(statements: list[ast.stmt] | ast.expr) -> tuple[int, ...]:
    """Return first and last line; ``()`` without statements."""
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
