"""Which recorded value each node of the autograd graph made, for the nodes that forward itself reads.

Forward reads a node as ``tensor.grad_fn``, also by `torch.autograd.graph.get_gradient_edge`.  A gradient may begin and
end at such nodes: its record has the tensors that they made instead.
"""

from __future__ import annotations

import ast
import weakref
from collections.abc import Mapping
from types import FrameType
from typing import Any

import executing
import torch
from torch.autograd.graph import GradientEdge
from torch.autograd.graph import Node

from pytest_torchlens.capture.looks import instance_dict
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.tensor_table import TensorTable
from pytest_torchlens.capture.values import Aliased
from pytest_torchlens.capture.values import Value

Tensor = torch.Tensor


class AutogradNodes:
    """The nodes that forward has read, each with the value of its tensor.

    Parameters
    ----------
    table
        The tensors of the recording.
    """

    def __init__(self, table: TensorTable) -> None:
        self._table = table
        self._values: dict[tuple[int, int], tuple[Any, weakref.ref[Tensor], Value | Aliased]] = {}

    def note(self, node: Any, tensor: Tensor) -> None:
        """Note that forward has read the node of a tensor; it is kept, so that its id stays its own."""
        if node is not None:
            with torch._C.DisableTorchFunction():
                key = id(node), tensor.output_nr
                self._values[key] = node, weakref.ref(tensor), self._table.read(tensor)

    def without_edges(self, arguments: Any) -> Any:
        """Return arguments of autograd with a tensor or its value in place of each edge, where that is known."""
        if is_a(arguments, GradientEdge):
            made = self._made_at(arguments)
            return arguments if made is None else made
        if type(arguments) in (list, tuple):
            return type(arguments)(map(self.without_edges, arguments))
        if is_a(arguments, Mapping):
            return {name: self.without_edges(value) for name, value in arguments.items()}
        return arguments

    def _made_at(self, edge: GradientEdge) -> Tensor | Value | Aliased | None:
        """Return the tensor of an edge, or if it was freed its last value; None if it is unknown, or has changed."""
        node: Any = edge.node
        if type(node).__name__ == "AccumulateGrad":
            return node.variable  # type: ignore[no-any-return]
        known = self._values.get((id(node), edge.output_nr))
        if known is None:
            return None
        _, ref, value = known
        tensor = ref()
        if tensor is None:
            return value
        return tensor if self._table.read(tensor) is value else None

    def __bool__(self) -> bool:
        """Return whether forward has read any node."""
        return bool(self._values)

    def clear(self) -> None:
        """Let go of the nodes."""
        self._values.clear()


def edges_in(arguments: Any) -> bool:
    """Return whether there is an edge of the graph among arguments of autograd."""
    if type(arguments) in (list, tuple):
        return any(map(edges_in, arguments))
    if is_a(arguments, Mapping):
        return any(map(edges_in, arguments.values()))
    return is_a(arguments, GradientEdge)


def is_calling_node(frame: FrameType) -> bool:
    """Return whether the code of a frame is calling a node itself: ``y.grad_fn(gradient)``."""
    call = executing.Source.executing(frame).node
    with torch._C.DisableTorchFunction():
        return isinstance(call, ast.Call) and isinstance(_value_of(call.func, frame), Node)


def _value_of(code: ast.expr, frame: FrameType) -> Any:
    """Return the value of an expression that reads a node, without running code of the user's; None for any other."""
    if isinstance(code, ast.Name):
        return frame.f_locals.get(code.id, frame.f_globals.get(code.id))
    if isinstance(code, ast.Subscript) and isinstance(code.slice, ast.Constant):
        owner = _value_of(code.value, frame)
        return owner[code.slice.value] if type(owner) in (tuple, list, dict) else None
    if isinstance(code, ast.Attribute):
        owner = _value_of(code.value, frame)
        if is_a(owner, Tensor) or isinstance(owner, Node):
            return getattr(owner, code.attr) if code.attr in ("grad_fn", "next_functions", "node") else None
        return owner.node if is_a(owner, GradientEdge) else (instance_dict(owner) or {}).get(code.attr)
    return None
