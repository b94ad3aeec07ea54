"""The loops of the model's code that ran layers several times, and what decides when each ends."""

from __future__ import annotations

import ast
from collections import Counter
from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator
from types import CodeType

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.calls import Frames
from pytest_torchlens.capture.calls import ModuleCall
from pytest_torchlens.history.endings import loops_decided_by
from pytest_torchlens.history.graph import Node
from pytest_torchlens.history.sizes_of_data import loops_over
from pytest_torchlens.history.sizes_of_data import sized_by_data
from pytest_torchlens.history.source_lines import describe
from pytest_torchlens.history.source_lines import model_frames
from pytest_torchlens.history.source_lines import model_frames_of
from pytest_torchlens.history.syntax import ancestors
from pytest_torchlens.history.syntax import loops_at
from pytest_torchlens.history.syntax import node_at
from pytest_torchlens.records import EscapeRecord
from pytest_torchlens.records import LoopRecord

_LoopKey = tuple[str, int, int]
"""File, line and column."""
_Run = tuple[int, _LoopKey]
"""A loop in one call of the module whose forward it is part of."""
_Around = tuple[_Run, bool]
"""A loop around a call, and whether it is the question of a ``while``, which is asked once more than the body runs."""


def loop_records(recording: Recording, nodes: list[Node], records: Iterable[EscapeRecord]) -> tuple[LoopRecord, ...]:
    """Return the loops of the source that ran layers several times, with what decides when each ends."""
    decided = _decided(recording, records)
    for loop, said in _decided_by_sizes(nodes):
        decided[loop].append(said)
    around = _LoopsAround()
    layers: dict[_LoopKey, dict[str, None]] = defaultdict(dict)
    passes: dict[tuple[_LoopKey, bool], Counter[str]] = defaultdict(Counter)
    for node in nodes:
        if len(node.passes) > 1 and node.pass_num == 1 and node.call is not None:
            for loop, asks in around.passes(node):
                layers[loop][node.layer_label] = None
                passes[loop, asks][node.layer_label] += 1
    return tuple(
        LoopRecord(
            source_line=around.lines[loop],
            layers=tuple(found),
            num_passes=max(passes[loop, False].values(), default=max(passes[loop, True].values(), default=1) - 1),
            decided_by=tuple(dict.fromkeys(decided.get(loop, ()))),
        )
        for loop, found in layers.items()
    )


class _LoopsAround:
    """The loops that calls were made in, innermost first."""

    def __init__(self) -> None:
        self.lines: dict[_LoopKey, str] = {}
        self._in_code: dict[tuple[int, ...], list[tuple[_LoopKey, bool]]] = {}
        self._around: dict[int, list[_Around]] = {}

    def passes(self, node: Node) -> Iterable[tuple[_LoopKey, bool]]:
        """Yield for each pass of a layer the innermost loop that ran it and another pass, and whether it only asks."""
        around = [self._of(each.call) for each in node.passes if each.call is not None]
        times = Counter(run for runs in around for run in {run: None for run, _ in runs})
        for runs in around:
            innermost = next(((run, asks) for run, asks in runs if times[run] > 1), None)
            if innermost is not None:
                yield innermost[0][1], innermost[1]

    def _of(self, call: Call) -> list[_Around]:
        return [*self._in(call.module, call.frames), *self._outside(call.module)]

    def _outside(self, call: ModuleCall | None) -> list[_Around]:
        if call is None:
            return []
        found = self._around.get(id(call))
        if found is None:
            found = self._around[id(call)] = [*self._in(call.parent, call.frames), *self._outside(call.parent)]
        return found

    def _in(self, call: ModuleCall | None, frames: Frames) -> list[_Around]:
        key = tuple([part if isinstance(part, int) else id(part) for part in frames])
        found = self._in_code.get(key)
        if found is None:
            found = self._in_code[key] = [loop for code, at in model_frames_of(frames) for loop in self._find(code, at)]
        return [((id(call), loop), asks) for loop, asks in found]

    def _find(self, code: CodeType, at: int) -> Iterable[tuple[_LoopKey, bool]]:
        expression = node_at(code, at)
        within = (expression, *ancestors(expression)) if expression is not None else ()
        for loop in loops_at(code, at):
            key = _key(code, loop)
            self.lines[key] = f"{code.co_filename}:{loop.lineno}, in {code.co_name}"
            yield key, isinstance(loop, ast.While) and loop.test in within


def _decided(recording: Recording, records: Iterable[EscapeRecord]) -> dict[_LoopKey, list[str]]:
    """Return by loop the values that decide when it ends; a helper's result counts where its caller uses it."""
    found: dict[_LoopKey, list[str]] = defaultdict(list)
    seen: set[object] = set()
    for escape, record in zip(recording.escapes, records, strict=True):
        layer = record.operation.rpartition(":")[0] or record.operation
        said = f"{layer or 'a value'}, asked by {record.statement}: {record.source_line}"
        if (said, escape.module and escape.module.address) in seen:
            continue
        seen.add((said, escape.module and escape.module.address))
        for code, at in model_frames(escape):
            expression = node_at(code, at)
            if expression is None:
                break
            for loop in loops_decided_by(expression):
                found[_key(code, loop)].append(said)
            if not _is_returned(expression):
                break
    return found


def _decided_by_sizes(nodes: list[Node]) -> Iterator[tuple[_LoopKey, str]]:
    """Yield by loop the values whose size decides how often it runs."""
    seen: set[tuple[str, int, int]] = set()
    for node in sized_by_data(nodes):
        code, at = next(model_frames(node.call), (None, 0)) if node.call is not None else (None, 0)
        if code is None or (node.layer_label, id(code), at) in seen:
            continue
        seen.add((node.layer_label, id(code), at))
        expression = node_at(code, at)
        for loop in loops_over(expression) if expression is not None else ():
            yield _key(code, loop), f"{node.layer_label}, by its size: {describe(code, at)}"


def _is_returned(expression: ast.expr) -> bool:
    """Return whether the value of an expression, or a branch that it decides, is what its function returns."""
    statement = next((above for above in ancestors(expression) if isinstance(above, ast.stmt | ast.Lambda)), None)
    return isinstance(statement, ast.Return | ast.Lambda)


def _key(code: CodeType, loop: ast.AST) -> _LoopKey:
    return code.co_filename, getattr(loop, "lineno", 0), getattr(loop, "col_offset", 0)
