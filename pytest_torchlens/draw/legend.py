"""The picture's own explanation."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_torchlens.draw.theme import Theme
from pytest_torchlens.draw.theme import ink_on


def legend(theme: Theme, *, compares: bool, gradients: bool, writes: bool) -> str:
    """Return a table of the visual code in Graphviz's HTML.

    Parameters
    ----------
    theme
        The picture's colours.
    compares
        Whether the picture shows in what two passes differ.
    gradients
        Whether it shows where gradients flowed.
    writes
        Whether it has arrows of writes.
    """
    rows = "".join(_rows(theme, compares, gradients, writes))
    look = f'BORDER="1" COLOR="{theme.box}" CELLBORDER="0" CELLSPACING="4"'
    return f"<<TABLE {look}><TR><TD><B>Legend</B></TD></TR>{rows}</TABLE>>"


def _rows(theme: Theme, compares: bool, gradients: bool, writes: bool) -> Iterator[str]:
    yield _row(theme, theme.input, "input of the model")
    yield _row(theme, theme.output, "output of the model")
    yield _row(theme, theme.params, "has trainable parameters")
    yield _row(theme, theme.plain, "oval: function of its own", style="rounded")
    yield _row(theme, theme.plain, "box: module of one operation")
    yield _row(theme, theme.plain, "double box: module drawn as one node", border=3)
    yield _row(theme, theme.plain, "dashed: tensor made inside the model", style="dashed")
    yield _row(theme, theme.buffer, "buffer or constant")
    yield _row(theme, theme.bool, "truth value that was asked for; IF: what leads to it")
    if writes:
        yield _row(theme, theme.background, "dotted arrow: written into another's tensor", style="dotted")
    if gradients:
        yield _row(theme, theme.background, "blue arrow: gradient", line=theme.gradient)
    if compares:
        yield _row(theme, theme.added, "+ only in the second")
        yield _row(theme, theme.removed, "− only in the first")
        yield _row(theme, theme.changed, "~ differs")


def _row(theme: Theme, fill: str, text: str, *, style: str = "", border: int = 1, line: str = "") -> str:
    look = f'BORDER="{border}" COLOR="{line or theme.line}" BGCOLOR="{fill}"' + (f' STYLE="{style}"' if style else "")
    ink = line or ink_on(fill, theme)
    return f'<TR><TD {look}><FONT COLOR="{ink}" POINT-SIZE="10">{text}</FONT></TD></TR>'
