"""Defines the colours and fonts of a picture."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Theme:
    """Colours, each as ``"#rrggbb"``, and the font.

    Readers who cannot see red or green can distinguish the colours of the package's themes (`THEMES`), and a shape or a
    word repeats what each colour says.  `dataclasses.replace` makes a theme of your own from one of them.
    """

    background: str
    text: str
    line: str
    """Arrows and the outlines of nodes."""
    box: str
    """Outlines of modules' boxes."""
    input: str
    """Fill of the model's inputs."""
    output: str
    """Fill of its outputs."""
    params: str
    """Fill of operations with trainable parameters."""
    buffer: str
    """Fill of buffers and constants."""
    bool: str
    """Fill of truth values that a condition read."""
    plain: str
    """Fill of all other operations."""
    gradient: str
    """Arrows of the backward pass."""
    added: str
    """Fill of operations that only the second of two histories has."""
    removed: str
    """Fill of operations that only the first has."""
    changed: str
    """Fill of operations that differ between the two."""
    scale: tuple[str, ...]
    """Fills from the lowest value of a metric to the highest; colours between are mixed."""
    edited: str = "#5fd0c5"
    """Fill of operations that an edit changed, and, mixed with the text, their outlines and those behind them."""
    font: str = "Helvetica"
    """One name, not a list: graphviz-pure computes text widths only then."""


THEMES = {
    "light": Theme(
        background="#ffffff",
        text="#000000",
        line="#555555",
        box="#888888",
        input="#b7ebc0",
        output="#ff9d96",
        params="#dcdcdc",
        buffer="#f3f3f3",
        bool="#f9dc6c",
        plain="#ffffff",
        gradient="#0b5fd0",
        added="#9fd0ff",
        removed="#ffc48a",
        changed="#e6d3f7",
        edited="#3fd0c9",
        scale=("#fffbe6", "#fdd07a", "#f08c4b", "#cf5267", "#8a3d8f"),
    ),
    "dark": Theme(
        background="#1c2024",
        text="#f2f4f6",
        line="#aab2ba",
        box="#7c858e",
        input="#1f6a3b",
        output="#8f2b33",
        params="#4a5158",
        buffer="#2a2f34",
        bool="#6d5a10",
        plain="#1c2024",
        gradient="#6db3ff",
        added="#1c4f82",
        removed="#b0702a",
        changed="#9a7fd0",
        edited="#0a6a80",
        scale=("#22303c", "#1f4a63", "#24676f", "#3d7f5b", "#6f8a2f"),
    ),
    "print": Theme(
        background="#ffffff",
        text="#000000",
        line="#000000",
        box="#000000",
        input="#e4f4e4",
        output="#b8b8b8",
        params="#d9d9d9",
        buffer="#f5f5f5",
        bool="#fff0a8",
        plain="#ffffff",
        gradient="#0040a0",
        added="#d6e9ff",
        removed="#ffe0bd",
        changed="#cdb4e6",
        edited="#66e0ff",
        scale=("#ffffff", "#e0e0e0", "#c2c2c2", "#a4a4a4", "#868686"),
    ),
}
"""Themes by name."""


def mix(scale: tuple[str, ...], share: float) -> str:
    """Return the colour at `share` (0 to 1) of a scale of one colour or more."""
    place = min(max(share, 0.0), 1.0) * (len(scale) - 1)
    at = min(int(place), len(scale) - 2) if len(scale) > 1 else 0
    below, above = _channels(scale[at]), _channels(scale[min(at + 1, len(scale) - 1)])
    mix = (round(low + (high - low) * (place - at)) for low, high in zip(below, above, strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mix)


def edit_line(theme: Theme) -> str:
    """Return the colour of the outlines and arrows of edits."""
    return mix((theme.edited, theme.text), 0.4)


def ink_on(fill: str, theme: Theme) -> str:
    """Return the colour of text on `fill`: the theme's, or black or white if that is hard to read."""
    return max((theme.text, "#000000", "#ffffff"), key=lambda ink: (contrast(ink, fill) >= READABLE, ink == theme.text))


READABLE = 4.5
"""Contrast that WCAG asks for."""


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG defines it: 1 (none) to 21 (black on white)."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    red, green, blue = (_linear(channel / 255) for channel in _channels(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(channel: float) -> float:
    """Undo sRGB's gamma."""
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4  # noqa: PLR2004 - the standard's


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
