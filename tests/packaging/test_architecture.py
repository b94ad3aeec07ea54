"""The architecture page names only what exists, and the tests mirror the package."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pytest_torchlens"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`([^`\n]+)`", PAGE)))
OF_OTHERS = {"item()", "numpy()"}
COMMAND = re.compile(r"python (docs/\w+\.py)")
NO_LAYER = {"docs", "mutants", "packaging"}


@functools.cache
def defined() -> set[str]:
    """Return each class, function, method and constant of the package, methods as ``Class.method`` too."""
    names: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names |= named(node)
    return names


def named(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef):
        return {node.name, *(f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef))}
    if isinstance(node, ast.FunctionDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def exists(name: str, names: set[str]) -> bool:
    command = COMMAND.fullmatch(name)
    path = command[1] if command else name
    places = (PACKAGE / path, PACKAGE / f"{path}.py", ROOT / path, PACKAGE / "recorder" / path)
    return name in names or name.endswith("call_…") or any(place.exists() for place in places)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OF_OTHERS])
def test_what_the_page_names_exists(name: str):
    assert exists(name, defined()), f"docs/architecture.md names {name!r}, which is gone"


@pytest.mark.parametrize("name", ["capture/ledger.py", "Ledger", "TensorTable.no_method", "tests/gone"])
def test_what_is_gone_is_noticed(name: str):
    assert not exists(name, defined())


def test_every_layer_is_on_the_page():
    layers = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {layer for layer in layers if not re.search(rf"\b{layer}\b", PAGE.partition("## Layers")[2])} == set()


def test_the_page_is_short_enough_to_be_read():
    assert len(PAGE.splitlines()) <= 80


def test_the_tests_mirror_the_package():
    layers = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert folders - NO_LAYER == layers
