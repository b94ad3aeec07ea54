"""Which recorded value each node of the autograd graph made, for the nodes that forward itself reads.

Forward reads a node as ``tensor.grad_fn``, also by `torch.autograd.graph.get_gradient_edge`.  A gradient may begin and
end at such nodes: its record has the tensors that they made instead.
"""

from __future__ import annotations

import ast
import threading
import types
from collections.abc import Mapping
from types import FrameType
from typing import Any

import executing
import torch
from torch.autograd.graph import GradientEdge
from torch.autograd.graph import Node

from pytest_torchlens.capture.looks import class_attribute
from pytest_torchlens.capture.looks import home_of
from pytest_torchlens.capture.looks import instance_dict
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.tensor_table import TensorTable
from pytest_torchlens.capture.values import Aliased
from pytest_torchlens.capture.values import Value
from pytest_torchlens.capture.values import value_of

Tensor = torch.Tensor


class AutogradNodes:
    """The values of the tensors whose nodes forward has read.

    Parameters
    ----------
    table
        The tensors of the recording.
    """

    def __init__(self, table: TensorTable) -> None:
        self._table = table
        self._values: dict[tuple[Any, ...], Value | Aliased | None] = {}

    def note(self, node: Any, tensor: Tensor) -> None:
        """Note that forward has read the node of a tensor; neither is kept, for they hold memory."""
        if node is not None:
            with torch._C.DisableTorchFunction():
                key, read = _key(node, tensor.output_nr), self._table.read(tensor)
                former = self._values.get(key, read)
                self._values[key] = read if former is not None and value_of(former) is value_of(read) else None

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
        read = self._values.get(_key(node, edge.output_nr))
        tensor = None if read is None else self._table.tensor_in(value_of(read).slot)
        if read is None or tensor is None:
            return read
        return tensor if _same_read(self._table.read(tensor), read) else None

    def __bool__(self) -> bool:
        """Return whether forward has read any node."""
        return bool(self._values)


def _key(node: Any, output: int) -> tuple[Any, ...]:
    """Return what tells an output of a node from others: each thread numbers the nodes that it makes.

    The node of another thread may have the number of one of this thread: then neither is known.
    """
    return threading.get_ident(), node._sequence_nr(), node.name(), output


def _same_read(one: Value | Aliased, other: Value | Aliased) -> bool:
    writes = [read.writes if isinstance(read, Aliased) else () for read in (one, other)]
    return value_of(one) is value_of(other) and writes[0] == writes[1]


def edges_in(arguments: Any) -> bool:
    """Return whether there is an edge of the graph among arguments of autograd."""
    if type(arguments) in (list, tuple):
        return any(map(edges_in, arguments))
    if is_a(arguments, Mapping):
        return any(map(edges_in, arguments.values()))
    return is_a(arguments, GradientEdge)


def may_call_node(frame: FrameType, has_read: bool) -> bool:
    """Return whether the code of a frame is calling a node itself: ``y.grad_fn(gradient)``, or by way of `map`.

    If forward `has_read` a node, the code may be calling it unless it calls a function of PyTorch, or none at all.
    """
    call: ast.AST | None = executing.Source.executing(frame).node
    if call is None:
        return has_read
    if not isinstance(call, ast.Call):
        return False
    with torch._C.DisableTorchFunction():
        called = [_value_of(code, frame) for code in _called_in(call)]
        return any(isinstance(one, Node) for one in called) or (has_read and not _is_of_torch(called[0]))


def _called_in(call: ast.Call) -> list[ast.expr]:
    """Return what a call calls: its function, and those that `map` calls among its arguments."""
    inner = [part for part in ast.walk(call) if isinstance(part, ast.Call) and part.args]
    return [call.func, *(part.args[0] for part in inner if isinstance(part.func, ast.Name) and part.func.id == "map")]


def _value_of(code: ast.expr, frame: FrameType) -> Any:
    """Return the value of an expression that reads a name or a node, without running code of the user's; else None."""
    if isinstance(code, ast.Name):
        return frame.f_locals.get(code.id, frame.f_globals.get(code.id))
    if isinstance(code, ast.List | ast.Tuple) and not any(isinstance(item, ast.Starred) for item in code.elts):
        return [_value_of(item, frame) for item in code.elts]
    if isinstance(code, ast.Subscript) and isinstance(code.slice, ast.Constant):
        owner = _value_of(code.value, frame)
        return owner[code.slice.value] if type(owner) in (tuple, list, dict) else None
    return _attribute(_value_of(code.value, frame), code.attr) if isinstance(code, ast.Attribute) else None


def _attribute(owner: Any, name: str) -> Any:
    if is_a(owner, Tensor) or isinstance(owner, Node):
        reads_node = name in ("grad_fn", "next_functions", "node")
        return getattr(owner, name) if reads_node else class_attribute(type(owner), name)
    return owner.node if is_a(owner, GradientEdge) else (instance_dict(owner) or {}).get(name)


def _is_of_torch(called: Any) -> bool:
    """Return whether a function belongs to PyTorch."""
    if is_a(called, types.FunctionType):
        home = str(called.__module__)
    elif is_a(called, types.BuiltinFunctionType) and is_a(called.__self__, types.ModuleType):
        home = str(called.__self__.__name__)
    else:
        owner = getattr(called, _OWNERS[type(called)]) if type(called) in _OWNERS else called
        home = home_of(owner if is_a(owner, type) else type(owner))
    return home.partition(".")[0] == "torch"


_OWNERS = {types.BuiltinFunctionType: "__self__", types.MethodDescriptorType: "__objclass__"}
