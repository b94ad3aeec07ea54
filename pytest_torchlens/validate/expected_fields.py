"""Derives the value that each public field of an operation must have from the recording and the expected graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Value
from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.calls import Escape
from pytest_torchlens.capture.calls import Group
from pytest_torchlens.capture.calls import ModuleCall
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.history.source import model_frames
from pytest_torchlens.records import Edge
from pytest_torchlens.records import Operation
from pytest_torchlens.records import SourcePlace
from pytest_torchlens.validate.expected_graph import ExpectedGraph
from pytest_torchlens.validate.expected_graph import ExpectedOperation


class ExpectedFields:
    """Derives the fields of operations.

    Parameters
    ----------
    recording, graph
        The recording, and the graph that it gives.
    saved
        The `id` of each operation whose tensor must be saved.
    """

    def __init__(self, recording: Recording, graph: ExpectedGraph, saved: set[int]) -> None:
        self._saved = saved
        self.lines = SourceLines()
        self._times = Counter(call.address for call in recording.module_calls)
        self._work: Counter[int] = Counter()
        for one in graph.operations:
            if one.call is not None and one.call.module is not None:
                self._work.update(map(id, one.call.module.stack()))

    def of(self, one: ExpectedOperation, keys: tuple[str | int, ...], record: Operation) -> dict[str, Any]:
        """Return all fields of an operation; `record` gives the text of arguments whose class defines one."""
        return {
            **_labels(one, keys),
            **self._tensor(one),
            **self._call(one, record),
            **_parameters(one),
            **_edges(one),
            **self._roles(one, record),
            **self._modules(one),
        }

    def _tensor(self, one: ExpectedOperation) -> dict[str, Any]:
        value = one.value
        return {
            "tensor_shape": tuple(value.shape),
            "tensor_dtype": str(value.dtype),
            "tensor_device": str(value.device),
            "tensor_stride": value.stride,
            "tensor_fsize": value.nbytes,
            "fingerprint": value.fingerprint,
            "has_saved_activations": id(one) in self._saved,
        }

    def _call(self, one: ExpectedOperation, record: Operation) -> dict[str, Any]:
        call = one.call
        if call is None:
            return _NO_CALL
        several = len(call.outputs) > 1
        return {
            "func_applied_name": call.info.name,
            "func_time_elapsed": call.elapsed / 1e9,
            "func_position_args_non_tensor": _texts(enumerate(call.args), record.func_position_args_non_tensor),
            "func_keyword_args_non_tensor": _texts(call.kwargs.items(), record.func_keyword_args_non_tensor),
            "function_is_inplace": one.value.slot in call.writes,
            "function_is_random": call.random is not None,
            "gradfunc_name": one.value.gradfunc,
            "is_part_of_iterable_output": several,
            "iterable_output_index": call.outputs.index(one.value) if several else None,
            "composite": ".".join(reversed(list(_groups(call.group)))),
            "steps": tuple([step.replace("_", "") for step in call.info.steps]),
            "source_line": self.lines.of(call),
            "source_place": SourcePlace.of_text(self.lines.of(call)),
        }

    def _roles(self, one: ExpectedOperation, record: Operation) -> dict[str, Any]:
        name, is_operation = one.source.name if one.source is not None else "", one.kind == "operation"
        is_bool = one.value.dtype is torch.bool and one.value.shape.numel() == 1
        return {
            "is_input_layer": one.kind == "input",
            "has_input_ancestor": one.from_input,
            "is_output_layer": one.kind == "output",
            "is_output_ancestor": one.to_output,
            "is_buffer_layer": one.kind == "buffer",
            "buffer_address": name if one.kind == "buffer" else None,
            "is_constant": one.kind == "constant",
            "constant_origin": self._origin(one, name, record.constant_origin) if one.kind == "constant" else "",
            "initialized_inside_model": is_operation and not one.parents and not one.parameters,
            "terminated_inside_model": is_operation and not one.children,
            "is_terminal_bool_layer": is_operation and is_bool and not one.children,
            "is_condition": one.is_condition,
            "in_cond_branch": one.in_cond_branch,
        }

    def _origin(self, one: ExpectedOperation, name: str, given: str) -> str:
        reader = next((child.call for child in one.children if child.call is not None), None)
        if name or reader is None:
            return name
        where = f", first read in {self.lines.of(reader)}"
        return next((made + where for made in _ORIGINS if given == made + where), _ORIGINS[0] + where)

    def _modules(self, one: ExpectedOperation) -> dict[str, Any]:
        around = [self._name(call) for call in (one.call.module.stack() if one.call and one.call.module else ())][:-1]
        alone = [call for call in one.exited if self._work[id(call)] == 1 and one.call and call is one.call.module]
        return {
            "containing_module_origin": around[0] if around else None,
            "containing_module_origin_nested": tuple(reversed(around)),
            "modules_entered": tuple(map(self._name, one.entered)),
            "modules_exited": tuple(map(self._name, one.exited)),
            "is_submodule_output": bool(one.exited),
            "is_bottom_level_submodule_output": bool(alone),
            "bottom_level_submodule_exited": self._name(alone[0]) if alone else None,
        }

    def _name(self, call: ModuleCall) -> str:
        return call.address if self._times[call.address] == 1 else f"{call.address}:{call.number}"


_ORIGINS = ("made outside torch's functions", "made from an array, as by torch.from_numpy")
_NO_CALL: dict[str, Any] = {
    "func_applied_name": "",
    "func_time_elapsed": 0.0,
    "func_position_args_non_tensor": (),
    "func_keyword_args_non_tensor": (),
    "function_is_inplace": False,
    "function_is_random": False,
    "gradfunc_name": "",
    "is_part_of_iterable_output": False,
    "iterable_output_index": None,
    "composite": "",
    "steps": (),
    "source_line": "",
    "source_place": None,
}


def _labels(one: ExpectedOperation, keys: tuple[str | int, ...]) -> dict[str, Any]:
    return {
        "layer_label": one.layer_label,
        "layer_label_w_pass": one.label_w_pass,
        "layer_label_short": f"{one.layer_type}_{one.type_num}",
        "operation_num": one.operation_num,
        "layer_type": one.layer_type,
        "layer_type_num": one.type_num,
        "layer_total_num": one.total_num,
        "pass_num": one.pass_num,
        "layer_passes_total": len(one.passes),
        "lookup_keys": keys,
        "call_id": one.number,
    }


def _parameters(one: ExpectedOperation) -> dict[str, Any]:
    sources = {source.name: source.value for source in one.parameters}
    sizes = [(value.shape.numel(), value.requires_grad) for value in sources.values()]
    return {
        "computed_with_params": bool(sources),
        "num_param_tensors": len(sources),
        "parent_param_addresses": tuple(sources),
        "parent_param_shapes": tuple([tuple(value.shape) for value in sources.values()]),
        "num_params_total": sum(size for size, _ in sizes),
        "num_params_trainable": sum(size for size, trained in sizes if trained),
        "parent_params_fsize": sum(value.nbytes for value in sources.values()),
    }


def _edges(one: ExpectedOperation) -> dict[str, Any]:
    return {
        "edges": tuple([Edge(parent.label, path, write) for parent, path, write in one.parents]),
        "parent_layers": tuple(dict.fromkeys([parent.label for parent, _, _ in one.parents])),
        "child_layers": tuple([child.label for child in one.children]),
    }


def _groups(group: Group | None) -> Iterator[str]:
    while group is not None:
        yield group.name
        group = group.parent


# -- text of arguments ----------------------------------------------------------------------------------------------

_LONGEST = 200
_FEW = 100
_PLAIN = frozenset(
    [
        *(int, float, bool, complex, str, bytes, type(None), type(...)),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
    ]
)


def _texts(arguments: Any, given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the text of each argument that is not a tensor; take that of a user's object from `given`.

    Do not ask a user's class for its text again: it may count calls or draw random numbers.
    """
    found: list[str] = []
    for name, arg in arguments:
        if type(arg) is Value or type(arg) is Aliased:
            continue
        former = given[len(found)] if len(found) < len(given) else ""
        if _is_plain(arg, [_FEW]):
            found.append(f"{name}={substitute(arg, _leaf_text)!r}"[:_LONGEST])
        else:
            found.append(former if former.startswith(f"{name}=") else f"{name}=…")
    return tuple(found)


