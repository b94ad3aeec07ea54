"""Finds equal modules in a row, so that a picture draws only one of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from typing import Any
from typing import TypeAlias

from pytest_torchlens.draw.scene import Flow
from pytest_torchlens.draw.scene import Path
from pytest_torchlens.draw.scene import Scene
from pytest_torchlens.draw.scene import Surroundings
from pytest_torchlens.draw.scene import is_source
from pytest_torchlens.records import Operation
from pytest_torchlens.records import address_of

_LONGEST_PERIOD = 4
"""Different blocks may alternate, as in a Swin transformer."""


@dataclass
class Repeats:
    """Which operations represent others.

    Attributes
    ----------
    standing_for
        By label of an operation that is not drawn: the label of the one drawn in its place.
    runs
        By the module call that is drawn: all calls that it represents, itself first.
    """

    standing_for: dict[str, str] = field(default_factory=dict)
    runs: dict[str, Path] = field(default_factory=dict)
    _rounds: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    """By label, for each run that contains the operation: the round."""

    def project(self, flows: Iterable[Flow]) -> Iterator[tuple[Flow, str, str]]:
        """Yield flows with the labels drawn at their ends; flows from one round to the next are left out."""
        for flow in flows:
            tail, head = flow.tail, flow.head
            while not self._crosses(tail, head):
                ends = self.standing_for.get(tail, tail), self.standing_for.get(head, head)
                if ends == (tail, head):
                    yield flow, tail, head
                    break
                tail, head = ends

    def _crosses(self, tail: str, head: str) -> bool:
        there = self._rounds.get(head, {})
        return any(there.get(run, number) != number for run, number in self._rounds.get(tail, {}).items())

    def add(self, blocks: list[_ModuleBlock], period: int) -> None:
        """Let the first `period` blocks represent the others."""
        name = blocks[0].call
        for place, block in enumerate(blocks):
            first = blocks[place % period]
            self.runs[first.call] = (*self.runs.get(first.call, ()), block.call)
            for own, shown in zip(block.operations, first.operations, strict=True):
                self._rounds[own.label][name] = place // period
                if own is not shown:
                    self.standing_for[own.label] = shown.label


@dataclass(frozen=True)
class _ModuleBlock:
    """A module call, or an operation next to module calls."""

    call: str
    operations: list[Operation]
    signature: object
    name: str
    """Its name in the picture."""
    reads: tuple[str, ...]
    """Labels of the outside operations that it reads, in the order of the reads."""


def find_repeats(scene: Scene, surroundings: Surroundings, *, is_rolled: bool) -> Repeats:
    """Return the equal modules that the same module called in a row, with nothing between.

    A rolled picture draws all calls of one module as one anyway, so such calls do not count as a row.
    """
    found = Repeats()
    _Finder(scene, surroundings, is_rolled).search((), list(scene.operations), found)
    return found


class _Finder:
    def __init__(self, scene: Scene, surroundings: Surroundings, is_rolled: bool) -> None:
        self.is_rolled = is_rolled
        self.paths = surroundings.paths
        self.types = {module.address: module.module_type for module in scene.history.modules}
        self.marks = scene.marks
        self.edits = scene.edits
        self.inflows: dict[str, list[Flow]] = defaultdict(list)
        for flow in scene.flows:
            self.inflows[flow.head].append(flow)
        self.answers: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for escape in scene.history.escapes:
            self.answers[escape.operation].append((escape.statement, escape.branch))

    def search(self, path: Path, operations: list[Operation], found: Repeats) -> None:
        """Search the calls that the innermost call of `path` made, then inside those that are drawn."""
        blocks = self._blocks(path, operations)
        row = _Row(blocks)
        place = 0
        while place < len(blocks):
            period, rounds = row.longest(place)
            if rounds > 1:
                found.add(blocks[place : place + period * rounds], period)
            for block in blocks[place : place + period]:
                if block.call:
                    self.search((*path, block.call), block.operations, found)
            place += period * rounds

    def _blocks(self, path: Path, operations: list[Operation]) -> list[_ModuleBlock]:
        inside: dict[str, list[Operation]] = defaultdict(list)
        order: list[tuple[str, list[Operation]]] = []
        for op in operations:
            call = next(iter(self.paths[op.label][len(path) :]), "")
            if not call:
                order += [] if is_source(op) else [("", [op])]
                continue
            if call not in inside:
                order.append((call, inside[call]))
            inside[call].append(op)
        return [
            _ModuleBlock(call, ops, self._signature(path, call, ops), self._name(call), self._reads(ops))
            for call, ops in order
        ]

    def _name(self, call: str) -> str:
        return address_of(call, self.types) if self.is_rolled else call

    def _reads(self, operations: list[Operation]) -> tuple[str, ...]:
        own = {op.label for op in operations}
        return tuple(flow.tail for op in operations for flow in self.inflows[op.label] if flow.tail not in own)

    def _signature(self, path: Path, call: str, operations: list[Operation]) -> object:
        """Return a key that equal blocks share; for a block that cannot repeat, a unique object."""
        if not call or sum(not is_source(op) for op in operations) == 1:
            return object()
        places = {op.label: place for place, op in enumerate(operations)}
        address = address_of(call, self.types)
        return tuple(self._of_operation(op, len(path), address, places) for op in operations)

    def _of_operation(self, op: Operation, level: int, address: str, places: dict[str, int]) -> Any:
        inner = tuple(self._relative(call, address) for call in self.paths[op.label][level:])
        flows = tuple((places.get(flow.tail), flow.argument, flow.edit) for flow in self.inflows[op.label])
        arguments = op.func_position_args_non_tensor, op.func_keyword_args_non_tensor
        tensor = op.tensor_shape, op.tensor_dtype, op.parent_param_shapes, op.num_params_trainable
        differs = self.marks.get(op.label, ""), self.edits.of(op), self.edits.change(op) is None
        return op.layer_type, inner, flows, arguments, tensor, self.answers[op.label], differs

    def _relative(self, call: str, address: str) -> tuple[str, str]:
        """Return a call's address, as seen from the block, and its class."""
        own = address_of(call, self.types)
        return own[len(address) :] if own.startswith(address) else "", self.types.get(own, "")


