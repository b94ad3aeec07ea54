"""Derives the value that each public field of an operation must have from the recording and the expected graph."""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence
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

Column = tuple[str, list[Any]]
"""The name of a field, and its value for each operation."""
Columns = dict[str, list[Any]]


class ExpectedFields:
    """Derives the fields of operations, each field as a column: its values in the order of the operations.

    Parameters
    ----------
    recording, graph
        The recording, and the graph that it gives.
    saved
        The `id` of each operation whose tensor must be saved.
    """

    def __init__(self, recording: Recording, graph: ExpectedGraph, saved: set[int]) -> None:
        self.lines = SourceLines()
        self._operations = graph.operations
        self._calls = [one.call for one in graph.operations]
        self._saved = saved
        self._times = Counter(call.address for call in recording.module_calls)
        self._work: Counter[int] = Counter()
        for call in self._calls:
            if call is not None and call.module is not None:
                self._work.update(map(id, call.module.stack()))

    def columns(self, keys: dict[int, tuple[str | int, ...]], records: Sequence[Operation]) -> Iterator[Column]:
        """Yield name and values of each field.

        `keys` are the lookup keys by the `id` of the operation; `records` give what has no second witness: the text of
        arguments whose class defines one, and how a constant was made.
        """
        yield from _labels(self._operations, keys).items()
        yield from self._of_tensors().items()
        yield from self._of_calls().items()
        yield from self._arguments(records).items()
        yield from _parameters(self._operations).items()
        yield from _edges(self._operations).items()
        yield from self._roles(records).items()
        yield from self._of_modules().items()

    def _of_tensors(self) -> Columns:
        values = [one.value for one in self._operations]
        return {
            "tensor_shape": [tuple(value.shape) for value in values],
            "tensor_dtype": [text_of(value.dtype) for value in values],
            "tensor_device": [text_of(value.device) for value in values],
            "tensor_stride": [value.stride for value in values],
            "tensor_fsize": [value.nbytes for value in values],
            "fingerprint": [value.fingerprint for value in values],
            "has_saved_activations": [id(one) in self._saved for one in self._operations],
        }

    def _of_calls(self) -> Columns:
        made = [(one.value, one.call) for one in self._operations]
        lines = ["" if call is None else self.lines.of(call) for call in self._calls]
        return {
            "func_applied_name": ["" if call is None else call.info.name for call in self._calls],
            "func_time_elapsed": [0.0 if call is None else call.elapsed / 1e9 for call in self._calls],
            "function_is_inplace": [call is not None and value.slot in call.writes for value, call in made],
            "function_is_random": [call is not None and call.random is not None for call in self._calls],
            "gradfunc_name": ["" if call is None else value.gradfunc for value, call in made],
            "is_part_of_iterable_output": [_is_of_several(call) for call in self._calls],
            "iterable_output_index": [
                call.outputs.index(value) if call is not None and _is_of_several(call) else None for value, call in made
            ],
            "composite": [
                "" if call is None or call.group is None else ".".join(reversed(list(_groups(call.group))))
                for call in self._calls
            ],
            "steps": [() if call is None else _without_underscores(call.info.steps) for call in self._calls],
            "source_line": lines,
            "source_place": list(map(self.lines.place_at, lines)),
        }

    def _arguments(self, records: Sequence[Operation]) -> Columns:
        pairs = list(zip(self._calls, records, strict=True))
        return {
            "func_position_args_non_tensor": [
                () if call is None else _texts(enumerate(call.args), record.func_position_args_non_tensor)
                for call, record in pairs
            ],
            "func_keyword_args_non_tensor": [
                () if call is None else _texts(call.kwargs.items(), record.func_keyword_args_non_tensor)
                for call, record in pairs
            ],
        }

    def _roles(self, records: Sequence[Operation]) -> Columns:
        operations = self._operations
        are_operations = [one.kind == "operation" for one in operations]
        ends = [is_operation and not one.children for is_operation, one in zip(are_operations, operations, strict=True)]
        starts = [not one.parents and not one.parameters for one in operations]
        are_bools = [one.value.dtype is torch.bool and one.value.shape.numel() == 1 for one in operations]
        return {
            "is_input_layer": [one.kind == "input" for one in operations],
            "has_input_ancestor": [one.from_input for one in operations],
            "is_output_layer": [one.kind == "output" for one in operations],
            "is_output_ancestor": [one.to_output for one in operations],
            "is_buffer_layer": [one.kind == "buffer" for one in operations],
            "buffer_address": [_source_name(one) if one.kind == "buffer" else None for one in operations],
            "is_constant": [one.kind == "constant" for one in operations],
            "constant_origin": [
                self._origin(one, record.constant_origin) if one.kind == "constant" else ""
                for one, record in zip(operations, records, strict=True)
            ],
            "initialized_inside_model": list(map(operator.and_, are_operations, starts)),
            "terminated_inside_model": ends,
            "is_terminal_bool_layer": list(map(operator.and_, ends, are_bools)),
            "is_condition": [one.is_condition for one in operations],
            "in_cond_branch": [one.in_cond_branch for one in operations],
        }

    def _origin(self, one: ExpectedOperation, given: str) -> str:
        name = _source_name(one)
        reader = next((child.call for child in one.children if child.call is not None), None)
        if name or reader is None:
            return name
        where = f", first read in {self.lines.of(reader)}"
        return next((made + where for made in _ORIGINS if given == made + where), _ORIGINS[0] + where)

    def _of_modules(self) -> Columns:
        operations = self._operations
        around = [self._around(call) for call in self._calls]
        alone = [self._left_alone(one) for one in operations]
        return {
            "containing_module_origin": [names[-1] if names else None for names in around],
            "containing_module_origin_nested": around,
            "modules_entered": [tuple(map(self._name, one.entered)) for one in operations],
            "modules_exited": [tuple(map(self._name, one.exited)) for one in operations],
            "is_submodule_output": [bool(one.exited) for one in operations],
            "is_bottom_level_submodule_output": [name is not None for name in alone],
            "bottom_level_submodule_exited": alone,
        }

    def _around(self, call: Call | None) -> tuple[str, ...]:
        """Return the names of the module calls around a call, outermost first, without the model itself."""
        stack = [] if call is None or call.module is None else list(call.module.stack())
        return tuple(map(self._name, reversed(stack[:-1])))

    def _left_alone(self, one: ExpectedOperation) -> str | None:
        """Return the name of the module call that an operation is the only one of, and the output."""
        alone = [call for call in one.exited if self._work[id(call)] == 1 and one.call and call is one.call.module]
        return self._name(alone[0]) if alone else None

    def _name(self, call: ModuleCall) -> str:
        return call.address if self._times[call.address] == 1 else f"{call.address}:{call.number}"


