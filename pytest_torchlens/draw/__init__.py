"""Draws a model from its record."""

from __future__ import annotations

from pytest_torchlens.draw.dot import dot_source
from pytest_torchlens.draw.draw_options import DrawOptions
from pytest_torchlens.draw.draw_options import NestingDepth
from pytest_torchlens.draw.draw_options import VisOpt
from pytest_torchlens.draw.drawing import DrawingUnavailable
from pytest_torchlens.draw.drawing import check_path
from pytest_torchlens.draw.drawing import draw
from pytest_torchlens.draw.drawing import draw_difference
from pytest_torchlens.draw.drawing import render
from pytest_torchlens.draw.drawing import write_drawing
from pytest_torchlens.draw.folds import Fold
from pytest_torchlens.draw.folds import folds
from pytest_torchlens.draw.shown import Drawing
from pytest_torchlens.draw.shown import picture_of
from pytest_torchlens.draw.shown import show
from pytest_torchlens.draw.shown import show_difference
from pytest_torchlens.draw.terminal import graph_text
from pytest_torchlens.draw.text import module_id
from pytest_torchlens.draw.text import node_id
from pytest_torchlens.draw.theme import THEMES
from pytest_torchlens.draw.theme import Theme
from pytest_torchlens.records.options import OptionError

__all__ = [
    "DrawOptions",
    "Drawing",
    "DrawingUnavailable",
    "Fold",
    "NestingDepth",
    "OptionError",
    "THEMES",
    "Theme",
    "VisOpt",
    "check_path",
    "dot_source",
    "draw",
    "draw_difference",
    "folds",
    "graph_text",
    "module_id",
    "node_id",
    "picture_of",
    "render",
    "show",
    "show_difference",
    "write_drawing",
]
