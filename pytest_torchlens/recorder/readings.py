"""What was read in the step that is going on."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_torchlens.recorder.series import Row
from pytest_torchlens.recorder.statistics import NOT_MEASURED
from pytest_torchlens.recorder.statistics import Measured

if TYPE_CHECKING:
    import torch

    from pytest_torchlens.recorder.items import Item


@dataclass
class Reading:
    """One tensor, measured when it was there.

    Attributes
    ----------
    item : Item
        What it is of.
    call : int
        Which of its item's in this step, from 1.
    shape : tuple of int
        Shape of the tensor.
    dtype : str
        Its dtype, such as ``float32``.
    measured : Measured
        Its statistics.
    scale : float
        What the numbers are to be divided by: a gradient of a scaled loss.
    sample : torch.Tensor or None
        What is to be drawn, where it could not be sent at once.
    ratio, dead : float
        As in `Row`.
    """

    item: Item
    call: int
    shape: tuple[int, ...]
    dtype: str
    measured: Measured
    scale: float = 1.0
    sample: torch.Tensor | None = None
    ratio: float = NOT_MEASURED
    dead: float = NOT_MEASURED

    def row(self, step: int) -> Row:
        """Return it as a row of a series; waits for the device."""
        found = self.measured.statistics().divided(self.scale)
        return Row(**vars(found), step=step, call=self.call, ratio=self.ratio, dead=self.dead)


class Readings:
    """The readings of one step, from whichever thread they come."""

    def __init__(self) -> None:
        self._calls: Counter[int] = Counter()
        self._lock = threading.Lock()
        self.all: list[Reading] = []

    def next_call(self, item: Item) -> int:
        """Count a tensor of an item."""
        with self._lock:
            self._calls[item.number] += 1
            return self._calls[item.number]

    def clear(self) -> None:
        """Forget them: a new step begins."""
        self._calls.clear()
        self.all.clear()
