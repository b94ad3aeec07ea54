"""Equal modules in a row, of which one is enough to look at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from pytest_torchlens.draw.scene import Flow
from pytest_torchlens.draw.scene import Scene
from pytest_torchlens.draw.surroundings import Path
from pytest_torchlens.draw.surroundings import Surroundings
from pytest_torchlens.draw.surroundings import is_source
from pytest_torchlens.records import Operation
from pytest_torchlens.records import address_of

_LONGEST_PERIOD = 4
"""Blocks may alternate, as those of a Swin transformer do."""


@dataclass
class Repeats:
    """Which operations stand for others.

    Attributes
    ----------
    standing_for
        By label of an operation that is not drawn: that of the one which is drawn in its place.
    runs
        By the module call that is drawn: all calls that it stands for, itself first.
    """

    standing_for: dict[str, str] = field(default_factory=dict)
    runs: dict[str, Path] = field(default_factory=dict)
    _rounds: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    """By label, for each run that the operation is in: in which round of it."""

    def project(self, flows: Iterable[Flow]) -> Iterator[tuple[Flow, str, str]]:
        """Yield flows with the labels of what is drawn at their ends; those from one round to the next are left out."""
        for flow in flows:
            tail, head = flow.tail, flow.head
            while not self._crosses(tail, head):
                ends = self.standing_for.get(tail, tail), self.standing_for.get(head, head)
                if ends == (tail, head):
                    yield flow, tail, head
                    break
                tail, head = ends

    def drawn(self, label: str) -> str:
        """Return the label of what is drawn for an operation."""
        while label in self.standing_for:
            label = self.standing_for[label]
        return label

    def _crosses(self, tail: str, head: str) -> bool:
        there = self._rounds.get(head, {})
        return any(there.get(run, number) != number for run, number in self._rounds.get(tail, {}).items())

    def add(self, blocks: list[_Block], period: int) -> None:
        """Let the first `period` of the blocks stand for the others."""
        name = blocks[0].call
        for place, block in enumerate(blocks):
            first = blocks[place % period]
            self.runs[first.call] = (*self.runs.get(first.call, ()), block.call)
            for own, shown in zip(block.operations, first.operations, strict=True):
                self._rounds[own.label][name] = place // period
                if own is not shown:
                    self.standing_for[own.label] = shown.label


@dataclass(frozen=True)
class _Block:
    """A module call, or an operation beside module calls."""

    call: str
    operations: list[Operation]
    signature: object


def find_repeats(scene: Scene, surroundings: Surroundings) -> Repeats:
    """Return the equal modules that were called in a row, with nothing between, by the same module."""
    found = Repeats()
    _Finder(scene, surroundings).search((), list(scene.operations), found)
    return found


class _Finder:
    def __init__(self, scene: Scene, surroundings: Surroundings) -> None:
        self.paths = surroundings.paths
        self.types = {module.address: module.module_type for module in scene.history.modules}
        self.marks = scene.marks
        self.inflows: dict[str, list[Flow]] = defaultdict(list)
        for flow in scene.flows:
            self.inflows[flow.head].append(flow)

    def search(self, path: Path, operations: list[Operation], found: Repeats) -> None:
        """Look among the calls that the innermost call of `path` made, then inside those that are drawn."""
        blocks = self._blocks(path, operations)
        signatures = [block.signature for block in blocks]
        place = 0
        while place < len(blocks):
            period, rounds = _longest(signatures, place)
            if rounds > 1:
                found.add(blocks[place : place + period * rounds], period)
            for block in blocks[place : place + period]:
                if block.call:
                    self.search((*path, block.call), block.operations, found)
            place += period * rounds

    def _blocks(self, path: Path, operations: list[Operation]) -> list[_Block]:
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
        return [_Block(call, ops, self._signature(path, call, ops)) for call, ops in order]

    def _signature(self, path: Path, call: str, operations: list[Operation]) -> object:
        """Return what two equal blocks share; for what can have no equal, an object that equals nothing."""
        if not call or sum(not is_source(op) for op in operations) == 1:
            return object()
        places = {op.label: place for place, op in enumerate(operations)}
        address = address_of(call, self.types)
        return tuple(self._of_operation(op, len(path), address, places) for op in operations)

    def _of_operation(self, op: Operation, level: int, address: str, places: dict[str, int]) -> Any:
        inner = tuple(self._relative(call, address) for call in self.paths[op.label][level:])
        flows = tuple((places.get(flow.tail), flow.argument) for flow in self.inflows[op.label])
        arguments = op.func_position_args_non_tensor, op.func_keyword_args_non_tensor
        tensor = op.tensor_shape, op.tensor_dtype, op.parent_param_shapes
        return op.layer_type, inner, flows, arguments, tensor, self.marks.get(op.label, "")

    def _relative(self, call: str, address: str) -> tuple[str, str]:
        """Return a call's address, as seen from the block, and its class."""
        own = address_of(call, self.types)
        return own[len(address) :] if own.startswith(address) else "", self.types.get(own, "")


def _longest(signatures: list[object], start: int) -> tuple[int, int]:
    """Return period and number of rounds of the longest repetition from `start` on; the shortest period of those."""
    found = ((period, _rounds(signatures, start, period)) for period in range(1, _LONGEST_PERIOD + 1))
    repeated = [(period, rounds) for period, rounds in found if rounds > 1]
    return max(repeated, key=lambda pair: (pair[0] * pair[1], -pair[0]), default=(1, 1))


def _rounds(signatures: list[object], start: int, period: int) -> int:
    first = signatures[start : start + period]
    rounds = 1
    while signatures[start + rounds * period : start + (rounds + 1) * period] == first:
        rounds += 1
    return rounds
