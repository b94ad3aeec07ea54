"""A layer of several passes."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pytest_torchlens.history import printing
from pytest_torchlens.history.operation import LoggedOperation
from pytest_torchlens.history.printing import as_text
from pytest_torchlens.history.printing import facts_of_layer
from pytest_torchlens.history.printing import title_of_layer
from pytest_torchlens.records import RolledEdge

# what differs from pass to pass: asked of a layer, it has no one answer
_OF_ONE_PASS = frozenset(["layer_label_w_pass", "operation_num", "pass_num", "lookup_keys", "call_id", "edges"])
_TENSORS = frozenset(["tensor_contents", "grad_contents", "gradients", "func_rng_states"])


@dataclass(frozen=True, repr=False)
class Layer:
    """All passes of one layer, each an operation; metadata that are the same in all passes can be asked of it.

    Attributes
    ----------
    passes
        Its operations in execution order.
    edges_of_all
        Returns the edges between layers of the whole history; called when they are first asked for.
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
            raise IndexError(f"{self.layer_label} has passes 1 to {len(self)}, no {pass_num}")
        return self.passes[pass_num - 1]

    def __getattr__(self, name: str) -> Any:
        """Return what is the same in all passes."""
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
