"""Holds what a picture shows: operations, the data that flow between them, and the module calls around each.

`Scene` is one forward pass, or two merged.  `Surroundings` knows the module calls around each operation, `Depths` which
module calls are drawn as one node, and `focus_on` cuts a scene down to one module and its neighbours.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from fnmatch import fnmatchcase
from functools import cache
from functools import cached_property
from types import MappingProxyType
from typing import Literal

from pytest_torchlens.draw.draw_options import NestingDepth
from pytest_torchlens.records import EditsByOperation
from pytest_torchlens.records import EscapeRecord
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import Measurements
from pytest_torchlens.records import Operation
from pytest_torchlens.records import address_of
from pytest_torchlens.records import edits_lines
from pytest_torchlens.records import nearest
from pytest_torchlens.records.options import OptionError

Mark = Literal["", "added", "removed", "changed"]


@dataclass(frozen=True)
class Flow:
    """A value that goes from one operation into an argument of another; both are named by label."""

    tail: str
    head: str
    argument: str
    through_write: bool = False
    mark: Mark = ""
    edit: str = ""
    """The edits of this value for this operation alone, in words."""


@dataclass(frozen=True)
class Scene:
    """A forward pass, or two merged."""

    history: HistoryRecord
    operations: tuple[Operation, ...]
    flows: tuple[Flow, ...]
    marks: Mapping[str, Mark] = field(default_factory=lambda: MappingProxyType({}))
    """By label, if two passes are drawn: how they differ."""
    remarks: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """By label: additional lines of a node's text."""
    earlier: Mapping[str, tuple[EscapeRecord, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """By label of an operation of both passes: the reads of its value by Python in the first."""
    title: tuple[str, ...] = ()
    """Additional lines of the title."""
    measurements: Measurements | None = None
    """The costs of the pass; None if they were not measured."""

    @classmethod
    def of(cls, history: HistoryRecord, measurements: Measurements | None = None) -> Scene:
        """Return the scene of one forward pass."""
        known = {
            key: op.label for op in reversed(history.operations) for key in (op.layer_label, op.layer_label_w_pass)
        }
        flows = tuple(
            Flow(known[edge.parent], op.label, edge.argument, edge.through_write)
            for op in history.operations
            for edge in op.edges
            if edge.parent in known
        )
        return cls(history, history.operations, flows, measurements=measurements).with_edits()

    def with_edits(self) -> Scene:
        """Return the scene with the edits on its flows, and in its title."""
        edits = self.history.edits
        if not edits:
            return self
        flows = tuple(dataclasses.replace(flow, edit=self._edit_of(flow)) for flow in self.flows)
        return dataclasses.replace(self, flows=flows, title=(*self.title, *edits_lines(edits)))

    def _edit_of(self, flow: Flow) -> str:
        edits = () if flow.through_write else self.edits.of_edge(flow.tail, flow.head)
        return "; ".join(edit.for_reader for edit in edits)

    @cached_property
    def edits(self) -> EditsByOperation:
        """Which operations are edited, and how much the others changed."""
        return EditsByOperation(self.history)


Path = tuple[str, ...]
"""Module calls, outermost first."""


class Surroundings:
    """Knows, by label, the module calls that each operation is drawn in."""

    def __init__(self, scene: Scene) -> None:
        self._operations = scene.operations
        self._children: dict[str, list[str]] = defaultdict(list)
        for flow in scene.flows:
            self._children[flow.tail].append(flow.head)
        self.paths: dict[str, Path] = {op.label: op.containing_module_origin_nested for op in scene.operations}
        for source in scene.operations:
            if is_source(source) and not self.paths[source.label]:
                self.paths[source.label] = common([self.paths[child] for child in self._children[source.label]])

    @cached_property
    def sizes(self) -> Counter[str]:
        """Number of function calls in each module call, without buffers and constants."""
        seen: set[tuple[str, int | str]] = set()
        for op in self._operations:
            if not is_source(op):
                number = op.call_id if op.call_id >= 0 else op.label
                seen.update((call, number) for call in self.paths[op.label])
        return Counter(call for call, _ in seen)

    @cached_property
    def _bottom(self) -> set[str]:
        """Module calls that consist of one operation."""
        ends = (op for op in self._operations if op.is_bottom_level_submodule_output)
        return {call for op in ends for call in self.paths[op.label][-1:] if self.sizes[call] == 1}

    def boxes_around(self, label: str) -> Path:
        """Return the boxes around a node, without a module of one operation: the node's own shape shows that one."""
        path = self.paths[label]
        return path[:-1] if path and path[-1] in self._bottom else path


def is_source(operation: Operation) -> bool:
    """Whether an operation is a buffer or a constant, which exist before the pass."""
    return operation.is_buffer_layer or operation.is_constant


def common(paths: list[Path]) -> Path:
    """Return the common start of all `paths`."""
    if not paths:
        return ()
    shared = zip(*paths, strict=False)
    length = next((i for i, names in enumerate(shared) if len(set(names)) > 1), min(map(len, paths)))
    return paths[0][:length]


class Depths:
    """Decides which module calls are drawn as one node.

    Parameters
    ----------
    wanted
        As in `DrawOptions.vis_nesting_depth`.
    addresses
        Addresses of the model's modules.

    Raises
    ------
    OptionError
        If a pattern matches no module.
    """

    def __init__(self, wanted: NestingDepth, addresses: Iterable[str]) -> None:
        self._addresses = frozenset(addresses)
        self._patterns = dict(wanted) if isinstance(wanted, Mapping) else {}
        self._whole = None if isinstance(wanted, Mapping) else wanted
        for pattern in self._patterns:
            if not any(fnmatchcase(address, pattern) for address in self._addresses):
                known = nearest(pattern, self._addresses)
                raise OptionError(
                    f"vis_nesting_depth: expected a pattern that matches a module, got {pattern!r}; {known}"
                )
        self._left = cache(self._levels_left)

    def collapsed_at(self, path: Path, start: int) -> int | None:
        """Return the place in `path` of the module call that is drawn as one node; None if none is.

        The first `start` calls are always open, as the picture is about them.
        """
        left = self._whole
        for place, call in enumerate(path):
            if place >= start:
                left = None if left is None else left - 1
            if (own := self._left(call)) is not None:
                left = own
            if left == 0 and place >= start:
                return place
        return None

    def _levels_left(self, call: str) -> int | None:
        """Return the depth of the last pattern that matches."""
        address = address_of(call, self._addresses)
        return next((n for pattern, n in reversed(self._patterns.items()) if fnmatchcase(address, pattern)), None)


def focus_on(scene: Scene, surroundings: Surroundings, focus: str) -> tuple[Scene, frozenset[str]]:
    """Return the part of a scene in a module and next to it, and the labels of the operations next to it.

    Parameters
    ----------
    scene
        The whole scene.
    surroundings
        Its module calls; the paths are cut to the part inside the module.
    focus
        Address of the module, or one call of it (``"cell:2"``).

    Raises
    ------
    OptionError
        If no such module was called.
    """
    known = {module.address for module in scene.history.modules}
    names = {
        focus,
        *(call for path in surroundings.paths.values() for call in path if address_of(call, known) == focus),
    }
    cut = {label: _from(names, path) for label, path in surroundings.paths.items()}
    if not any(cut.values()):
        calls = {
            name for path in surroundings.paths.values() for call in path for name in (call, address_of(call, known))
        }
        raise OptionError(f"focus: expected a module that was called, got {focus!r}; {nearest(focus, calls)}")
    flows = tuple(flow for flow in scene.flows if cut[flow.tail] or cut[flow.head])
    near = {label for flow in flows for label in (flow.tail, flow.head)}
    operations = tuple(op for op in scene.operations if cut[op.label] or op.label in near)
    surroundings.paths = cut
    stubs = frozenset(op.label for op in operations if not cut[op.label])
    return dataclasses.replace(scene, operations=operations, flows=flows), stubs


def _from(names: set[str], path: Path) -> Path:
    return next((path[place:] for place, call in enumerate(path) if call in names), ())
