"""The loops of the model's code that ran layers several times, and what decides when each ends.

``while x.max() > 1: x = x / 2`` evaluates its condition once more than its body, the first time on what enters the
first pass.  Where passes take different branches, the carried value leaves another branch in each.  `CarriedValues`
joins these operations to one layer: their place in the code is the same, and each pass works on the result of the one
before.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator
from types import CodeType
from typing import Any
from typing import NamedTuple

import torch

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Value
from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.calls import Escape
from pytest_torchlens.capture.calls import Frames
from pytest_torchlens.capture.calls import ModuleCall
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.history.control_flow.callees import Callees
from pytest_torchlens.history.control_flow.expressions import uses_of_value
from pytest_torchlens.history.control_flow.syntax import Function
from pytest_torchlens.history.control_flow.syntax import Loop
from pytest_torchlens.history.control_flow.syntax import LoopOrFunction
from pytest_torchlens.history.control_flow.syntax import ancestors
from pytest_torchlens.history.control_flow.syntax import branches_of
from pytest_torchlens.history.control_flow.syntax import called_name
from pytest_torchlens.history.control_flow.syntax import function_of
from pytest_torchlens.history.control_flow.syntax import loops_around
from pytest_torchlens.history.control_flow.syntax import loops_at
from pytest_torchlens.history.control_flow.syntax import node_at
from pytest_torchlens.history.control_flow.syntax import parent_of
from pytest_torchlens.history.control_flow.syntax import reads_around
from pytest_torchlens.history.control_flow.syntax import within
from pytest_torchlens.history.graph import Node
from pytest_torchlens.history.source import by_identity
from pytest_torchlens.history.source import describe
from pytest_torchlens.history.source import model_frames
from pytest_torchlens.history.source import model_frames_of
from pytest_torchlens.records import EscapeRecord
from pytest_torchlens.records import LoopRecord


def repeated_by(node: ast.expr, callees: Callees) -> list[LoopOrFunction]:
    """Return the loops, and functions that may call themselves, whose number of passes hangs on an expression.

    It does where the expression, or what it went into, is in a ``while`` condition, in what a ``for`` goes over, or in
    a condition that leaves the loop or calls again.
    """
    return list(dict.fromkeys(found for use in uses_of_value(node, callees) for found in _loops_decided_by(use)))


def is_returned(node: ast.expr, callees: Callees) -> bool:
    """Return whether an expression, what it went into, or a branch that it decides, is what its function returns."""
    function = next(_functions_around(node), None)
    uses = (use for use in uses_of_value(node, callees) if next(_functions_around(use), None) is function)
    return any(map(_is_result, uses))


def _is_result(node: ast.expr) -> bool:
    below: ast.AST = node
    for above in ancestors(node):
        if isinstance(above, ast.Return | ast.Lambda):
            return True
        if isinstance(above, ast.If) and below is above.test:
            returned = (part.value for part in within(branches_of(above)) if isinstance(part, ast.Return))
            return any(map(_is_literal, returned))
        if isinstance(above, ast.stmt):
            return False
        below = above
    return False


def _is_literal(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is not None


def _loops_decided_by(node: ast.expr) -> Iterator[LoopOrFunction]:
    below: ast.AST = node
    for above in ancestors(node):
        if isinstance(above, ast.If | ast.IfExp) and below is above.test:
            yield from _left_by(above)
        elif isinstance(above, ast.BoolOp) and below is not above.values[-1]:
            yield from _calls_again(above, above.values)
        elif isinstance(above, ast.While | ast.For | ast.AsyncFor) and below in (
            getattr(above, "test", None),
            getattr(above, "iter", None),
        ):
            yield above
            yield from _calls_again(above, above.body)
        if isinstance(above, ast.stmt):
            return
        below = above


def _left_by(condition: ast.If | ast.IfExp) -> Iterator[LoopOrFunction]:
    """Yield the loops that a branch leaves, and the function around it if a branch leaves that or calls it again."""
    around = [loop for loop in loops_around(condition) if isinstance(loop, ast.stmt)]
    branches = branches_of(condition)
    for inner in within(branches):
        if isinstance(inner, ast.Return | ast.Raise):
            yield from around
            yield from _functions_around(condition) if isinstance(inner, ast.Return) else ()
        elif isinstance(inner, ast.Break):
            yield from [loop for loop in loops_around(inner) if isinstance(loop, ast.stmt)][:1]
    yield from _calls_again(condition, branches)


def _calls_again(condition: ast.AST, parts: Iterable[ast.AST]) -> Iterator[LoopOrFunction]:
    for function in _functions_around(condition):
        names = {getattr(function, "name", ""), "self"}
        if any(called_name(inner) in names for inner in within(parts)):
            yield function


def _functions_around(node: ast.AST) -> Iterator[Function]:
    return (above for above in ancestors(node) if isinstance(above, Function))


class _Around(NamedTuple):
    """A loop around a call; a function that calls itself is one."""

    loop: LoopOrFunction
    asks: bool
    """Whether the call is in the question of a ``while``, which is asked once more than the body runs."""
    run: int
    """The call of the module whose forward the loop is part of; 0 for a function that calls itself."""
    place: Frames
    """Positions from the loop's down to the call's."""


class LoopsAround:
    """The loops that calls were made in, innermost first.

    Parameters
    ----------
    callees
        Which functions call themselves.

    Attributes
    ----------
    lines
        ``file:line, in function`` of each loop that was met.
    """

    def __init__(self, callees: Callees) -> None:
        self.lines: dict[LoopOrFunction, str] = {}
        self._callees = callees
        self._in_code: dict[tuple[object, ...], list[_Around]] = {}
        self._around: dict[int, list[_Around]] = {}

    def passes(self, node: Node) -> Iterator[LoopOrFunction]:
        """Yield for each pass of a layer the innermost loop that ran it and another pass."""
        chains = [self._of(each.call) for each in node.passes if each.call is not None]
        times = Counter(run for chain in chains for run in {(around.run, around.loop): None for around in chain})
        for chain in chains:
            innermost = next((around for around in chain if times[around.run, around.loop] > 1), None)
            if innermost is not None:
                yield innermost.loop

    def times(self, calls: Iterable[Call | ModuleCall]) -> dict[LoopOrFunction, int]:
        """Return how often each loop ran its body: the most often that one place in it made a call."""
        made: dict[tuple[LoopOrFunction, bool], Counter[Frames]] = defaultdict(Counter)
        for call in calls:
            for around in self._in(call.parent if isinstance(call, ModuleCall) else call.module, call.frames)[:1]:
                made[around.loop, around.asks][around.place] += 1
        asked = {loop: max(places.values()) - 1 for (loop, asks), places in made.items() if asks}
        return asked | {loop: max(places.values()) for (loop, asks), places in made.items() if not asks}

    def _of(self, call: Call) -> list[_Around]:
        return [*self._in(call.module, call.frames), *self._outside(call.module)]

    def _outside(self, call: ModuleCall | None) -> list[_Around]:
        if call is None:
            return []
        found = self._around.get(id(call))
        if found is None:
            found = self._around[id(call)] = [*self._in(call.parent, call.frames), *self._outside(call.parent)]
        return found

    def _in(self, module: ModuleCall | None, frames: Frames) -> list[_Around]:
        """Return the loops in the code between a module's forward and a call."""
        key = (module and module.address, by_identity(frames))
        found = self._in_code.get(key)
        if found is None:
            found = self._in_code[key] = list(self._find(module, frames))
        return [around._replace(run=around.run and id(module)) for around in found]

    def _find(self, module: ModuleCall | None, frames: Frames) -> Iterator[_Around]:
        place: Frames = ()
        for code, at in model_frames_of(frames):
            place = (*place, code, at)
            expression = node_at(code, at)
            parts = (expression, *ancestors(expression)) if expression is not None else ()
            for loop in loops_at(code, at):
                asks = isinstance(loop, ast.While) and loop.test in parts
                yield _Around(self._note_line(code, loop), asks, -1, by_identity(place))
            function = function_of(code) if self._callees.is_recursive(module, code) else None
            if function is not None:
                yield _Around(self._note_line(code, function), False, 0, by_identity(place))

    def _note_line(self, code: CodeType, loop: LoopOrFunction) -> LoopOrFunction:
        self.lines[loop] = f"{code.co_filename}:{loop.lineno}, in {code.co_name}"
        return loop


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
        whole = _expression_of_same_count(waiting.pop())
        above = parent_of(whole)
        if isinstance(above, ast.For | ast.AsyncFor) and above.iter is whole:
            found.append(above)
        elif isinstance(above, ast.comprehension) and above.iter is whole:
            found += [loop for loop in (parent_of(above),) if isinstance(loop, Loop)]
        names = set(_names(above, whole)) - seen
        seen |= names
        waiting += [read for name in names for read in reads.get(name, ())]
    return found


