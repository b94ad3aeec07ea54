"""Layout by Graphviz, wherever this machine has it."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError
from importlib.metadata import files
from pathlib import Path

FORMATS = ("svg", "pdf", "png", "dot")
"""Endings of drawings' files."""

_VARIABLE = "PYTEST_LENS_DOT"
_WHEEL = "graphviz-pure"
_INSTALL_DOT = "install Graphviz (https://graphviz.org/download)"
_INSTALL = f"{_INSTALL_DOT} or run: pip install 'pytest-torchlens[dot]'; {_VARIABLE} may name the program instead"


class DrawingUnavailable(RuntimeError):  # noqa: N818 - it says a state, not a mistake
    """There is no drawing, and the message says why and what to do; all else goes on."""


class LayoutStopped(DrawingUnavailable):
    """The layout took longer than it may; one of fewer nodes may not."""


def render(dot: str, format: str = "svg", *, timeout: float = 60.0) -> bytes:  # noqa: A002 - Graphviz's word
    """Return the drawing of a DOT source.

    The program is the one that ``PYTEST_LENS_DOT`` names, else ``dot`` on the PATH, else that of the package
    graphviz-pure.

    Parameters
    ----------
    dot
        DOT source.
    format
        Any that the program knows: ``"svg"``, ``"png"``, ``"pdf"`` (not with graphviz-pure).
    timeout
        Seconds that the layout may take.

    Raises
    ------
    DrawingUnavailable
        If there is no program, or it fails; `LayoutStopped` if it takes longer than `timeout`.
    """
    program = _program()
    if format == "pdf" and Path(program).stem == _WHEEL:
        raise DrawingUnavailable(f"no PDF: {_WHEEL} makes none; {_INSTALL_DOT}, or draw .svg or .png")
    try:
        done = subprocess.run(  # noqa: S603 - the program is the user's own Graphviz
            [program, f"-T{format}"], input=dot.encode(), capture_output=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise LayoutStopped(
            f"no drawing: {program} was stopped after {timeout:g} s; draw fewer nodes (max_nodes, vis_nesting_depth)"
        ) from None
    except OSError as error:
        raise DrawingUnavailable(f"no drawing: {program} does not start ({error}); {_INSTALL}") from None
    if done.returncode:
        raise DrawingUnavailable(f"no drawing: {program} -T{format} failed: {_first_line(done.stderr)}")
    if not done.stdout.strip():
        raise DrawingUnavailable(f"no drawing: {program} -T{format} gave nothing; is it Graphviz? {_INSTALL}")
    return done.stdout


def _program() -> str:
    found = os.environ.get(_VARIABLE) or shutil.which("dot") or _from_wheel() or shutil.which(_WHEEL)
    if found is None:
        raise DrawingUnavailable(f"no drawing: Graphviz is not on this machine; {_INSTALL}")
    return found


def _from_wheel() -> str | None:
    """Find the wheel's program also where the environment's folder of scripts is not on the PATH."""
    try:
        scripts = [file for file in files(_WHEEL) or () if file.stem == _WHEEL]
    except PackageNotFoundError:
        return None
    return next((str(Path(str(script.locate())).resolve()) for script in scripts), None)


def _first_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[0] if lines else "it gave no reason"
