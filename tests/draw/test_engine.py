"""Which Graphviz is used, and what is said where there is none."""

from __future__ import annotations

import stat
import sys

import pytest

from pytest_torchlens.draw import DrawingUnavailable
from pytest_torchlens.draw import drawing
from pytest_torchlens.draw import render


@pytest.fixture
def program(tmp_path):
    def make(name, body):
        path = tmp_path / name
        path.write_text(f"#!{sys.executable}\nimport sys, time\n{body}\n", encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return make


def test_the_wheel_makes_no_pdf_and_this_is_said(program, monkeypatch, nothing):
    program("graphviz-pure", "print('wheel')")
    with pytest.raises(
        DrawingUnavailable, match=r"no PDF: graphviz-pure makes none; install Graphviz .*\.svg or \.png"
    ):
        render("digraph {}", "pdf")
    assert render("digraph {}").strip() == b"wheel"


@pytest.fixture
def nothing(monkeypatch, tmp_path):
    """A machine with no Graphviz."""
    monkeypatch.delenv("PYTEST_LENS_DOT", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(drawing, "_from_wheel", lambda: None)


def test_the_variable_wins(program, monkeypatch):
    mine = program("mine", "print('mine', *sys.argv[1:], sys.stdin.read())")
    monkeypatch.setenv("PYTEST_LENS_DOT", str(mine))
    assert render("digraph {}", "png").decode().split() == ["mine", "-Tpng", "digraph", "{}"]


def test_dot_on_the_path_comes_before_the_wheel(program, monkeypatch, nothing):
    program("dot", "print('dot')")
    program("graphviz-pure", "print('wheel')")
    assert render("digraph {}").strip() == b"dot"


def test_the_wheel_is_found_off_the_path(monkeypatch, tmp_path):
    pytest.importorskip("importlib.metadata").distribution("graphviz-pure")
    monkeypatch.delenv("PYTEST_LENS_DOT", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert b"<svg" in render("digraph {}")


def test_no_program_says_how_to_get_one(nothing):
    with pytest.raises(DrawingUnavailable, match=r"pip install 'pytest-torchlens\[dot\]'.*PYTEST_LENS_DOT"):
        render("digraph {}")


def test_a_program_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("PYTEST_LENS_DOT", "/nowhere/dot")
    with pytest.raises(DrawingUnavailable, match="/nowhere/dot does not start"):
        render("digraph {}")


def test_a_slow_program_is_stopped(program, monkeypatch):
    monkeypatch.setenv("PYTEST_LENS_DOT", str(program("slow", "time.sleep(60)")))
    with pytest.raises(
        DrawingUnavailable, match=r"stopped after 0\.1 s; draw fewer nodes \(max_nodes, vis_nesting_depth\)"
    ):
        render("digraph {}", timeout=0.1)


def test_a_failing_program_is_quoted(program, monkeypatch):
    monkeypatch.setenv("PYTEST_LENS_DOT", str(program("bad", "sys.exit('no such format\\nsecond line')")))
    with pytest.raises(DrawingUnavailable, match=r"-Tpdf failed: no such format$"):
        render("digraph {}", "pdf")


def test_a_program_that_draws_nothing_is_named(program, monkeypatch):
    monkeypatch.setenv("PYTEST_LENS_DOT", str(program("idle", "")))
    with pytest.raises(DrawingUnavailable, match=r"idle -Tsvg gave nothing; is it Graphviz\?"):
        render("digraph {}")


def test_a_silent_failure_is_still_told(program, monkeypatch):
    monkeypatch.setenv("PYTEST_LENS_DOT", str(program("bad", "sys.exit(3)")))
    with pytest.raises(DrawingUnavailable, match="it gave no reason"):
        render("digraph {}")