def _expression_of_same_count(node: ast.expr) -> ast.expr:
    """Return the largest expression around one that is as long, or a number made of how long it is."""
    above = parent_of(node)
    while isinstance(above, ast.expr) and _keeps_count(above, node):
        node, above = above, parent_of(above)
    return node


def _keeps_count(above: ast.expr, node: ast.expr) -> bool:
    if isinstance(above, ast.Call):
        return called_name(above) in (_METHODS if node is above.func else _KEEP_COUNT)
    if isinstance(above, ast.Subscript):
        is_shape = isinstance(node, ast.Attribute) or called_name(node) == "size"
        return node is above.value and is_shape and isinstance(above.slice, ast.Constant) and above.slice.value == 0
    if isinstance(above, ast.Attribute):
        return above.attr in ("shape", *_METHODS)
    return isinstance(above, ast.BinOp)


def _names(statement: ast.AST | None, value: ast.expr) -> Iterator[str]:
    if isinstance(statement, ast.Assign) and statement.value is value:
        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))


def loop_records(recording: Recording, nodes: list[Node], records: Iterable[EscapeRecord]) -> tuple[LoopRecord, ...]:
    """Return the loops of the source that ran layers several times, with what decides when each ends."""
    callees = Callees(recording)
    around = LoopsAround(callees)
    layers: dict[LoopOrFunction, dict[str, None]] = defaultdict(dict)
    for node in nodes:
        if len(node.passes) > 1 and node.pass_num == 1 and node.call is not None:
            for loop in around.passes(node):
                layers[loop][node.layer_label] = None
    if not layers:
        return ()
    decided = _decided_loops(recording, nodes, records, callees)
    times = around.times((*recording.calls, *recording.module_calls))
    return tuple(
        LoopRecord(
            source_line=around.lines[loop],
            layers=tuple(found),
            num_passes=times[loop],
            decided_by=tuple(decided.get(loop, ())),
        )
        for loop, found in layers.items()
    )


