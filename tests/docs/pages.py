"""Runs the blocks of a page in order, as a reader would, and compares what they print with what the page quotes."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from pytest_torchlens.cli.main import main as pytest_lens

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# ([\w/]+\.(?:py|yaml))\b")


def script(name: str) -> ModuleType:
    """Return a script of the docs, loaded anew."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Block(NamedTuple):
    language: str
    text: str


def blocks_of(name: str) -> list[Block]:
    return [Block(*found) for found in _BLOCK.findall((DOCS / name).read_text(encoding="utf-8"))]


def run_page(name: str, pytester: pytest.Pytester) -> None:
    """Run a page in the folder of `pytester`.

    ``python`` and ``yaml`` blocks that begin with ``# FILE`` are written as that file; other ``python`` blocks run, and
    a ``text`` block is what the last one printed.  In a ``console`` block, ``pytest`` and ``pytest-lens`` run, and the
    lines below each command are printed by it; other commands are for the reader.
    """
    variables: dict[str, object] = {"__name__": "page"}
    printed = ""
    for block in blocks_of(name):
        file = _FILE.match(block.text)
        if file and block.language in {"python", "yaml"}:
            path = pytester.path / file[1]
            path.parent.mkdir(exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile(block.text, name, "exec"), variables)  # noqa: S102 - our own text
            printed = output.getvalue()
        elif block.language == "text":
            assert_quoted(block.text, printed)
        elif block.language == "console":
            _run_commands(block.text, pytester)


def _run_commands(text: str, pytester: pytest.Pytester) -> None:
    for command, quoted in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, flags=re.MULTILINE):
        program, *arguments = shlex.split(command, comments=True)
        if program == "pytest":
            result = pytester.runpytest_inprocess(*arguments, "-p", "no:cacheprovider")
            assert_quoted(quoted, result.stdout.str().replace(f"{pytester.path}/", ""))
        elif program == "pytest-lens":
            with contextlib.redirect_stdout(io.StringIO()) as output:
                pytest_lens(arguments)
            assert_quoted(quoted, output.getvalue())
        else:
            assert not quoted.strip(), f"nothing runs {program}, so what it prints cannot be quoted"


def assert_quoted(quoted: str, printed: str) -> None:
    """Assert that all quoted lines but ``…`` were printed in this order, whatever their fractions and widths are."""
    rest = [_without_fractions(line) for line in printed.splitlines()]
    for line in quoted.splitlines():
        if line.strip() and line.strip() != "…":
            wanted = _without_fractions(line)
            assert wanted in rest, f"{line!r} was not printed, or not there:\n{printed}"
            rest = rest[rest.index(wanted) + 1 :]


def _without_fractions(line: str) -> str:
    """Leave out what differs from machine to machine: numbers with a fraction, and the spaces and rules around them."""
    line = re.sub(r"\d+\.\d+(e-?\d+)?|\d+e-\d+", "N", line.replace("\t", " "))
    return re.sub(r"([=_-])\1{2,}", r"\1", " ".join(line.split()))
