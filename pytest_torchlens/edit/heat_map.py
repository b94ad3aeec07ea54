"""Draws numbers in rows and columns as an SVG picture."""

from __future__ import annotations

import html
import math
from pathlib import Path
from typing import Any

from pytest_torchlens.records import write_atomically

_LOW, _MIDDLE, _HIGH = (33, 102, 172), (247, 247, 247), (230, 97, 1)
"""Blue, white and orange: readers who cannot see red or green can tell them apart."""
_WIDTH, _HEIGHT, _GLYPH = 56, 26, 7.2


class HeatMap:
    """A picture of numbers; a notebook shows it.

    Parameters
    ----------
    title
        What the numbers are.
    places
        Row and column of each number; what has the same text and is not equal is another row or column.
    values
        The numbers; NaN leaves a cell without colour.
    notes
        What each is, in words: shown when the mouse is over the cell.
    signed
        Whether 0 is white, and numbers below it blue; otherwise the lowest number is white.
    """

    def __init__(
        self,
        title: str,
        places: list[tuple[Any, Any]],
        values: list[float],
        notes: list[str],
        *,
        signed: bool = True,
    ) -> None:
        self.title = title
        self.cells = dict(zip(places, zip(values, notes, strict=True), strict=True))
        if len(self.cells) < len(places):
            twice = next(place for place in places if places.count(place) > 1)
            raise ValueError(f"heat map: two numbers are at {twice!r:.80}: name each row and column once")
        self.rows = list(dict.fromkeys(row for row, _ in places))
        self.columns = list(dict.fromkeys(column for _, column in places))
        finite = [value for value in values if math.isfinite(value)]
        self._low = 0.0 if signed else min(finite, default=0.0)
        self._reach = max((abs(value - self._low) for value in finite), default=0.0) or 1.0

    @property
    def svg(self) -> str:
        """The picture as SVG text."""
        left = 12 + max(len(str(row)) for row in self.rows) * _GLYPH
        lean = max(len(str(column)) for column in self.columns) * _GLYPH * 0.71
        top = 34 + lean
        width = max(left + len(self.columns) * _WIDTH + lean + 8, 16 + len(self.title) * _GLYPH * 1.2)
        height = top + len(self.rows) * _HEIGHT + 12
        parts = [self._row(row, 6.0, left, top + place * _HEIGHT) for place, row in enumerate(self.rows)]
        parts += [
            self._column(column, left + (place + 0.5) * _WIDTH, top - 6) for place, column in enumerate(self.columns)
        ]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="Helvetica, Arial, sans-serif" font-size="12">'
            f'<rect width="100%" height="100%" fill="#ffffff"/>'
            f'<text x="6" y="18" font-size="14" fill="#000000">{html.escape(self.title)}</text>{"".join(parts)}</svg>'
        )

    def save(self, path: Path | str) -> Path:
        """Write the picture to a file and return its path.

        Parameters
        ----------
        path
            A file that ends in ``.svg``; it is replaced.

        Raises
        ------
        ValueError
            If it ends otherwise.
        """
        file = Path(path)
        if file.suffix.lower() != ".svg":
            raise ValueError(f"heat map: expected a file that ends in .svg, got {file.name!r}")
        return write_atomically(file, self.svg)

    def _repr_html_(self) -> str:
        return self.svg

    def _row(self, row: Any, left: float, right: float, top: float) -> str:
        text = f'<text x="{left}" y="{top + 17:.1f}" fill="#000000">{html.escape(str(row))}</text>'
        cells = [
            self._cell(*self.cells[row, column], right + place * _WIDTH, top)
            for place, column in enumerate(self.columns)
            if (row, column) in self.cells
        ]
        return text + "".join(cells)

    def _cell(self, value: float, note: str, left: float, top: float) -> str:
        fill, text = self._colours(value)
        return (
            f'<g><title>{html.escape(note)}</title><rect x="{left:.1f}" y="{top:.1f}" width="{_WIDTH - 1}" '
            f'height="{_HEIGHT - 1}" fill="{fill}"/><text x="{left + _WIDTH / 2:.1f}" y="{top + 17:.1f}" '
            f'text-anchor="middle" font-size="11" fill="{text}">{_number(value)}</text></g>'
        )

    def _column(self, column: Any, left: float, bottom: float) -> str:
        place = f"{left:.1f} {bottom:.1f}"
        return f'<text transform="translate({place}) rotate(-45)" fill="#000000">{html.escape(str(column))}</text>'

    def _colours(self, value: float) -> tuple[str, str]:
        """Return the colours of a cell and of the text in it."""
        if not math.isfinite(value):
            return "#dddddd", "#000000"
        part = max(-1.0, min(1.0, (value - self._low) / self._reach))
        end = _HIGH if part > 0 else _LOW
        mixed = [round(middle + (to - middle) * abs(part)) for middle, to in zip(_MIDDLE, end, strict=True)]
        dark = part < -0.6  # noqa: PLR2004 - where black on blue is hard to read
        return "#{:02x}{:02x}{:02x}".format(*mixed), "#ffffff" if dark else "#000000"


def _number(value: float) -> str:
    return f"{value:.2f}" if 0.1 <= abs(value) < 1000 or value == 0 else f"{value:.2g}"  # noqa: PLR2004 - short
