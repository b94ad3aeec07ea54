"""The picture of a model, from its record alone."""

from __future__ import annotations

from pytest_torchlens.draw.dot import dot_source
from pytest_torchlens.draw.drawing import Drawing
from pytest_torchlens.draw.drawing import VisOpt
from pytest_torchlens.draw.engine import DrawingUnavailable
from pytest_torchlens.draw.engine import render
from pytest_torchlens.draw.text import module_id
from pytest_torchlens.draw.text import node_id

__all__ = ["Drawing", "VisOpt", "DrawingUnavailable", "dot_source", "module_id", "node_id", "render"]
