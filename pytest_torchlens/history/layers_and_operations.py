"""An operation of a history (its record, and the live objects that JSON cannot hold), and a layer of several passes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from typing import Any
from typing import Protocol
from typing import TypeVar

import torch

from pytest_torchlens.history import printing
from pytest_torchlens.history.printing import as_text
from pytest_torchlens.history.printing import crop_of
from pytest_torchlens.history.printing import facts_of_layer
from pytest_torchlens.history.printing import facts_of_operation
from pytest_torchlens.history.printing import title_of_layer
from pytest_torchlens.history.printing import title_of_operation
from pytest_torchlens.history.source import StackFrame
from pytest_torchlens.history.walks import Walks
from pytest_torchlens.records import Operation
from pytest_torchlens.records import RolledEdge
from pytest_torchlens.records import close

_Record = TypeVar("_Record", bound=Operation)


class LazyFields(Protocol):
    """The fields of an operation that are looked up only when used: tensors, call stack, graph."""

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

    lazy_fields: LazyFields = field(compare=False, repr=False)
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
        """Raise `AttributeError` with the nearest valid name."""
        if hasattr(type(self), name):  # a property raised AttributeError: raise it again
            return getattr(type(self), name).__get__(self)
        hint = "" if name.startswith("_") else close(name, [*self.__dataclass_fields__, *dir(type(self))])
        raise AttributeError(f"an operation has no attribute {name!r}{hint and '; '}{hint}")

    @property
    def tensor_contents(self) -> torch.Tensor | None:
        """The activation at the time of the call, after the saving options; None if it was not saved."""
        return self.lazy_fields.activation()

    @property
    def gradients(self) -> dict[int, torch.Tensor]:
        """Gradients by the number of the backward pass, from 1; needs ``save_gradients=True``."""
        return self.lazy_fields.gradients()

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
        return self.lazy_fields.stack()

    @property
    def orig_ancestors(self) -> tuple[str, ...]:
        """Ancestors that have no parents: inputs, buffers, constants, tensors made inside the model."""
        return self.lazy_fields.walks.original_ancestors(self.label)

    @property
    def sibling_layers(self) -> tuple[str, ...]:
        """Layers that share a parent with it."""
        return self.lazy_fields.walks.siblings(self.label)

    @property
    def spouse_layers(self) -> tuple[str, ...]:
        """Layers that share a child with it."""
        return self.lazy_fields.walks.spouses(self.label)

    @property
    def min_distance_from_input(self) -> int | None:
        """Fewest steps along the edges from an input; None if it does not descend from one."""
        return self.lazy_fields.walks.distance_from_input(self.label)[0]

    @property
    def max_distance_from_input(self) -> int | None:
        """Most steps along the edges from an input; None if it does not descend from one."""
        return self.lazy_fields.walks.distance_from_input(self.label)[1]

    @property
    def min_distance_from_output(self) -> int | None:
        """Fewest steps along the edges to an output; None if it leads to none."""
        return self.lazy_fields.walks.distance_from_output(self.label)[0]

    @property
    def max_distance_from_output(self) -> int | None:
        """Most steps along the edges to an output; None if it leads to none."""
        return self.lazy_fields.walks.distance_from_output(self.label)[1]

    @property
    def output_descendants(self) -> tuple[str, ...]:
        """The model's outputs that are computed from it."""
        return self.lazy_fields.walks.output_descendants(self.label)

    @property
    def internally_initialized_parents(self) -> tuple[str, ...]:
        """Parents that were made inside the model from no other tensor."""
        return self.lazy_fields.walks.initialized_parents(self.label)

    @property
    def internally_initialized_ancestors(self) -> tuple[str, ...]:
        """Ancestors that were made inside the model from no other tensor."""
        return self.lazy_fields.walks.initialized_ancestors(self.label)

    @property
    def internally_initialilized_ancestors(self) -> tuple[str, ...]:
        """Alias of `internally_initialized_ancestors`, as the paper spells it."""
        return self.internally_initialized_ancestors

    def __reduce__(self) -> Any:
        """Refuse to be pickled or copied: that would take the whole history along."""
        raise TypeError(f"{self.label} cannot be pickled or copied: take plain(), its record, or tensor_contents")

    def plain(self) -> Operation:
        """Return the record alone, ready for JSON."""
        fields = vars(self).copy()
        for name in _LIVE_FIELDS:
            del fields[name]
        return of_fields(Operation, fields)

    def __str__(self) -> str:
        """Return the summary: tensor, parameters, parents, children, function, modules, time, look-up keys."""
        return as_text(title_of_operation(self), facts_of_operation(self), crop_of(self))

    def __repr__(self) -> str:
        """Return one line."""
        return f"<{self.label}: {self.tensor_dtype} {self.tensor_shape}>"

    def _repr_html_(self) -> str:
        """Return the summary as a table for notebooks."""
        return printing.of_operation(self)


