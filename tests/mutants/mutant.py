"""A mutant: one change to one place of the package, which a test must notice."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "pytest_torchlens"


class AnchorError(ValueError):
    """The text to replace does not stand exactly once where the catalogue says; the message gives the place."""


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes
    ----------
    file
        Path in the package.
    old
        The text to replace; it stands exactly once in the file, or in the function that `within` names.
    new
        What replaces it.
    within
        Qualified name of the function or class that has the text: ``"Ring.fill"``; empty for the whole file.
    equivalent
        Why no test can notice the change; empty if a test must.
    held_by
        Beginning of the names of tests that are made for the line, and run first; empty where the choice by reach
        finds them.
    """

    file: str
    old: str
    new: str
    within: str = ""
    equivalent: str = ""
    held_by: str = ""

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.file}: {old} => {new or 'nothing'}"

    def source(self, root: Path) -> Path:
        """Return the path of the file below the project's folder."""
        return root / PACKAGE / self.file

    def place(self, text: str) -> int:
        """Return the index of the text to replace.

        Raises
        ------
        AnchorError
            If it does not stand there exactly once.
        """
        begin, end = _span(text, self.within) if self.within else (0, len(text))
        if begin < 0:
            raise AnchorError(f"{self.file} has no {self.within}: correct the catalogue of mutants")
        count = text.count(self.old, begin, end)
        if count != 1:
            where = f"{self.file}, {self.within}" if self.within else self.file
            raise AnchorError(f"{self.old!r} stands {count} times in {where}: correct the catalogue of mutants")
        return text.index(self.old, begin, end)

    def apply(self, text: str) -> str:
        """Return the text of the file with the change."""
        place = self.place(text)
        return text[:place] + self.new + text[place + len(self.old) :]

    def lines(self, text: str) -> range:
        """Return the numbers of the lines that the change touches."""
        first = text.count("\n", 0, self.place(text)) + 1
        return range(first, first + self.old.count("\n") + 1)


def _span(text: str, name: str) -> tuple[int, int]:
    """Return begin and end of the function or class with a qualified name; -1 for both if there is none."""
    node = next((node for found, node in definitions(ast.parse(text)) if found == name), None)
    if node is None or node.end_lineno is None:
        return -1, -1
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts[node.lineno - 1], starts[node.end_lineno]


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def definitions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Yield qualified name and node of each function and class in a module, also of those inside others."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Definition):
            yield prefix + node.name, node
            yield from definitions(node, f"{prefix}{node.name}.")
        else:
            yield from definitions(node, prefix)
