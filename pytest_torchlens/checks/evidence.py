"""What a failed check accuses, in the runs that it compared: `pytest-lens repro` makes a file of it."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING
from typing import Any

import torch

from pytest_torchlens.capture import Recording
from pytest_torchlens.history import ModelHistory

if TYPE_CHECKING:
    from pytest_torchlens.checks.side_by_side import Fit


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """An operation of a recorded pass.

    Attributes
    ----------
    history
        The plain pass.
    number
        The number of the accused call.
    alive
        What the recordings need alive: models on whose copies they ran.
    """

    history: ModelHistory
    number: int
    alive: Any = None

    def is_of(self, operation: str) -> bool:
        """Return whether a failure at this operation accuses it; a check may judge, and drop, several failures."""
        return self.history.label(self.number) == operation


@dataclass(frozen=True, kw_only=True)
class TwoRuns(Evidence):
    """It gives something else when the model is run another way.

    Attributes
    ----------
    other
        The pass that ran another way.
    way
        How it ran: ``"in a batch of 4"``.
    fit
        Finds in its tensors what corresponds to those of the plain pass.
    """

    other: ModelHistory
    way: str
    fit: Fit


@dataclass(frozen=True, kw_only=True)
class RaisedAnotherWay(Evidence):
    """It raises when the model is run another way.

    Attributes
    ----------
    recording
        The other pass up to there: the same calls as before it in the plain pass.
    way
        How it ran.
    fit
        As of `TwoRuns`.
    """

    recording: Recording
    way: str
    fit: Fit


@dataclass(frozen=True, kw_only=True)
class MixedRows(Evidence):
    """An element of its result depends on two rows of the batch.

    Attributes
    ----------
    changes
        Inputs of the model by path: first with other rows after the first, then with another first row.
    """

    changes: Sequence[Mapping[str, torch.Tensor]]


@dataclass(frozen=True, kw_only=True)
class ReachedPositions(Evidence):
    """Its result changes at some positions of a sequence when the inputs of the model change at others.

    Attributes
    ----------
    place
        Which of its results that is.
    inside
        In the shape of the result: whether an element is at a position that must not change.
    changed
        Inputs of the model by path, with other values at the other positions.
    through
        Numbers of the calls without positions that the change came through, if it did.
    """

    place: int
    inside: torch.Tensor
    changed: Mapping[str, torch.Tensor]
    through: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class LowPrecision(Evidence):
    """It errs in low precision by more than its type explains.  The history is that of the pass in low precision.

    Attributes
    ----------
    dtype
        The type.
    least
        The smallest error that shows it, as a part of the RMS; 0 for any that one rounding does not explain.
    """

    dtype: torch.dtype
    least: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Unsteady(Evidence):
    """It gives something else in a second pass.  Both passes have their activations saved.

    Attributes
    ----------
    other, other_number
        The second pass, and its call.
    reseeded
        Whether the second pass began with another seed.
    """

    other: ModelHistory
    other_number: int
    reseeded: bool = False


@dataclass(frozen=True, kw_only=True)
class BadGradient(Evidence):
    """Its backward gives no gradient, or a useless one.

    Attributes
    ----------
    state
        ``"missing"``, ``"not finite"`` or ``"zero"``.
    gradients
        The gradient that came to each of its outputs; None where none came.
    """

    state: str
    gradients: Sequence[torch.Tensor | None] = field(default=())


@dataclass(frozen=True, kw_only=True)
class CompiledPiece(Evidence):
    """A run of operations, of which it is the last, gives something else when it is compiled.

    Attributes
    ----------
    numbers
        The numbers of its calls.
    options
        Arguments of `torch.compile`.
    gradients
        Whether its gradients differ, rather than its results.
    """

    numbers: Sequence[int]
    options: Mapping[str, Any]
    gradients: bool = False

    def is_of(self, operation: str) -> bool:
        """Return whether a failure at this operation, one of the piece, accuses it."""
        return operation in map(self.history.label, self.numbers)


@dataclass(frozen=True, kw_only=True)
class Exported(Evidence):
    """Its value is none of those that the exported program computes."""