_Read: TypeAlias = str | tuple[int, int, int]
"""One read of a block: a label outside the row, or how many rounds ago, block of the round, operation."""


class _Row:
    """Consecutive blocks, which may repeat."""

    def __init__(self, blocks: list[_ModuleBlock]) -> None:
        self.blocks = blocks
        self.places = {
            op.label: (number, place)
            for number, block in enumerate(blocks)
            for place, op in enumerate(block.operations)
        }

    def longest(self, start: int) -> tuple[int, int]:
        """Return period and rounds of the longest repetition from `start` on; the shortest period of several."""
        found = ((period, self._rounds(start, period)) for period in range(1, _LONGEST_PERIOD + 1))
        repeated = [(period, rounds) for period, rounds in found if rounds > 1]
        return max(repeated, key=lambda pair: (pair[0] * pair[1], -pair[0]), default=(1, 1))

    def _rounds(self, start: int, period: int) -> int:
        rounds, known = 1, self._names(start, period)
        while self._is_like_before(start, period, rounds):
            names = self._names(start + rounds * period, period)
            if names & known:
                break
            known |= names
            rounds += 1
        return rounds

    def _names(self, start: int, period: int) -> set[str]:
        return {block.name for block in self.blocks[start : start + period]}

    def _is_like_before(self, start: int, period: int, number: int) -> bool:
        if self._signatures(start + number * period, period) != self._signatures(start, period):
            return False
        before, now = (self._reads(start, period, each) for each in (number - 1, number))
        return now == before or (number == 1 and all(map(_is_same_way_in, before, now)))

    def _signatures(self, start: int, period: int) -> list[object]:
        return [block.signature for block in self.blocks[start : start + period]]

    def _reads(self, start: int, period: int, number: int) -> list[_Read]:
        """Return the reads of the blocks of one round, relative to the round."""
        begin = start + number * period
        labels = [label for block in self.blocks[begin : begin + period] for label in block.reads]
        return [self._relative_read(label, start, period, number) for label in labels]

    def _relative_read(self, label: str, start: int, period: int, number: int) -> _Read:
        block, place = self.places.get(label, (-1, -1))
        back, which = divmod(block - start, period)
        return label if block < start else (number - back, which, place)


def _is_same_way_in(first: _Read, second: _Read) -> bool:
    """Whether the first two rounds read alike: the second may read from the first what the first reads from outside."""
    return first == second or (isinstance(first, str) and isinstance(second, tuple) and second[0] == 1)