_ORIGINS = ("made outside torch's functions", "made from an array, as by torch.from_numpy")
text_of = functools.cache(str)
"""The text of a dtype or device; there are few."""


def _is_of_several(call: Call | None) -> bool:
    return call is not None and len(call.outputs) > 1


def _without_underscores(steps: tuple[str, ...]) -> tuple[str, ...]:
    return tuple([step.replace("_", "") for step in steps])


def _source_name(one: ExpectedOperation) -> str:
    return one.source.name if one.source is not None else ""


def _labels(operations: list[ExpectedOperation], keys: dict[int, tuple[str | int, ...]]) -> Columns:
    return {
        "layer_label": [one.layer_label for one in operations],
        "layer_label_w_pass": [one.label_w_pass for one in operations],
        "layer_label_short": [f"{one.layer_type}_{one.type_num}" for one in operations],
        "operation_num": [one.operation_num for one in operations],
        "layer_type": [one.layer_type for one in operations],
        "layer_type_num": [one.type_num for one in operations],
        "layer_total_num": [one.total_num for one in operations],
        "pass_num": [one.pass_num for one in operations],
        "layer_passes_total": [len(one.passes) for one in operations],
        "lookup_keys": [keys[id(one)] for one in operations],
        "call_id": [one.number for one in operations],
    }


def _parameters(operations: list[ExpectedOperation]) -> Columns:
    none: dict[str, Value] = {}
    read = [{source.name: source.value for source in one.parameters} if one.parameters else none for one in operations]
    sizes = [[(value.shape.numel(), value.requires_grad) for value in values.values()] for values in read]
    return {
        "computed_with_params": list(map(bool, read)),
        "num_param_tensors": list(map(len, read)),
        "parent_param_addresses": list(map(tuple, read)),
        "parent_param_shapes": [tuple([tuple(value.shape) for value in values.values()]) for values in read],
        "num_params_total": [sum([size for size, _ in each]) for each in sizes],
        "num_params_trainable": [sum([size for size, trained in each if trained]) for each in sizes],
        "parent_params_fsize": [sum([value.nbytes for value in values.values()]) for values in read],
    }


def _edges(operations: list[ExpectedOperation]) -> Columns:
    return {
        "edges": [
            tuple([Edge(parent.label, path, write) for parent, path, write in one.parents]) for one in operations
        ],
        "parent_layers": [tuple(dict.fromkeys([parent.label for parent, _, _ in one.parents])) for one in operations],
        "child_layers": [tuple([child.label for child in one.children]) for one in operations],
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
        if type(arg) in _PLAIN:
            found.append(f"{name}={arg!r}"[:_LONGEST])
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
        self._of_made: dict[int, str] = {}
        """Lines by the id of a call or escape: they are asked for several times."""
        self.place_at = functools.cache(SourcePlace.of_text)

    def of(self, made: Call | Escape) -> str:
        """Return the model's innermost line; ``""`` if there is none."""
        line = self._of_made.get(id(made))
        if line is None:
            code, at = next(model_frames(made), (None, 0))
            line = self._of_made[id(made)] = "" if code is None else self._at(code, at)
        return line

    def _at(self, code: CodeType, at: int) -> str:
        known = self._known.get((id(code), at))
        if known is None:
            known = self._known[id(code), at] = _place(code, at)
        return known


def _place(code: CodeType, at: int) -> str:
    return f"{code.co_filename}:{line_of_code(code, at)}, in {code.co_name}"


def line_of_code(code: CodeType, at: int) -> int:
    """Return the line of the instruction at a byte offset."""
    for start, end, line in code.co_lines():
        if start <= at < end and line is not None:
            return line
    return code.co_firstlineno
