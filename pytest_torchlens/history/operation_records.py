"""Makes the label and the record of each operation from its node.

``conv2d_3_7`` is the third conv2d and the seventh layer; inputs and outputs count, buffers do not.  All passes of a
layer share its label.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import torch

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Value
from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.leaves import ATOMS
from pytest_torchlens.capture.leaves import UnpackedObject
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.origins import is_foreign
from pytest_torchlens.capture.values import base_of
from pytest_torchlens.history.graph import Node
from pytest_torchlens.history.modules import Modules
from pytest_torchlens.history.source import source_place
from pytest_torchlens.history.walks import GraphEntry
from pytest_torchlens.records import Edge
from pytest_torchlens.records import Operation

_UNNUMBERED = ("buffer", "constant")


def assign_labels(nodes: list[Node], layers: list[list[Node]] | None = None) -> None:
    """Give each node its layer, pass, numbers and label; numbers follow execution order from 0.

    `layers` are the layers of several passes, each in execution order; every other node is its own layer.
    """
    for passes in layers or []:
        for pass_num, node in enumerate(passes, 1):
            node.passes, node.pass_num = passes, pass_num
    of_type: Counter[str] = Counter()
    total = operations = 0
    for node in nodes:
        numbered = node.kind not in _UNNUMBERED
        node.layer_type = type_of(node)
        if numbered:
            node.operation_num = operations
            operations += 1
        first = node.passes[0]
        if first is not node:
            node.layer_type_num, node.layer_total_num = first.layer_type_num, first.layer_total_num
        else:
            of_type[node.layer_type] += 1
            node.layer_type_num = of_type[node.layer_type]
            node.layer_total_num = total if numbered else -1
            total += numbered
        node.layer_label = label_of(node)
        node.label_w_pass = f"{node.layer_label}:{node.pass_num}"
        node.label = node.label_w_pass if len(node.passes) > 1 else node.layer_label


def type_of(node: Node) -> str:
    """Return the layer type: the function's name without underscores, or the kind of a source or output."""
    return _without_underscores(node.call.info.layer_type) if node.call is not None else node.kind


def _without_underscores(layer_type: str) -> str:
    return layer_type.replace("_", "")


def label_of(node: Node) -> str:
    """Return the label of a node, from its type and numbers."""
    label = f"{node.layer_type}_{node.layer_type_num}"
    return label if node.kind in _UNNUMBERED else f"{label}_{node.layer_total_num}"


LookupKeys = tuple[str | int, ...]


def fields_of(node: Node, modules: Modules, lookup_keys: LookupKeys) -> dict[str, Any]:
    """Return the fields of a node's `Operation` by name."""
    fields = _BLANK.copy()  # with all names: none has to be added, which is slow
    fields.update(_identity(node, lookup_keys))
    fields.update(_tensor(node))
    if node.call is not None:
        fields.update(_call(node, node.call))
    if node.parameters:
        fields.update(_parameters(node))
    fields.update(_graph(node))
    fields.update(_modules(node, modules))
    return fields


_BLANK: dict[str, Any] = {name: field.default for name, field in Operation.__dataclass_fields__.items()}


def graph_entry(node: Node) -> GraphEntry:
    """Return a node's place in the graph, as its `Operation` has it."""
    return GraphEntry(
        label=node.label,
        parent_layers=_parent_labels(node),
        child_layers=_child_labels(node),
        is_input_layer=node.kind == "input",
        is_output_layer=node.kind == "output",
        initialized_inside_model=_is_initialized_inside(node),
    )


def _parent_labels(node: Node) -> tuple[str, ...]:
    return tuple(dict.fromkeys([parent.label for parent, _, _ in node.parents]))


def _child_labels(node: Node) -> tuple[str, ...]:
    return tuple([child.label for child in node.children])


def _is_initialized_inside(node: Node) -> bool:
    return node.kind == "operation" and not (node.parents or node.parameters)


def _identity(node: Node, lookup_keys: LookupKeys) -> dict[str, Any]:
    return {
        "layer_label": node.layer_label,
        "layer_label_w_pass": node.label_w_pass,
        "layer_label_short": f"{node.layer_type}_{node.layer_type_num}",
        "operation_num": node.operation_num,
        "layer_type": node.layer_type,
        "layer_type_num": node.layer_type_num,
        "layer_total_num": node.layer_total_num,
        "pass_num": node.pass_num,
        "layer_passes_total": len(node.passes),
        "lookup_keys": lookup_keys,
        "call_id": node.number,
    }


text_of = functools.cache(str)
"""The text of a dtype or device; there are few."""


def _tensor(node: Node) -> dict[str, Any]:
    value = node.value
    return {
        "tensor_shape": tuple(value.shape),
        "tensor_dtype": text_of(value.dtype),
        "tensor_device": text_of(value.device),
        "tensor_stride": value.stride,
        "tensor_fsize": value.nbytes,
        "fingerprint": value.fingerprint,
        "has_saved_activations": value.tensor is not None,
    }


