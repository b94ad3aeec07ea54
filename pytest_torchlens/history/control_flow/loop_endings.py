"""The loops of the model's code that ran layers several times, and what decides when each ends."""

from __future__ import annotations

import ast
import functools
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
from pytest_torchlens.history.source import all_frames_of
from pytest_torchlens.history.source import by_identity
from pytest_torchlens.history.source import is_model_code
from pytest_torchlens.history.source import model_frames
from pytest_torchlens.history.source import place_of
from pytest_torchlens.records import EscapeRecord
from pytest_torchlens.records import LoopRecord


def loop_records(recording: Recording, nodes: list[Node], records: Iterable[EscapeRecord]) -> tuple[LoopRecord, ...]:
    """Return the loops of the source that ran layers several times, with what decides when each ends."""
    callees = Callees(recording)
    enclosing = EnclosingLoops(callees)
    layers: dict[LoopOrFunction, dict[str, None]] = defaultdict(dict)
    for node in nodes:
        if len(node.passes) > 1 and node.pass_num == 1 and node.call is not None:
            for loop in enclosing.passes(node):
                layers[loop][node.layer_label] = None
    if not layers:
        return ()
    reasons = _reasons_by_loop(recording, nodes, records, callees)
    times = enclosing.times((*recording.calls, *recording.module_calls))
    return tuple(
        LoopRecord(
            source_line=enclosing.lines[loop],
            layers=tuple(labels),
            num_passes=times[loop],
            decided_by=tuple(reasons.get(loop, ())),
        )
        for loop, labels in layers.items()
    )


def _reasons_by_loop(
    recording: Recording, nodes: list[Node], records: Iterable[EscapeRecord], callees: Callees
) -> dict[LoopOrFunction, dict[str, None]]:
    """Return for each loop a text for each value that decides when it ends."""
    reasons: dict[LoopOrFunction, dict[str, None]] = defaultdict(dict)
    expressions = _Expressions(callees)
    seen: set[object] = set()
    for escape, record in zip(recording.escapes, records, strict=True):
        layer = record.operation.rpartition(":")[0] or record.operation
        reason = f"{layer or 'a value'}, asked by {record.statement}: {record.source_line}"
        key = (reason, escape.module and escape.module.address, by_identity(escape.frames))
        for loop in () if key in seen else _loops_decided_by_value(escape, expressions):
            reasons[loop][reason] = None
        seen.add(key)
    for loop, reason in _loops_decided_by_size(nodes):
        reasons[loop][reason] = None
    return reasons


class _Expressions:
    """What follows from an expression, found once for each: a recursive function asks it in other frames each time."""

    def __init__(self, callees: Callees) -> None:
        self.loops = functools.cache(functools.partial(loops_depending_on, callees=callees))
        self.is_returned = functools.cache(functools.partial(is_returned, callees=callees))


def _loops_decided_by_value(escape: Escape, expressions: _Expressions) -> Iterator[LoopOrFunction]:
    """Yield the loops that a value decides; if a function returns the value, look at its caller too."""
    for code, at in model_frames(escape):
        expression = node_at(code, at)
        if expression is None:
            return
        yield from expressions.loops(expression)
        if not expressions.is_returned(expression):
            return


def loops_depending_on(node: ast.expr, callees: Callees) -> list[LoopOrFunction]:
    """Return the loops, and the functions that may call themselves, whose number of passes depends on an expression.

    The expression, or something computed from it, is in the condition of a ``while``, in the iterable of a ``for``, or
    in a condition that leaves the loop or calls the function again.
    """
    return list(dict.fromkeys(loop for use in uses_of_value(node, callees) for loop in _loops_decided_by(use)))


def _loops_decided_by(node: ast.expr) -> Iterator[LoopOrFunction]:
    below: ast.AST = node
    for above in ancestors(node):
        if isinstance(above, ast.If | ast.IfExp) and below is above.test:
            yield from _loops_left_by(above)
        elif isinstance(above, ast.BoolOp) and below is not above.values[-1]:
            yield from _functions_called_again(above, above.values)
        elif isinstance(above, ast.While | ast.For | ast.AsyncFor) and below in (
            getattr(above, "test", None),
            getattr(above, "iter", None),
        ):
            yield above
            yield from _functions_called_again(above, above.body)
        if isinstance(above, ast.stmt):
            return
        below = above


def _loops_left_by(condition: ast.If | ast.IfExp) -> Iterator[LoopOrFunction]:
    """Yield the loops that a branch leaves, and the function around it if a branch returns or calls it again."""
    around = [loop for loop in loops_around(condition) if isinstance(loop, ast.stmt)]
    branches = branches_of(condition)
    for inner in within(branches):
        if isinstance(inner, ast.Return | ast.Raise):
            yield from around
            yield from _functions_around(condition) if isinstance(inner, ast.Return) else ()
        elif isinstance(inner, ast.Break):
            yield from [loop for loop in loops_around(inner) if isinstance(loop, ast.stmt)][:1]
    yield from _functions_called_again(condition, branches)


