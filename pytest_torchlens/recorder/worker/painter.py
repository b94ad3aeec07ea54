"""Paints a frame: name, step, statistics and the picture."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from PIL import Image
from PIL import ImageDraw
from PIL import ImageFont

from pytest_torchlens.recorder.worker.pixels import BACK
from pytest_torchlens.recorder.worker.pixels import View
from pytest_torchlens.recorder.worker.pixels import new_view

LINE = 15
HEAD = 3 * LINE + 6
FOOT = LINE + 4
INK = (236, 239, 242)
LONGEST = 100
SHORTEST = 4
"""Minimum number of letters of a name that are shown."""
QUIET = (160, 169, 178)
ALARM = (255, 120, 110)


class Painter:
    """Paints the frames of one item.

    Parameters
    ----------
    name, kind
        Name and kind of the item.
    view
        Name of the view.
    size
        Width and height in pixels.
    """

    def __init__(self, name: str, kind: str, view: str, size: tuple[int, int]) -> None:
        self._name, self._kind, self._view_name = name, kind, view
        self._width, self._height = size
        self._view: View | None = None
        self._bold = ImageFont.load_default(13)
        self._plain = ImageFont.load_default(11)

    def paint(self, values: np.ndarray[Any, Any], message: dict[str, Any]) -> Image.Image:
        """Return one frame."""
        if self._view is None:
            self._view = new_view(self._view_name, self._kind, values.shape)
        frame = Image.new("RGB", (self._width, self._height), BACK)
        picture = self._view.draw(values, self._width - 12, self._height - HEAD - FOOT)
        frame.paste(Image.fromarray(picture), (6, HEAD))
        self._write(ImageDraw.Draw(frame), message)
        return frame

    def _write(self, draw: ImageDraw.ImageDraw, message: dict[str, Any]) -> None:
        facts = message["facts"]
        shape = " x ".join(map(str, message["full"])) or "one number"
        step = f"step {message['step']}"
        draw.text((6, 3), self._fit_name(self._name, step), INK, self._bold)
        draw.text((self._width - 6, 3), step, INK, self._bold, anchor="ra")
        draw.text((6, 3 + LINE), self._truncate(f"{self._kind}, {shape}, {message['dtype']}"), QUIET, self._plain)
        numbers = ", ".join(
            f"{name} {facts[name]:.4g}" for name in ("mean", "std", "min", "max") if math.isfinite(facts[name])
        )
        draw.text((6, 3 + 2 * LINE), numbers, QUIET, self._plain)
        if facts["nans"]:
            draw.text((self._width - 6, 3 + 2 * LINE), f"{facts['nans']:,} not finite", ALARM, self._plain, anchor="ra")
        foot = self._height - FOOT + 3
        if self._view:
            draw.text((6, foot), self._view.caption(), QUIET, self._plain)
        draw.text((self._width - 6, foot), message["note"][:40], INK, self._plain, anchor="ra")

    def _fit_name(self, name: str, beside: str) -> str:
        name = name[-LONGEST:]
        room = self._width - 24 - self._bold.getlength(beside)
        while len(name) > SHORTEST and self._bold.getlength(name) > room:
            name = "…" + name[2:]
        return name

    def _truncate(self, text: str) -> str:
        while self._plain.getlength(text) > self._width - 12:
            text = text[:-2] + "…"
        return text
