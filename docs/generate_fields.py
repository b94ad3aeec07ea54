"""Write docs/fields.md from the docstrings: `python docs/generate_fields.py`."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from pytest_torchlens.history import LoggedOperation
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.view import HistoryView
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import Operation

PAGE = Path(__file__).with_name("fields.md")
_HEAD = """# Every field

Generated from the docstrings by `python docs/generate_fields.py`; a test says when it is out of date. The names are
those of Supplementary Table 1 of the paper. Sizes are bytes, times are seconds.
"""
_INSIDE = {"recording", "nodes", "lazy_fields"}


def page() -> str:
    """Return the page."""
    return "\n".join(
        [
            _HEAD,
            *_section("Of a history", "history.NAME", [HistoryRecord, HistoryView, ModelHistory]),
            *_section("Of an operation", "history[KEY].NAME", [Operation, LoggedOperation]),
        ]
    )


def _section(title: str, how: str, kinds: list[type]) -> Iterator[str]:
    yield f"## {title}\n\nAsked for as `{how}`.\n\n| field | what it is |\n|---|---|"
    lines = {name: line for kind in kinds for name, line in fields(kind) if name not in _INSIDE}
    yield from (f"| `{name}` | {line} |" for name, line in lines.items())
    yield ""


def fields(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the public fields and properties of a class, each with the first sentence of its docstring."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)  # noqa: S101 - it is a class's source
    for statement, after in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, _line(_text(after))
        elif isinstance(statement, ast.FunctionDef) and _is_property(statement):
            yield statement.name, _line(ast.get_docstring(statement) or "")


def _is_property(function: ast.FunctionDef) -> bool:
    decorators = {ast.unparse(decorator) for decorator in function.decorator_list}
    return not function.name.startswith("_") and bool(decorators & {"property", "functools.cached_property"})


def _text(statement: ast.stmt | None) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return str(statement.value.value)
    return ""


def _line(docstring: str) -> str:
    """Return a docstring's first paragraph on one line, in Markdown for a table."""
    paragraph = " ".join(docstring.split("\n\n", maxsplit=1)[0].split())
    return re.sub(r"``(.*?)``", r"`\1`", paragraph).replace("|", "\\|").replace("<", "\\<")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