def _call(node: Node, call: Call) -> dict[str, Any]:
    several, place = len(call.outputs) > 1, source_place(call)
    return {
        "func_applied_name": call.info.name,
        "func_time_elapsed": call.elapsed / 1e9,
        "func_position_args_non_tensor": _texts(enumerate(call.args)),
        "func_keyword_args_non_tensor": _texts(call.kwargs.items()),
        "function_is_inplace": node.value.slot in call.writes,
        "function_is_random": call.random is not None,
        "gradfunc_name": node.value.gradfunc,
        "is_part_of_iterable_output": several,
        "iterable_output_index": node.value.position if several else None,
        "composite": call.group.path if call.group is not None else "",
        "steps": tuple(map(_without_underscores, call.info.steps)),
        "source_line": str(place or ""),
        "source_place": place,
    }


_LONGEST_TEXT = 200


def _texts(arguments: Any) -> tuple[str, ...]:
    """Return each argument that is not just a tensor as ``"name=value"``; a tensor inside it is shown as ``~``."""
    return tuple([f"{name}={_text(arg)}"[:_LONGEST_TEXT] for name, arg in arguments if type(arg) not in _TENSORS])


_TENSORS = (Value, Aliased)


class _Tilde:
    def __repr__(self) -> str:
        return "~"


_TILDE = _Tilde()


def _text(template: Any) -> str:
    return repr(template if type(template) in ATOMS else substitute(template, _tilde_for_tensor))


def _tilde_for_tensor(leaf: Any) -> Any:
    return _TILDE if type(leaf) in _TENSORS else leaf


def _parameters(node: Node) -> dict[str, Any]:
    sources = list({source.name: source for source in node.parameters}.values())
    return {
        "computed_with_params": bool(sources),
        "num_param_tensors": len(sources),
        "parent_param_addresses": tuple(source.name for source in sources),
        "parent_param_shapes": tuple(tuple(source.value.shape) for source in sources),
        "num_params_total": sum(source.value.shape.numel() for source in sources),
        "num_params_trainable": sum(source.value.shape.numel() for source in sources if source.value.requires_grad),
        "parent_params_fsize": sum(source.value.nbytes for source in sources),
    }


def _graph(node: Node) -> dict[str, Any]:
    return {
        "edges": tuple([Edge(parent.label, path, write) for parent, path, write in node.parents]),
        "parent_layers": _parent_labels(node),
        "child_layers": _child_labels(node),
        "is_input_layer": node.kind == "input",
        "has_input_ancestor": node.from_input,
        "is_output_layer": node.kind == "output",
        "is_output_ancestor": node.to_output,
        "is_buffer_layer": node.kind == "buffer",
        "buffer_address": node.source.name if node.source is not None and node.kind == "buffer" else None,
        "is_constant": node.kind == "constant",
        "constant_origin": _origin(node) if node.kind == "constant" else "",
        "initialized_inside_model": _is_initialized_inside(node),
        "terminated_inside_model": node.kind == "operation" and not node.children,
        "is_terminal_bool_layer": _is_terminal_bool(node),
        "is_condition": node.is_condition,
        "in_cond_branch": node.in_cond_branch,
    }


def _origin(node: Node) -> str:
    """Return the name of what holds a constant, else where the constant was first read."""
    if node.source is not None and node.source.name:
        return node.source.name
    readers = [child.call for child in node.children if child.call is not None]
    foreign = node.source is not None and is_foreign(node.source.live)
    origin = "made from an array, as by torch.from_numpy" if foreign else "made outside torch's functions"
    return f"{origin}, first read in {source_place(readers[0]) or ''}" if readers else ""


def _is_terminal_bool(node: Node) -> bool:
    is_bool = node.value.dtype is torch.bool and node.value.shape.numel() == 1
    return node.kind == "operation" and is_bool and not node.children


def _modules(node: Node, modules: Modules) -> dict[str, Any]:
    enclosing = modules.around(node)
    bottom = modules.bottom_level(node)
    return {
        "containing_module_origin": enclosing[-1] if enclosing else None,
        "containing_module_origin_nested": enclosing,
        "modules_entered": tuple(modules.name(call) for call in node.entered),
        "modules_exited": tuple(modules.name(call) for call in node.exited),
        "is_submodule_output": bool(node.exited),
        "is_bottom_level_submodule_output": bottom is not None,
        "bottom_level_submodule_exited": bottom,
    }


def arguments_with_labels(node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a call's arguments, each tensor replaced by its label or parameter address."""
    if node.call is None:
        return (), {}
    names = {id(parent.value): parent.label for parent, _, write in node.parents if not write}
    if node.parameters:
        names |= {id(source.value): source.name for source in node.parameters}
    name = functools.partial(_named, names, {})
    args = tuple([arg if type(arg) in ATOMS else substitute(arg, name) for arg in node.call.args])
    return args, substitute(node.call.kwargs, name)


def _named(names: dict[int, str], repacked: dict[int, Any], leaf: Any) -> Any:
    """Return the name of a value by its id, or an object with names inside; `repacked` has those rebuilt so far."""
    kind = type(leaf)
    if kind is Value or kind is Aliased:
        return names.get(id(base_of(leaf)), "?")
    if kind is UnpackedObject:
        return leaf.repacked(functools.partial(_named, names, repacked), repacked)
    return leaf