def _functions_called_again(condition: ast.AST, parts: Iterable[ast.AST]) -> Iterator[LoopOrFunction]:
    for function in _functions_around(condition):
        names = {getattr(function, "name", ""), "self"}
        if any(called_name(inner) in names for inner in within(parts)):
            yield function


def _functions_around(node: ast.AST) -> Iterator[Function]:
    return (above for above in ancestors(node) if isinstance(above, Function))


def is_returned(node: ast.expr, callees: Callees) -> bool:
    """Return whether a function returns an expression, something computed from it, or a literal that it decides on."""
    function = next(_functions_around(node), None)
    uses = (use for use in uses_of_value(node, callees) if next(_functions_around(use), None) is function)
    return any(map(_is_result, uses))


def _is_result(node: ast.expr) -> bool:
    below: ast.AST = node
    for above in ancestors(node):
        if isinstance(above, ast.Return | ast.Lambda):
            return True
        if isinstance(above, ast.If) and below is above.test:
            results = (part.value for part in within(branches_of(above)) if isinstance(part, ast.Return))
            return any(map(_is_literal, results))
        if isinstance(above, ast.stmt):
            return False
        below = above
    return False


def _is_literal(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is not None


def _loops_decided_by_size(nodes: list[Node]) -> Iterator[tuple[LoopOrFunction, str]]:
    """Yield each loop whose number of passes a tensor's size decides, with a text for that tensor."""
    seen: set[tuple[str, int, int]] = set()
    for node in sized_by_data(nodes):
        code, at = next(model_frames(node.call), (None, 0)) if node.call is not None else (None, 0)
        if code is None or (node.layer_label, id(code), at) in seen:
            continue
        seen.add((node.layer_label, id(code), at))
        expression = node_at(code, at)
        for loop in loops_over(expression) if expression is not None else ():
            yield loop, f"{node.layer_label}, by its size: {place_of(code, at)}"


_SIZED_BY_VALUES = ("nonzero", "argwhere", "maskedselect", "unique", "unique2", "uniqueconsecutive", "bincount", "nms")


_KEEP_COUNT = ("enumerate", "zip", "reversed", "range", "len", "int", "list", "tuple", "iter", "tqdm", "trange")


_COUNT_METHODS = ("size", "unbind", "numel", "tolist", "split")


def sized_by_data(nodes: list[Node]) -> list[Node]:
    """Return the operations whose first dimension depends on values, and those that keep that dimension."""
    sized: dict[int, Node] = {}
    for node in nodes:
        rows = node.value.shape[:1]
        keeps_rows = any(id(parent) in sized and parent.value.shape[:1] == rows for parent, _, _ in node.parents)
        if node.call is not None and node.from_input and (_chooses(node.call) or (rows and keeps_rows)):
            sized[id(node)] = node
    return list(sized.values())


def _chooses(call: Call) -> bool:
    name, rest = call.info.layer_type.replace("_", ""), call.args[1:]
    if name == "getitem":
        return any(_is_mask(part) for part in rest)
    if name == "where":
        return not rest and not call.kwargs
    return name in _SIZED_BY_VALUES or (
        name == "repeatinterleave" and any(isinstance(part, Value | Aliased) for part in rest)
    )


def _is_mask(index: Any) -> bool:
    if isinstance(index, list | tuple):
        return any(map(_is_mask, index))
    return isinstance(index, Value | Aliased) and value_of(index).dtype is torch.bool and bool(value_of(index).shape)


def loops_over(expression: ast.expr) -> list[Loop]:
    """Return the loops over the value of an expression or a range of its size; the value may be assigned to a name."""
    reads = reads_around(expression)
    waiting: list[ast.expr] = [expression]
    loops: list[Loop] = []
    seen: set[str] = set()
    while waiting:
        whole = _expression_of_same_count(waiting.pop())
        above = parent_of(whole)
        if isinstance(above, ast.For | ast.AsyncFor) and above.iter is whole:
            loops.append(above)
        elif isinstance(above, ast.comprehension) and above.iter is whole:
            loops += [loop for loop in (parent_of(above),) if isinstance(loop, Loop)]
        names = set(_assigned_names(above, whole)) - seen
        seen |= names
        waiting += [read for name in names for read in reads.get(name, ())]
    return loops


def _expression_of_same_count(node: ast.expr) -> ast.expr:
    """Return the largest expression around `node` with the same length, or a number computed from that length."""
    above = parent_of(node)
    while isinstance(above, ast.expr) and _keeps_count(above, node):
        node, above = above, parent_of(above)
    return node


def _keeps_count(above: ast.expr, node: ast.expr) -> bool:
    if isinstance(above, ast.Call):
        return called_name(above) in (_COUNT_METHODS if node is above.func else _KEEP_COUNT)
    if isinstance(above, ast.Subscript):
        is_shape = isinstance(node, ast.Attribute) or called_name(node) == "size"
        return node is above.value and is_shape and isinstance(above.slice, ast.Constant) and above.slice.value == 0
    if isinstance(above, ast.Attribute):
        return above.attr in ("shape", *_COUNT_METHODS)
    return isinstance(above, ast.BinOp)


def _assigned_names(statement: ast.AST | None, value: ast.expr) -> Iterator[str]:
    if isinstance(statement, ast.Assign) and statement.value is value:
        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))


