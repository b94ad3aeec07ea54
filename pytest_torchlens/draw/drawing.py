"""A history's drawing in a file, as the option ``vis_opt`` asks for it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Literal
from typing import get_args

from pytest_torchlens.draw.dot import dot_source
from pytest_torchlens.draw.engine import DrawingUnavailable
from pytest_torchlens.draw.engine import render
from pytest_torchlens.draw.rolled import rolled

if TYPE_CHECKING:
    from pytest_torchlens.history import ModelHistory

VisOpt = Literal["none", "unrolled", "rolled"]


@dataclass(frozen=True)
class Drawing:
    """What is drawn, and where to.

    Raises
    ------
    ValueError
        If `vis_opt` is none of the three.
    """

    vis_opt: VisOpt
    nesting_depth: int | None
    path: Path

    def __post_init__(self) -> None:
        """Check before anything runs."""
        if self.vis_opt not in get_args(VisOpt):
            raise ValueError(f"vis_opt is {self.vis_opt!r}; it can be {', '.join(map(repr, get_args(VisOpt)))}")

    def draw(self, history: ModelHistory) -> None:
        """Write the file; where Graphviz cannot make it, warn."""
        if self.vis_opt == "none":
            return
        record = history.record() if self.vis_opt == "unrolled" else rolled(history.record())
        dot = dot_source(record, nesting_depth=self.nesting_depth)
        if self.path.suffix == ".dot":
            self.path.write_text(dot, encoding="utf-8")
            return
        try:
            self.path.write_bytes(render(dot, self.path.suffix.removeprefix(".") or "svg"))
        except DrawingUnavailable as error:
            warnings.warn(str(error), stacklevel=3)
