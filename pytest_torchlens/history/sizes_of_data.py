"""Loops that run as often as there are rows in a tensor whose size data decide: ``for row in x[x > 0]``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import torch

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Value
from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.history.graph import Node
from pytest_torchlens.history.syntax import Loop
from pytest_torchlens.history.syntax import called
from pytest_torchlens.history.syntax import parent_of
from pytest_torchlens.history.syntax import reads_around

_CHOOSE = ("nonzero", "argwhere", "maskedselect", "unique", "unique2", "uniqueconsecutive", "bincount", "nms")
_KEEP_COUNT = ("enumerate", "zip", "reversed", "range", "len", "int", "list", "tuple", "iter", "tqdm", "trange")
_METHODS = ("size", "unbind", "numel", "tolist", "split")


def sized_by_data(nodes: list[Node]) -> list[Node]:
    """Return the operations whose first size depends on values, and those that keep it."""
    found: dict[int, Node] = {}
    for node in nodes:
        rows = node.value.shape[:1]
        kept = any(id(parent) in found and parent.value.shape[:1] == rows for parent, _, _ in node.parents)
        if node.call is not None and node.from_input and (_chooses(node.call) or (rows and kept)):
            found[id(node)] = node
    return list(found.values())


def _chooses(call: Call) -> bool:
    name, rest = call.info.layer_type.replace("_", ""), call.args[1:]
    if name == "getitem":
        return any(_is_mask(part) for part in rest)
    if name == "where":
        return not rest and not call.kwargs
    return name in _CHOOSE or (name == "repeatinterleave" and any(isinstance(part, Value | Aliased) for part in rest))


def _is_mask(index: Any) -> bool:
    if isinstance(index, list | tuple):
        return any(map(_is_mask, index))
    return isinstance(index, Value | Aliased) and value_of(index).dtype is torch.bool and bool(value_of(index).shape)


def loops_over(expression: ast.expr) -> list[Loop]:
    """Return the loops that go over what an expression makes, or over a range of its size; also by a name."""
    reads = reads_around(expression)
    waiting: list[ast.expr] = [expression]
    found: list[Loop] = []
    seen: set[str] = set()
    while waiting:
        whole = _counted(waiting.pop())
        above = parent_of(whole)
        if isinstance(above, ast.For | ast.AsyncFor) and above.iter is whole:
            found.append(above)
        elif isinstance(above, ast.comprehension) and above.iter is whole:
            found += [loop for loop in (parent_of(above),) if isinstance(loop, Loop)]
        names = set(_names(above, whole)) - seen
        seen |= names
        waiting += [read for name in names for read in reads.get(name, ())]
    return found


def _counted(node: ast.expr) -> ast.expr:
    """Return the largest expression around one that is as long, or a number made of how long it is."""
    above = parent_of(node)
    while isinstance(above, ast.expr) and _keeps_count(above, node):
        node, above = above, parent_of(above)
    return node


def _keeps_count(above: ast.expr, node: ast.expr) -> bool:
    if isinstance(above, ast.Call):
        return called(above) in (_METHODS if node is above.func else _KEEP_COUNT)
    if isinstance(above, ast.Subscript):
        is_shape = isinstance(node, ast.Attribute) or called(node) == "size"
        return node is above.value and is_shape and isinstance(above.slice, ast.Constant) and above.slice.value == 0
    if isinstance(above, ast.Attribute):
        return above.attr in ("shape", *_METHODS)
    return isinstance(above, ast.BinOp)


def _names(statement: ast.AST | None, value: ast.expr) -> Iterator[str]:
    if isinstance(statement, ast.Assign) and statement.value is value:
        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))