class _EnclosingLoop(NamedTuple):
    """A loop around a call; a recursive function counts as a loop."""

    loop: LoopOrFunction
    in_condition: bool
    """Whether the call is in the condition of a ``while``, which runs once more than the body."""
    module_call: int
    """The id of the module call whose forward contains the loop; 0 for a recursive function."""
    positions: Frames
    """Code positions from the loop's frame down to the call's."""


class EnclosingLoops:
    """The loops that calls were made in, innermost first.

    Parameters
    ----------
    callees
        The recursive functions.

    Attributes
    ----------
    lines
        ``file:line, in function`` of each loop found so far.
    """

    def __init__(self, callees: Callees) -> None:
        self.lines: dict[LoopOrFunction, str] = {}
        self._callees = callees
        self._inside_cache: dict[tuple[object, ...], list[_EnclosingLoop]] = {}
        self._in_call_cache: dict[tuple[int, tuple[object, ...]], list[_EnclosingLoop]] = {}
        self._outside_cache: dict[int, list[_EnclosingLoop]] = {}

    def passes(self, node: Node) -> Iterator[LoopOrFunction]:
        """Yield for each pass of a layer the innermost loop that ran it and another pass."""
        chains = [self._of(each.call) for each in node.passes if each.call is not None]
        times = Counter(key for chain in chains for key in {(each.module_call, each.loop): None for each in chain})
        for chain in chains:
            innermost = next((each for each in chain if times[each.module_call, each.loop] > 1), None)
            if innermost is not None:
                yield innermost.loop

    def times(self, calls: Iterable[Call | ModuleCall]) -> dict[LoopOrFunction, int]:
        """Return how often each loop ran its body: the largest number of calls from one place in it."""
        counts: dict[tuple[LoopOrFunction, bool], Counter[Frames]] = defaultdict(Counter)
        for call in calls:
            module = call.parent if isinstance(call, ModuleCall) else call.module
            for innermost in self._inside(module, call.frames)[:1]:
                counts[innermost.loop, innermost.in_condition][innermost.positions] += 1
        most = {key: max(by_positions.values()) for key, by_positions in counts.items()}
        whiles = {loop: count - 1 for (loop, in_condition), count in most.items() if in_condition}
        return whiles | {loop: count for (loop, in_condition), count in most.items() if not in_condition}

    def _of(self, call: Call) -> list[_EnclosingLoop]:
        return [*self._inside(call.module, call.frames), *self._outside(call.module)]

    def _outside(self, call: ModuleCall | None) -> list[_EnclosingLoop]:
        if call is None:
            return []
        loops = self._outside_cache.get(id(call))
        if loops is None:
            inside = self._inside(call.parent, call.frames)
            loops = self._outside_cache[id(call)] = [*inside, *self._outside(call.parent)]
        return loops

    def _inside(self, module: ModuleCall | None, frames: Frames) -> list[_EnclosingLoop]:
        """Return the loops between a module's forward and a call in it."""
        positions = by_identity(frames)
        in_call = self._in_call_cache.get((id(module), positions))
        if in_call is None:
            key = (module and module.address, positions)
            loops = self._inside_cache.get(key)
            if loops is None:
                loops = self._inside_cache[key] = list(self._find(module, frames))
            in_call = [one._replace(module_call=one.module_call and id(module)) for one in loops]
            self._in_call_cache[id(module), positions] = in_call
        return in_call

    def _find(self, module: ModuleCall | None, frames: Frames) -> Iterator[_EnclosingLoop]:
        chain: Frames = ()
        for code, at in all_frames_of(frames):
            chain = (*chain, code, at)  # a library's code makes several calls from one place of the model's
            if not is_model_code(code):
                continue
            expression = node_at(code, at)
            parts = (expression, *ancestors(expression)) if expression is not None else ()
            for loop in loops_at(code, at):
                in_condition = isinstance(loop, ast.While) and loop.test in parts
                yield _EnclosingLoop(self._note_line(code, loop), in_condition, -1, by_identity(chain))
            function = function_of(code) if self._callees.is_recursive(module, code) else None
            if function is not None:
                yield _EnclosingLoop(self._note_line(code, function), False, 0, by_identity(chain))

    def _note_line(self, code: CodeType, loop: LoopOrFunction) -> LoopOrFunction:
        self.lines[loop] = f"{code.co_filename}:{loop.lineno}, in {code.co_name}"
        return loop
