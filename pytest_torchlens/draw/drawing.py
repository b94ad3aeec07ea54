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
        If `vis_opt` is none of the three, `nesting_depth` is below 1, or there can be no file at `path`.
    TypeError
        If `nesting_depth` is no number, or `path` no path.
    """

    vis_opt: VisOpt
    nesting_depth: int | None
    path: Path | str

    def __post_init__(self) -> None:
        """Check before anything runs."""
        if self.vis_opt not in get_args(VisOpt):
            raise ValueError(f"vis_opt is {self.vis_opt!r}; it can be {', '.join(map(repr, get_args(VisOpt)))}")
        if self.vis_opt != "none":
            self._check_depth()
            self._check_path()

    def _check_depth(self) -> None:
        depth: object = self.nesting_depth
        if depth is None:
            return
        if not isinstance(depth, int) or isinstance(depth, bool):
            raise TypeError(f"vis_nesting_depth is {depth!r:.80}; it takes a whole number, or None for all levels")
        if depth < 1:
            raise ValueError(f"vis_nesting_depth is {depth}; the smallest picture has 1")

    def _check_path(self) -> None:
        if not isinstance(self.path, str | Path):
            raise TypeError(f"vis_outpath is {self.path!r:.80}; it takes the path of a file, as in 'graph.svg'")
        path = Path(self.path)
        if path.is_dir() or not path.parent.is_dir():
            why = "is a folder" if path.is_dir() else "is in no folder that is there"
            raise ValueError(f"vis_outpath {str(self.path)!r} {why}; name a file in one, as in 'graph.svg'")

    def draw(self, history: ModelHistory) -> None:
        """Write the file; where Graphviz cannot make it, warn."""
        if self.vis_opt == "none":
            return
        record = history.record() if self.vis_opt == "unrolled" else rolled(history.record())
        dot = dot_source(record, nesting_depth=self.nesting_depth)
        path = Path(self.path)
        try:
            ending = path.suffix.removeprefix(".") or "svg"
            path.write_bytes(dot.encode() if ending == "dot" else render(dot, ending))
        except DrawingUnavailable as error:
            warnings.warn(str(error), stacklevel=3)
        except OSError as error:
            warnings.warn(f"no drawing: {path} cannot be written ({error.strerror})", stacklevel=3)
