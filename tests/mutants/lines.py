"""Finds the lines that run where a changed line counts: itself in a function, else the users of what it assigns."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.mutants.mutant import PACKAGE
from tests.mutants.mutant import Definition
from tests.mutants.mutant import Mutant
from tests.mutants.mutant import definitions

Lines = dict[str, set[int]]
"""Line numbers by path in the package."""


def lines_of(mutant: Mutant, root: Path) -> Lines:
    """Return the lines whose run shows that a test reaches a mutant.

    A constant, a default value or a field is computed once, when its module is imported. Tests that reach it are then
    those that run a statement which uses its name, or the name of another constant that is made of it.
    """
    text = mutant.source(root).read_text(encoding="utf-8")
    changed = set(mutant.lines(text))
    statements = [one for one in _statements(ast.parse(text)) if changed & set(_own_lines(one))]
    found: Lines = defaultdict(set)
    names: set[str] = set()
    for statement in statements:
        if isinstance(statement, Definition):  # a default value, or a decorator
            found[mutant.file] |= _body(statement)
        elif _is_in_function(statement, text):
            found[mutant.file] |= set(_own_lines(statement))
        else:
            names |= _assigned(statement)
    for file, lines in _uses(names, root, mutant.file):
        found[file] |= lines
    return found


def _statements(tree: ast.AST) -> Iterator[ast.stmt]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.stmt))


def _own_lines(statement: ast.stmt) -> range:
    """Return the lines of a statement without those of the statements inside it."""
    inside = [child.lineno for child in _statements(statement) if child is not statement]
    end = min(inside) if inside else (statement.end_lineno or statement.lineno) + 1
    return range(statement.lineno, max(end, statement.lineno + 1))


def _is_in_function(statement: ast.stmt, text: str) -> bool:
    functions = (node for _, node in definitions(ast.parse(text)) if not isinstance(node, ast.ClassDef))
    return any(node.body[0].lineno <= statement.lineno <= (node.end_lineno or 0) for node in functions)


def _body(definition: Definition) -> set[int]:
    return set(range(definition.body[0].lineno, (definition.end_lineno or 0) + 1))


def _assigned(statement: ast.stmt) -> set[str]:
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _uses(names: set[str], root: Path, own: str) -> Iterator[tuple[str, set[int]]]:
    """Yield file and lines of the statements in functions that use a name; through other constants too.

    A name that begins with an underscore is looked for in its `own` file alone.
    """
    texts = {path: path.read_text(encoding="utf-8") for path in sorted((root / PACKAGE).rglob("*.py"))}
    waiting, seen = set(names), set(names)
    while waiting:
        name = waiting.pop()
        for path, text in texts.items():
            if name not in text or (name.startswith("_") and path != root / PACKAGE / own):
                continue
            for statement in _statements(ast.parse(text)):
                if not _names(statement, name):
                    continue
                if isinstance(statement, Definition) or _is_in_function(statement, text):
                    lines = _body(statement) if isinstance(statement, Definition) else set(_own_lines(statement))
                    yield path.relative_to(root / PACKAGE).as_posix(), lines
                else:
                    waiting |= _assigned(statement) - seen
                    seen |= _assigned(statement)


def _names(statement: ast.stmt, name: str) -> bool:
    lines = _own_lines(statement)
    return any(
        (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)
        for node in ast.walk(statement)
        if getattr(node, "lineno", -1) in lines
    )
