"""The picture's own explanation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_torchlens.draw.theme import Theme
from pytest_torchlens.draw.theme import ink_on

if TYPE_CHECKING:
    from pytest_torchlens.draw.picture import Picture


def legend(theme: Theme, picture: Picture, *, compares: bool) -> str:
    """Return a table of the visual code in Graphviz's HTML.

    Parameters
    ----------
    theme
        The picture's colours.
    picture
        What is explained: signs that it has not are left out, but for those of every picture.
    compares
        Whether it shows in what two passes differ.
    """
    rows = "".join(
        [*_of_all_pictures(theme), *_of_some_pictures(theme, picture), *(_of_marks(theme) if compares else ())]
    )
    look = f'BORDER="1" COLOR="{theme.box}" CELLBORDER="0" CELLSPACING="4"'
    return f"<<TABLE {look}><TR><TD><B>Legend</B></TD></TR>{rows}</TABLE>>"


def _of_all_pictures(theme: Theme) -> Iterator[str]:
    yield _row(theme, theme.input, "input of the model")
    yield _row(theme, theme.output, "output of the model")
    yield _row(theme, theme.params, "has trainable parameters")
    yield _row(theme, theme.plain, "oval: function of its own", style="rounded")
    yield _row(theme, theme.plain, "box: module of one operation")
    yield _row(theme, theme.plain, "double box: module drawn as one node", border=3)
    yield _row(theme, theme.plain, "dashed: tensor made inside the model", style="dashed")
    yield _row(theme, theme.buffer, "buffer or constant")
    yield _row(theme, theme.bool, "truth value that was asked for; IF: what leads to it")


def _of_some_pictures(theme: Theme, picture: Picture) -> Iterator[str]:
    """Yield rows for what only some pictures have."""
    if any(node.is_stub for node in picture.nodes):
        yield _row(theme, theme.plain, "dotted outline: beside what is drawn", style="dotted")
    if any(len(run) > 1 for run in picture.runs.values()):
        yield _row(theme, theme.background, "thick box, × 3: three equal modules in a row", style="rounded", border=3)
    if picture.options.is_rolled:
        yield _row(theme, theme.plain, "(x3): three passes; Out 1, In 2: from the first into the second")
    if any(arrow.through_write for arrow in picture.arrows):
        yield _row(theme, theme.background, "dotted arrow: written into another's tensor", style="dotted")
    if picture.gradients:
        yield _row(theme, theme.background, "blue arrow: gradient", line=theme.gradient)


def _of_marks(theme: Theme) -> Iterator[str]:
    yield _row(theme, theme.added, "+ only in the second; so thick arrows")
    yield _row(theme, theme.removed, "− only in the first; so thick dashed arrows")
    yield _row(theme, theme.changed, "~ differs")


def _row(theme: Theme, fill: str, text: str, *, style: str = "", border: int = 1, line: str = "") -> str:
    look = f'BORDER="{border}" COLOR="{line or theme.line}" BGCOLOR="{fill}"' + (f' STYLE="{style}"' if style else "")
    ink = line or ink_on(fill, theme)
    return f'<TR><TD {look}><FONT COLOR="{ink}" POINT-SIZE="10">{text}</FONT></TD></TR>'