def of_fields(kind: type[_Record], fields: dict[str, Any]) -> _Record:
    """Return a record with these fields, which must be all: a frozen dataclass sets them one by one, and is slow."""
    record = object.__new__(kind)
    object.__setattr__(record, "__dict__", fields)
    return record


def fields_by_name(operation: Operation) -> dict[str, Any]:
    """Return the fields of an operation's record by name."""
    return dict(zip(Operation.__dataclass_fields__, _ALL_FIELDS(operation), strict=True))


_ALL_FIELDS = operator.attrgetter(*Operation.__dataclass_fields__)
_LIVE_FIELDS = [name for name in LoggedOperation.__dataclass_fields__ if name not in Operation.__dataclass_fields__]


# these differ from pass to pass: a layer has no single value for them
_OF_ONE_PASS = frozenset(["layer_label_w_pass", "operation_num", "pass_num", "lookup_keys", "call_id", "edges"])
_TENSORS = frozenset(["tensor_contents", "grad_contents", "gradients", "func_rng_states"])


@dataclass(frozen=True, repr=False)
class Layer:
    """All passes of one layer, each an operation; values that are equal in all passes are its attributes.

    Attributes
    ----------
    passes
        Its operations in execution order.
    edges_of_all
        Returns the edges between layers of the whole history; called at first use.
    """

    passes: tuple[LoggedOperation, ...]
    edges_of_all: Callable[[], tuple[RolledEdge, ...]]

    @property
    def layer_label(self) -> str:
        """Label without a pass."""
        return self.passes[0].layer_label

    @property
    def parent_edges(self) -> tuple[RolledEdge, ...]:
        """Edges into this layer, with the passes in which each carries data."""
        return tuple(edge for edge in self.edges_of_all() if edge.child == self.layer_label)

    @property
    def child_edges(self) -> tuple[RolledEdge, ...]:
        """Edges out of this layer, with the passes in which each carries data."""
        return tuple(edge for edge in self.edges_of_all() if edge.parent == self.layer_label)

    @property
    def parent_layers(self) -> tuple[str, ...]:
        """Labels of the layers that it gets data from, without passes."""
        return tuple(dict.fromkeys(edge.parent for edge in self.parent_edges))

    @property
    def child_layers(self) -> tuple[str, ...]:
        """Labels of the layers that get data from it, without passes."""
        return tuple(dict.fromkeys(edge.child for edge in self.child_edges))

    def __len__(self) -> int:
        """Return the number of passes."""
        return len(self.passes)

    def __iter__(self) -> Iterator[LoggedOperation]:
        """Yield the passes in execution order."""
        return iter(self.passes)

    def __getitem__(self, pass_num: int) -> LoggedOperation:
        """Return a pass by its number, from 1."""
        if not 1 <= pass_num <= len(self):
            raise IndexError(f"{self.layer_label}: expected a pass from 1 to {len(self)}, got {pass_num}")
        return self.passes[pass_num - 1]

    def __getattr__(self, name: str) -> Any:
        """Return the value of an attribute that is equal in all passes."""
        if name.startswith("_") or not (name in LoggedOperation.__dataclass_fields__ or hasattr(LoggedOperation, name)):
            raise AttributeError(f"Layer has no attribute {name!r}")
        values = [getattr(each, name) for each in self.passes]
        if name not in _OF_ONE_PASS and all(value is values[0] for value in values):
            return values[0]
        if name in _OF_ONE_PASS or name in _TENSORS or any(value != values[0] for value in values):
            first = self.passes[0].layer_label_w_pass
            raise AttributeError(
                f"{name} differs between the {len(self)} passes of {self.layer_label}; ask one of them, "
                f"as history[{first!r}].{name}"
            )
        return values[0]

    def __str__(self) -> str:
        """Return the summary: tensor, parameters, parents and children with their passes, function, modules, keys."""
        return as_text(title_of_layer(self), facts_of_layer(self))

    def __repr__(self) -> str:
        """Return one line."""
        return f"<{self.layer_label}: {len(self)} passes>"

    def _repr_html_(self) -> str:
        """Return the summary and a table of the passes for notebooks."""
        return printing.of_layer(self)
