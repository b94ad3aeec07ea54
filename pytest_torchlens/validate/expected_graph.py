"""Derives from a recording alone which operations its history must have, and what each of them reads.

This is the second witness for the graph: it shares no code with `history`, and finds the maker of a value by the
number of the call and the place among its outputs, where `history` goes by the identity of the value.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import torch

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Source
from pytest_torchlens.capture import Value
from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.calls import ModuleCall
from pytest_torchlens.capture.functions import SHAPE_OF_FIRST
from pytest_torchlens.capture.leaves import ATOMS
from pytest_torchlens.capture.leaves import UnpackedObject
from pytest_torchlens.capture.leaves import is_lazy

Key = tuple[int, int]
"""Number of the call that made a value and its place there; -1 and the place among the sources for a source."""


class ExpectedOperation:
    """An operation, input, output, buffer or constant that must be in the history.

    Attributes
    ----------
    kind, value, number, call, source
        What it is, its tensor's state, the call that made it (-1 and None if none did), the source that it is.
    parents
        Operation, argument path, and whether it is reached through a write to shared memory.
    parameters
        Parameters among the arguments.
    children
        Operations that read it, in order, each once.
    from_input, to_output, is_condition, in_cond_branch
        Whether it descends from an input, leads to an output, was asked for by a condition, serves conditions alone.
    entered, exited
        Module calls that its value goes into, and comes out of, the innermost first.
    label, layer_label, label_w_pass, layer_type, type_num, total_num, pass_num, passes, operation_num
        Its name and numbers, once `expected_labels.number_operations` has counted.
    """

    __slots__ = (
        *("call", "children", "entered", "exited", "from_input", "in_cond_branch", "is_condition", "kind"),
        *("label", "label_w_pass", "layer_label", "layer_type", "number", "operation_num", "parameters", "parents"),
        *("pass_num", "passes", "source", "to_output", "total_num", "type_num", "value"),
    )

    def __init__(
        self, kind: str, value: Value, number: int = -1, call: Call | None = None, source: Source | None = None
    ) -> None:
        self.kind, self.value, self.number, self.call, self.source = kind, value, number, call, source
        self.parents: list[tuple[ExpectedOperation, str, bool]] = []
        self.parameters: list[Source] = []
        self.children: list[ExpectedOperation] = []
        self.from_input, self.to_output = kind == "input", kind == "output"
        self.is_condition = self.in_cond_branch = False
        self.entered: list[ModuleCall] = []
        self.exited: list[ModuleCall] = []
        self.label = self.layer_label = self.label_w_pass = ""
        self.layer_type = kind if call is None else call.info.layer_type.replace("_", "")
        self.type_num, self.total_num, self.operation_num, self.pass_num = 0, -1, -1, 1
        self.passes: list[ExpectedOperation] = [self]

    @property
    def is_numbered(self) -> bool:
        """Whether it counts as a layer: buffers and constants do not."""
        return self.kind not in ("buffer", "constant")


class ExpectedGraph:
    """The operations in execution order.

    Attributes
    ----------
    operations
        Inputs first, outputs last, other sources before their first reader.
    faults
        Number of a call and what is wrong with its arguments, in order.
    first_readers
        Number of the first call that reads a source, by the place of the source.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._makers: dict[Key, ExpectedOperation | Source] = {}
        self._written = {one.value.slot: one for one in recording.sources if one.kind == "parameter"}
        self.faults: list[tuple[int, str]] = []
        self.first_readers: dict[int, int] = {}
        self._slots = {source.value.slot for source in recording.sources}
        self.operations: list[ExpectedOperation] = []
        for place, source in enumerate(recording.sources):
            if source.kind == "input":
                self._enter((-1, place), ExpectedOperation("input", source.value, source=source))
        for number, call in enumerate(recording.calls):
            self._add_call(number, call)
        for _, read in recording.outputs:
            output = ExpectedOperation("output", read.value if isinstance(read, Aliased) else read)
            self._connect([output], [("", read)], -1)
            self.operations.append(output)
        self._keep_what_has_a_part()
        self.by_value = {
            (one.number, one.value.position): one for one in self.operations if one.kind != "output"
        }  # of a source the number is -1
        self._note_modules()

    def operation_of(self, value: Value | None) -> ExpectedOperation | None:
        """Return the operation whose tensor a value is; None if it has no part in the graph."""
        return None if value is None else self.by_value.get((value.call, value.position))

    def unlink(self) -> None:
        """Undo the cycles among the operations: what they hold is freed now, not at some garbage collection."""
        for one in (*self.operations, *self._makers.values()):
            if isinstance(one, ExpectedOperation):
                one.parents, one.children, one.passes = [], [], []

    def _add_call(self, number: int, call: Call) -> None:
        reads = list(self._reads(number, call))
        if call.info.bookkeeping:
            if reads and call.outputs:
                self._makers[number, 0] = self._maker(reads[0][1], number)
            return
        self._note_slots(number, call, reads)
        made = [ExpectedOperation("operation", value, number, call) for value in call.outputs]
        self._connect(made, reads, number)
        for place, operation in enumerate(made):
            self._enter((number, place), operation)

    def _note_slots(self, number: int, call: Call, reads: list[tuple[str, Value | Aliased]]) -> None:
        """Note the tensors that a call gave; one that was there before must be one that it was given.

        Code that autograd ran inside a gradient may write to any tensor.
        """
        runs_any_code = call.info.opaque or number in self._recording.code_in_gradients
        given = {(read.value if isinstance(read, Aliased) else read).slot for _, read in reads}
        for value in call.outputs:
            if value.slot in self._slots and value.slot not in given and not runs_any_code:
                self.faults.append((number, "its result is recorded as a tensor from before that it was not given"))
        self._slots.update(value.slot for value in call.outputs)

    def _reads(self, number: int, call: Call) -> Iterator[tuple[str, Value | Aliased]]:
        for path, leaf in tensors_in(call):
            if isinstance(leaf, torch.Tensor):
                if self._was_lazy(number, call, leaf):
                    continue
                what = f"a tensor of shape {tuple(leaf.shape)} itself, in place of the value that was recorded"
                self.faults.append((number, f"its argument {path} is {what}"))
            else:
                yield path, leaf

    def _was_lazy(self, number: int, call: Call, tensor: torch.Tensor) -> bool:
        """Return whether a tensor had no value yet when the call ran: a lazy one, which learned its shape later."""
        later = any(tensor is source.live and source.since >= number for source in self._recording.sources)
        return later or (call.info.layer_type == "data" and isinstance(tensor, torch.nn.Parameter))

    def _connect(self, made: list[ExpectedOperation], reads: list[tuple[str, Value | Aliased]], number: int) -> None:
        parents: list[tuple[ExpectedOperation, str, bool]] = []
        parameters: list[Source] = []
        for path, read in reads:
            value, writes = (read.base, read.writes) if isinstance(read, Aliased) else (read, ())
            maker = self._maker(value, number)
            if isinstance(maker, Source):
                parameters.append(maker)
            else:
                parents.append((maker, path, False))
                if value.slot in self._written:
                    parameters.append(self._written[value.slot])
            written = [self._maker(write, number) for write in writes]
            parents.extend((write, path, True) for write in written if isinstance(write, ExpectedOperation))
        from_input = any(parent.from_input for parent, _, _ in parents)
        for one in made:
            one.parents, one.parameters = parents, parameters
            one.from_input = from_input and not (one.call and one.call.info.layer_type in SHAPE_OF_FIRST)

    def _maker(self, read: Value | Aliased, number: int) -> ExpectedOperation | Source:
        """Return the operation that made a value, or the parameter that it is."""
        value = read.value if isinstance(read, Aliased) else read
        key = (value.call, value.position)
        if value.call < 0 <= number:
            self.first_readers.setdefault(value.position, number)
        known = self._makers.get(key)
        if known is not None:
            return known
        sources = self._recording.sources
        if value.call >= 0 or value.position not in range(len(sources)):
            self.faults.append((number, "it reads a value that no call before it made"))
            return ExpectedOperation("constant", value)
        source = sources[value.position]
        if source.kind == "parameter":
            return source
        return self._enter(key, ExpectedOperation(source.kind, value, source=source))

    def _enter(self, key: Key, operation: ExpectedOperation) -> ExpectedOperation:
        self._makers[key] = operation
        self.operations.append(operation)
        return operation

    def _keep_what_has_a_part(self) -> None:
        """Leave out what neither descends from an input nor leads to an output, nor is part of what does."""
        needed: set[int] = set()
        for one in reversed(self.operations):
            if one.to_output:
                for parent, _, _ in one.parents:
                    parent.to_output = True
            if one.kind == "input" or one.from_input or one.to_output:
                needed.add(id(one))
            if id(one) in needed:
                needed.update(id(parent) for parent, _, _ in one.parents)
        kept = [one for one in self.operations if id(one) in needed]
        for one in kept:
            for parent in {id(parent): parent for parent, _, _ in one.parents}.values():
                parent.children.append(one)
        self.operations = [one for one in kept if one.children or one.is_numbered]

    def _note_modules(self) -> None:
        for call in self._recording.module_calls:
            if call.parent is not None:
                for values, attribute in ((call.inputs, "entered"), (call.outputs, "exited")):
                    for key in dict.fromkeys((value.call, value.position) for value in values):
                        if (operation := self.by_value.get(key)) is not None:
                            getattr(operation, attribute).append(call)
        for operation in self.operations:
            if len(operation.exited) > 1:
                operation.exited.sort(key=lambda call: -len(list(call.stack())))


def tensors_in(call: Call) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each tensor in the recorded arguments of a call, and each tensor that was left there."""
    entered: set[int] = set()
    for place, arg in enumerate(call.args):
        if type(arg) is Value:  # nearly all, and a generator for each costs
            yield str(place), arg
        elif type(arg) not in ATOMS:
            yield from _tensors_in(arg, str(place), entered)
    for name, arg in call.kwargs.items():
        yield from _tensors_in(arg, name, entered)


def _tensors_in(template: Any, path: str, entered: set[int]) -> Iterator[tuple[str, Any]]:
    kind = type(template)
    if kind is Value or kind is Aliased or (isinstance(template, torch.Tensor) and not is_lazy(template)):
        yield path, template
        return
    if kind is UnpackedObject:
        if id(template) in entered:
            return
        entered.add(id(template))
    for name, item in _parts(template):
        yield from _tensors_in(item, f"{path}.{name}", entered)


def _parts(template: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(template, list | tuple):
        return enumerate(template)
    if isinstance(template, dict):
        return template.items()
    if isinstance(template, slice):
        return [(name, getattr(template, name)) for name in ("start", "stop", "step")]
    return template.parts.items() if isinstance(template, UnpackedObject) else ()
