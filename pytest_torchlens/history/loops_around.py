"""The loops of the source that calls were made in, and how often each ran its body."""

from __future__ import annotations

import ast
from collections import Counter
from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator
from types import CodeType
from typing import NamedTuple

from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.calls import Frames
from pytest_torchlens.capture.calls import ModuleCall
from pytest_torchlens.history.callees import Callees
from pytest_torchlens.history.graph import Node
from pytest_torchlens.history.source_lines import by_identity
from pytest_torchlens.history.source_lines import model_frames_of
from pytest_torchlens.history.syntax import Repeated
from pytest_torchlens.history.syntax import ancestors
from pytest_torchlens.history.syntax import function_of
from pytest_torchlens.history.syntax import loops_at
from pytest_torchlens.history.syntax import node_at


class _Around(NamedTuple):
    """A loop around a call; a function that calls itself is one."""

    loop: Repeated
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
        self.lines: dict[Repeated, str] = {}
        self._callees = callees
        self._in_code: dict[tuple[object, ...], list[_Around]] = {}
        self._around: dict[int, list[_Around]] = {}

    def passes(self, node: Node) -> Iterator[Repeated]:
        """Yield for each pass of a layer the innermost loop that ran it and another pass."""
        chains = [self._of(each.call) for each in node.passes if each.call is not None]
        times = Counter(run for chain in chains for run in {(around.run, around.loop): None for around in chain})
        for chain in chains:
            innermost = next((around for around in chain if times[around.run, around.loop] > 1), None)
            if innermost is not None:
                yield innermost.loop

    def times(self, calls: Iterable[Call | ModuleCall]) -> dict[Repeated, int]:
        """Return how often each loop ran its body: the most often that one place in it made a call."""
        made: dict[tuple[Repeated, bool], Counter[Frames]] = defaultdict(Counter)
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
                yield _Around(self._named(code, loop), asks, -1, by_identity(place))
            function = function_of(code) if self._callees.is_recursive(module, code) else None
            if function is not None:
                yield _Around(self._named(code, function), False, 0, by_identity(place))

    def _named(self, code: CodeType, loop: Repeated) -> Repeated:
        self.lines[loop] = f"{code.co_filename}:{loop.lineno}, in {code.co_name}"
        return loop
