"""Readers who see no red, no green, no blue, or no colour at all."""

from __future__ import annotations

import itertools

import pytest

from pytest_torchlens.draw import THEMES
from pytest_torchlens.draw.theme import contrast
from pytest_torchlens.draw.theme import ink_on
from pytest_torchlens.draw.theme import mix

FILLS = ("input", "output", "params", "bool", "plain", "added", "removed", "changed", "edited")
# What a dichromat sees of linear red, green and blue: Viénot, Brettel and Mollon, 1999; the last for print in grey.
SEEN = {
    "no red": ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0)),
    "no green": ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0)),
}


def seen(colour, matrix):
    """Return a colour's place in CIE Lab as a dichromat sees it."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    red, green, blue = (sum(a * b for a, b in zip(row, linear, strict=True)) for row in matrix)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(one, other, matrix):
    return sum((a - b) ** 2 for a, b in zip(seen(one, matrix), seen(other, matrix), strict=True)) ** 0.5


@pytest.mark.parametrize("eyes", SEEN)
@pytest.mark.parametrize("name", THEMES)
def test_fills_differ_to_all_eyes(name, eyes):
    theme = THEMES[name]
    close = [
        (one, other)
        for one, other in itertools.combinations(FILLS, 2)
        if distance(getattr(theme, one), getattr(theme, other), SEEN[eyes]) < 4
    ]
    assert close == []


@pytest.mark.parametrize("name", THEMES)
def test_text_is_readable_on_every_fill(name):
    theme = THEMES[name]
    fills = [theme.background, *(getattr(theme, fill) for fill in (*FILLS, "buffer")), *theme.scale]
    fills += [mix(theme.scale, step / 50) for step in range(51)]
    assert min(contrast(ink_on(fill, theme), fill) for fill in fills) >= 4.5
    assert contrast(theme.gradient, theme.background) >= 4.5


@pytest.mark.parametrize("name", THEMES)
def test_a_scale_goes_one_way_in_lightness(name):
    theme = THEMES[name]
    lightness = [contrast(mix(theme.scale, step / 20), "#000000") for step in range(21)]
    assert sorted(lightness) in (lightness, lightness[::-1])


def test_colours_are_mixed_along_a_scale():
    scale = ("#000000", "#202020", "#ff0000")
    assert [mix(scale, share) for share in (-1, 0, 0.25, 0.5, 1, 2)] == [
        *("#000000", "#000000", "#101010", "#202020", "#ff0000", "#ff0000")
    ]
    assert mix(("#123456",), 0.7) == "#123456"
