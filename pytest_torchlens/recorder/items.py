"""What is tracked."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from pytest_torchlens.recorder.recorder_options import check_flags
from pytest_torchlens.records.near import nearest

VIEWS = ("auto", "heatmap", "channels", "histogram", "pca", "square")
WHOLE_BATCH = ("histogram", "pca", "square")
"""Views that want more than one sample of a batch."""

Transform = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Drawing:
    """How what is tracked is drawn, and what else is done with it.

    Attributes
    ----------
    view : str
        One of `VIEWS`; ``auto`` goes by the shape.
    transform : callable, optional
        Applied to the tensor when it is read, in the training's process.
    callback : callable, optional
        Called with each frame in the process beside: ``callback(name, step, values)``.
    video : bool
        Whether there is a video.
    """

    view: str = "auto"
    transform: Transform | None = None
    callback: Callable[..., Any] | None = None
    video: bool = True

    @classmethod
    def of(cls, given: dict[str, Any]) -> Drawing:
        """Return what was given, checked.

        Raises
        ------
        TypeError
            If there is no such word, `transform` is no function, or `video` neither True nor False.
        ValueError
            If there is no such view, or another process cannot find the callback.
        """
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise TypeError(f"nothing of a drawing is called {name!r}; {nearest(name, known)}")
        return cls(**given)

    def __post_init__(self) -> None:
        if self.view not in VIEWS:
            raise ValueError(f"there is no view {self.view!r}; {nearest(str(self.view), VIEWS)}")
        if self.transform is not None and not callable(self.transform):
            raise TypeError(f"transform={self.transform!r}: give a function that takes a tensor and returns one")
        if self.callback is not None:
            where_found(self.callback)
        check_flags(video=self.video)


@dataclass(frozen=True)
class Item:
    """One tensor, followed over the steps.

    Attributes
    ----------
    number : int
        Place in the order of tracking.
    name : str
        Module path, name of the parameter or of the tensor; gradients end in ``.grad``, updates in ``.update``.
    kind : str
        ``output``, ``output gradient``, ``parameter``, ``parameter gradient``, ``update``, ``tensor``,
        ``tensor gradient``.
    drawing : Drawing
        How it is drawn.
    """

    number: int
    name: str
    kind: str
    drawing: Drawing

    @property
    def is_batch(self) -> bool:
        """Whether only the first sample is drawn."""
        return self.kind.startswith("output") and self.drawing.view not in WHOLE_BATCH

    def announcement(self) -> dict[str, Any]:
        """Return what the process beside has to know."""
        return {
            "name": self.name,
            "kind": self.kind,
            "view": self.drawing.view,
            "video": self.drawing.video,
        }

    @property
    def callback(self) -> dict[str, str] | None:
        """Where the process beside finds the callback; None where there is none."""
        return where_found(self.drawing.callback) if self.drawing.callback else None


def where_found(callback: Callable[..., Any]) -> dict[str, str]:
    """Return where another process finds a function or a class.

    Raises
    ------
    ValueError
        If it cannot be found there by a name: a lambda, a method, a function within another.
    """
    name = getattr(callback, "__qualname__", "<locals>")
    module = getattr(callback, "__module__", None)
    if not name.isidentifier() or module is None:
        raise ValueError(
            f"callback {callback!r} runs in another process, which has to find it by its name: "
            "give a function or a class from the top level of a file"
        )
    source = inspect.getsourcefile(sys.modules[module]) if module in sys.modules else None
    return {"module": module, "name": name, "file": str(Path(source).resolve()) if source else ""}