def _decided_loops(
    recording: Recording, nodes: list[Node], records: Iterable[EscapeRecord], callees: Callees
) -> dict[LoopOrFunction, dict[str, None]]:
    """Return by loop the values that decide when it ends."""
    found: dict[LoopOrFunction, dict[str, None]] = defaultdict(dict)
    seen: set[object] = set()
    for escape, record in zip(recording.escapes, records, strict=True):
        layer = record.operation.rpartition(":")[0] or record.operation
        said = f"{layer or 'a value'}, asked by {record.statement}: {record.source_line}"
        key = (said, escape.module and escape.module.address, by_identity(escape.frames))
        for loop in () if key in seen else _by_value(escape, callees):
            found[loop][said] = None
        seen.add(key)
    for loop, said in _by_sizes(nodes):
        found[loop][said] = None
    return found


def _by_value(escape: Escape, callees: Callees) -> Iterator[LoopOrFunction]:
    """Yield the loops that a value decides; a helper's result counts where its caller uses it."""
    for code, at in model_frames(escape):
        expression = node_at(code, at)
        if expression is None:
            return
        yield from repeated_by(expression, callees)
        if not is_returned(expression, callees):
            return


def _by_sizes(nodes: list[Node]) -> Iterator[tuple[LoopOrFunction, str]]:
    """Yield by loop the values whose size decides how often it runs."""
    seen: set[tuple[str, int, int]] = set()
    for node in sized_by_data(nodes):
        code, at = next(model_frames(node.call), (None, 0)) if node.call is not None else (None, 0)
        if code is None or (node.layer_label, id(code), at) in seen:
            continue
        seen.add((node.layer_label, id(code), at))
        expression = node_at(code, at)
        for loop in loops_over(expression) if expression is not None else ():
            yield loop, f"{node.layer_label}, by its size: {describe(code, at)}"
