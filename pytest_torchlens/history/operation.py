"""One operation of a history: its record, and the live things that JSON cannot hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from typing import Any
from typing import Protocol

import torch

from pytest_torchlens.history import printing
from pytest_torchlens.history.printing import as_text
from pytest_torchlens.history.printing import corner_of
from pytest_torchlens.history.printing import facts_of_operation
from pytest_torchlens.history.printing import title_of_operation
from pytest_torchlens.history.source import StackFrame
from pytest_torchlens.history.walks import Walks
from pytest_torchlens.records import Operation
from pytest_torchlens.records import close


class Behind(Protocol):
    """What an operation looks up when asked: tensors, source, its place in the graph."""

    @property
    def walks(self) -> Walks:
        """Return the graph."""

    def activation(self) -> torch.Tensor | None:
        """Return the saved tensor."""

    def gradients(self) -> dict[int, torch.Tensor]:
        """Return the gradient of each backward pass that reached the tensor, by the number of the pass."""

    def stack(self) -> tuple[StackFrame, ...]:
        """Return the code positions from the model's forward down to the call."""


@dataclass(frozen=True, kw_only=True, repr=False)
class LoggedOperation(Operation):
    """An operation with its activation, function and arguments; printing it gives a summary."""

    behind: Behind = field(compare=False, repr=False)
    func_applied: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    """The function called; None for inputs, outputs, buffers and constants, and in a loaded history."""
    creation_args: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    """Positional arguments of the call, with the label of the operation, or the address of the parameter, in place
    of each tensor; not saved to disk."""
    creation_kwargs: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Keyword arguments of the call, in the same way."""
    func_rng_states: torch.Tensor | None = field(default=None, compare=False, repr=False)
    """State of the generator before the call, if it drew random numbers; not saved to disk."""
    operations_total: int = field(default=0, compare=False, repr=False)
    """Inputs, operations and outputs in the whole history."""

    def __getattr__(self, name: str) -> Any:
        """Say which attribute was probably meant."""
        if hasattr(type(self), name):  # a property failed: let its own error be seen
            return getattr(type(self), name).__get__(self)
        hint = "" if name.startswith("_") else close(name, [*self.__dataclass_fields__, *dir(type(self))])
        raise AttributeError(f"an operation has no attribute {name!r}{hint and '; '}{hint}")

    @property
    def tensor_contents(self) -> torch.Tensor | None:
        """The activation as it was when made, or what the saving options made of it; None if it was not saved."""
        return self.behind.activation()

    @property
    def gradients(self) -> dict[int, torch.Tensor]:
        """Gradients by the number of the backward pass, from 1; needs ``save_gradients=True``."""
        return self.behind.gradients()

    @property
    def grad_contents(self) -> torch.Tensor | None:
        """Gradient of the last backward pass that reached the tensor; None if none did."""
        return next(reversed(self.gradients.values()), None)

    @property
    def grad_shape(self) -> tuple[int, ...] | None:
        """Shape of that gradient."""
        gradient = self.grad_contents
        return None if gradient is None else tuple(gradient.shape)

    @property
    def has_saved_grad(self) -> bool:
        """Whether a backward pass reached the tensor."""
        return bool(self.gradients)

    @property
    def func_call_stack(self) -> tuple[StackFrame, ...]:
        """Code positions from the model's forward down to the call: file, line, function, and the lines around."""
        return self.behind.stack()

    @property
    def orig_ancestors(self) -> tuple[str, ...]:
        """Ancestors that have no parents: inputs, buffers, constants, tensors made inside the model."""
        return self.behind.walks.original_ancestors(self.label)

    @property
    def sibling_layers(self) -> tuple[str, ...]:
        """Layers that share a parent with it."""
        return self.behind.walks.siblings(self.label)

    @property
    def spouse_layers(self) -> tuple[str, ...]:
        """Layers that share a child with it."""
        return self.behind.walks.spouses(self.label)

    @property
    def min_distance_from_input(self) -> int | None:
        """Fewest steps along the edges from an input; None if it does not descend from one."""
        return self.behind.walks.distance_from_input(self.label)[0]

    @property
    def max_distance_from_input(self) -> int | None:
        """Most steps along the edges from an input; None if it does not descend from one."""
        return self.behind.walks.distance_from_input(self.label)[1]

    @property
    def min_distance_from_output(self) -> int | None:
        """Fewest steps along the edges to an output; None if it leads to none."""
        return self.behind.walks.distance_from_output(self.label)[0]

    @property
    def max_distance_from_output(self) -> int | None:
        """Most steps along the edges to an output; None if it leads to none."""
        return self.behind.walks.distance_from_output(self.label)[1]

    @property
    def output_descendants(self) -> tuple[str, ...]:
        """The model's outputs that are computed from it."""
        return self.behind.walks.output_descendants(self.label)

    @property
    def internally_initialized_parents(self) -> tuple[str, ...]:
        """Parents that were made inside the model from no other tensor."""
        return self.behind.walks.initialized_parents(self.label)

    @property
    def internally_initialized_ancestors(self) -> tuple[str, ...]:
        """Ancestors that were made inside the model from no other tensor."""
        return self.behind.walks.initialized_ancestors(self.label)

    @property
    def internally_initialilized_ancestors(self) -> tuple[str, ...]:
        """The same under the table's spelling."""
        return self.internally_initialized_ancestors

    def __reduce__(self) -> Any:
        """Refuse to be pickled or copied with the whole history that hangs on it."""
        raise TypeError(f"{self.label} cannot be pickled or copied: take plain(), its record, or tensor_contents")

    def plain(self) -> Operation:
        """Return the record alone, ready for JSON."""
        return Operation(**fields_by_name(self))

    def __str__(self) -> str:
        """Return the summary: tensor, parameters, parents, children, function, modules, time, look-up keys."""
        return as_text(title_of_operation(self), facts_of_operation(self), corner_of(self))

    def __repr__(self) -> str:
        """Return one line."""
        return f"<{self.label}: {self.tensor_dtype} {self.tensor_shape}>"

    def _repr_html_(self) -> str:
        """Return the summary as a table for notebooks."""
        return printing.of_operation(self)


def fields_by_name(operation: Operation) -> dict[str, Any]:
    """Return what an operation's record holds."""
    return {name: getattr(operation, name) for name in Operation.__dataclass_fields__}