class _ShownAsTilde:
    def __repr__(self) -> str:
        return "~"


_TILDE = _ShownAsTilde()


def _leaf_text(leaf: Any) -> Any:
    return _TILDE if isinstance(leaf, Value | Aliased) else leaf


def _is_plain(template: Any, left: list[int]) -> bool:
    """Return whether a template has at most `left` leaves, all of classes whose text is Python's or PyTorch's."""
    kind = type(template)
    left[0] -= 1
    if left[0] < 0:
        return False
    if kind is list or kind is tuple:
        return all(_is_plain(item, left) for item in template)
    if kind is dict:
        return all(type(name) in _PLAIN and _is_plain(item, left) for name, item in template.items())
    if kind is slice:
        return all(_is_plain(part, left) for part in (template.start, template.stop, template.step))
    return kind in _PLAIN or kind is Value or kind is Aliased


# -- source lines ---------------------------------------------------------------------------------------------------


class SourceLines:
    """Finds ``file:line, in function`` of the model's line that made a call, by the line table of its code."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], str] = {}

    def of(self, made: Call | Escape) -> str:
        """Return the model's innermost line; ``""`` if there is none."""
        for code, at in model_frames(made):
            known = self._known.get((id(code), at))
            if known is None:
                known = self._known[id(code), at] = _place(code, at)
            return known
        return ""


def _place(code: CodeType, at: int) -> str:
    return f"{code.co_filename}:{line_of_code(code, at)}, in {code.co_name}"


def line_of_code(code: CodeType, at: int) -> int:
    """Return the line of the instruction at a byte offset."""
    for start, end, line in code.co_lines():
        if start <= at < end and line is not None:
            return line
    return code.co_firstlineno
