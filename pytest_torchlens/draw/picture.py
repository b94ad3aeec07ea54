"""Decides what is drawn: nodes, arrows and module boxes, without shapes and colours."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from functools import cached_property

from pytest_torchlens.draw.draw_options import DrawOptions
from pytest_torchlens.draw.repeated_modules import Repeats
from pytest_torchlens.draw.repeated_modules import find_repeats
from pytest_torchlens.draw.scene import Depths
from pytest_torchlens.draw.scene import Flow
from pytest_torchlens.draw.scene import Mark
from pytest_torchlens.draw.scene import Path
from pytest_torchlens.draw.scene import Scene
from pytest_torchlens.draw.scene import Surroundings
from pytest_torchlens.draw.scene import common
from pytest_torchlens.draw.scene import focus_on
from pytest_torchlens.draw.text import layer_id
from pytest_torchlens.draw.text import module_id
from pytest_torchlens.draw.text import node_id
from pytest_torchlens.records import Operation
from pytest_torchlens.records import address_of
from pytest_torchlens.records import pass_label
from pytest_torchlens.records import pass_of


@dataclass(frozen=True)
class DrawnNode:
    """One operation, a layer with all its passes, or a module call that is drawn as one node."""

    id: str
    operations: tuple[Operation, ...]
    boxes: Path
    """The module calls whose boxes surround it, outermost first."""
    module: str | None = None
    """The module call that it represents; None for an operation."""
    num_passes: int = 1
    """More than one if all passes of a layer or module are drawn as one."""
    is_stub: bool = False
    """Whether it is outside the focus of the picture."""
    is_section: bool = False
    """Whether it represents nodes in a row, which `module` names by the first and the last."""
    edits: tuple[str, ...] = ()
    """The edits of its tensors and parameters, in words."""
    changes: tuple[float, ...] = ()
    """How much edits changed its tensors; a module's are those of its last operation."""

    @property
    def representative(self) -> Operation:
        """The operation that gives the node its text."""
        return self.operations[0]


@dataclass(frozen=True)
class Arrow:
    """Data that flow from one node into another, by one or more arguments."""

    tail: DrawnNode
    head: DrawnNode
    arguments: tuple[str, ...]
    out_label: str = ""
    """``"Out 1-2"`` if only some passes of the tail send data."""
    in_label: str = ""
    mark: Mark = ""
    edit: str = ""
    """The edits of these data for the head alone, in words."""
    through_write: bool = False
    """Whether the tail wrote in place to a tensor that another operation made."""
    starts_condition: bool = False
    """Whether it leads from an operation that outputs depend on to one that only a condition depends on."""


@dataclass(frozen=True)
class Picture:
    """Everything the drawing shows, in execution order."""

    nodes: tuple[DrawnNode, ...]
    arrows: tuple[Arrow, ...]
    options: DrawOptions
    """The user's options; rolled if the picture would otherwise be too large."""
    gradients: tuple[tuple[DrawnNode, DrawnNode], ...] = ()
    """Ends of the arrows of the backward pass."""
    level: int | None = None
    """If there are too many nodes: the level from which modules are drawn as one node."""
    runs: Mapping[str, Path] = field(default_factory=dict)
    """By module call that is drawn: all equal calls that it represents, if several."""
    rolled_to_fit: bool = False
    num_left_out: int = 0
    """Operations that are left out, because there were too many nodes even with all modules collapsed."""
    num_in_full: int = 0
    """Operations that could be drawn."""


def compose(scene: Scene, options: DrawOptions, gradients: frozenset[str] = frozenset()) -> Picture:
    """Return what to draw, with modules collapsed until at most ``max_nodes`` nodes are left.

    Parameters
    ----------
    scene
        The pass, or two merged passes.
    options
        What the picture shows.
    gradients
        Labels of the operations whose tensors a backward pass reached.

    Raises
    ------
    OptionError
        If the options name a module that does not exist.
    """
    composer = Composer(scene, options)
    if not composer.fit() and not options.is_rolled and any(op.pass_num > 1 for op in scene.operations):
        rolled = compose(scene, dataclasses.replace(options, vis_opt="rolled"), gradients)
        return dataclasses.replace(rolled, rolled_to_fit=True)
    nodes = composer.nodes()
    most = options.max_nodes or len(nodes)
    shown = nodes[:most]
    return Picture(
        tuple(shown),
        tuple(composer.arrows(shown)),
        options,
        tuple(composer.gradients(shown, gradients)),
        composer.level,
        composer.runs(),
        num_left_out=sum(len(node.operations) for node in nodes[most:]),
        num_in_full=len(composer.scene.operations),
    )


class Composer:
    """Gathers the operations of a scene into nodes, and the data between them into arrows."""

    def __init__(self, scene: Scene, options: DrawOptions) -> None:
        self.options = options
        self.addresses = {module.address for module in scene.history.modules}
        self.passes = {module.address: module.num_passes for module in scene.history.modules}
        self.layers = Counter(op.layer_label for op in scene.operations)
        self.around = Surroundings(scene)
        self.scene, self.stubs = scene, frozenset[str]()
        if options.focus is not None:
            self.scene, self.stubs = focus_on(scene, self.around, options.focus)
        self.start = 0 if options.focus is None else 1
        self.depths = Depths(options.vis_nesting_depth, self.addresses)
        self.repeats = (
            find_repeats(self.scene, self.around, is_rolled=options.is_rolled) if options.repeats else Repeats()
        )
        self.by_label = {op.label: op for op in self.scene.operations}
        self.level: int | None = None
        # A comparison of two passes collapses the modules that are alike in both.
        self.alike = self._calls_alike() if scene.marks and options.vis_nesting_depth is None else frozenset[str]()

    def _calls_alike(self) -> frozenset[str]:
        """Return the module calls without differences inside, and those added or removed as a whole."""
        paths = self.around.paths
        marks: dict[str, set[Mark]] = defaultdict(set)
        for op in self.scene.operations:
            for call in paths[op.label][self.start :]:
                marks[call].add("changed" if self.scene.edits.of(op) else self.scene.marks.get(op.label, ""))
        for flow in self.scene.flows:
            for call in common([paths[flow.tail], paths[flow.head]])[self.start :] if flow.mark or flow.edit else ():
                marks[call].add(flow.mark or "changed")
        return frozenset(call for call, found in marks.items() if len(found) == 1 and found != {"changed"})

    def fit(self) -> bool:
        """Collapse as few modules as needed to fit; return whether the picture fits."""
        if self._fits():
            return True
        if self.options.repeats is None:
            self.repeats = find_repeats(self.scene, self.around, is_rolled=self.options.is_rolled)
        deepest = max(map(len, self.around.paths.values()), default=0)
        for level in range(deepest, self.start, -1):
            if self._fits():
                return True
            self.level = level - self.start
        return self._fits()

    def _fits(self) -> bool:
        return self.options.max_nodes is None or self._num_nodes() <= self.options.max_nodes

    def nodes(self) -> list[DrawnNode]:
        """Return the nodes in order of their first operation."""
        groups: dict[str, list[Operation]] = defaultdict(list)
        for op in self.scene.operations:
            if op.label not in self.repeats.standing_for:
                groups[self._id(op)].append(op)
        return [self._node(key, tuple(group)) for key, group in groups.items()]

    def _num_nodes(self) -> int:
        return len({self._id(op) for op in self.scene.operations if op.label not in self.repeats.standing_for})

    def arrows(self, nodes: list[DrawnNode]) -> Iterator[Arrow]:
        """Yield an arrow for each pair of nodes with data between them, and for each set of passes."""
        carried: dict[tuple[str, str, str, bool, Mark, str], list[tuple[Flow, str, str]]] = defaultdict(list)
        owner = self._owners(nodes)
        for flow, tail, head in self.repeats.project(self.scene.flows):
            if tail in owner and head in owner and not self._is_inside(owner[tail], owner[head], tail, head):
                key = (owner[tail].id, owner[head].id, flow.argument, flow.through_write, flow.mark, flow.edit)
                carried[key].append((flow, tail, head))
        yield from self._by_ends(self._arrow(owner, flows) for flows in carried.values())

    def _arrow(self, owner: Mapping[str, DrawnNode], flows: list[tuple[Flow, str, str]]) -> Arrow:
        flow, tail, head = flows[0]
        sent = self._pass_label("Out", owner[tail], [flow.tail for flow, _, _ in flows])
        got = self._pass_label("In", owner[head], [flow.head for flow, _, _ in flows])
        starts = self.by_label[head].in_cond_branch and not self.by_label[tail].in_cond_branch
        starts = starts and owner[head].module is None
        ends = owner[tail], owner[head]
        return Arrow(*ends, (flow.argument,), sent, got, flow.mark, flow.edit, flow.through_write, starts)

    @staticmethod
    def _by_ends(arrows: Iterable[Arrow]) -> Iterator[Arrow]:
        """Join the arguments of arrows that are otherwise equal."""
        alike: dict[tuple[object, ...], list[Arrow]] = defaultdict(list)
        for arrow in arrows:
            ends = arrow.tail.id, arrow.head.id, arrow.out_label, arrow.in_label
            alike[(*ends, arrow.mark, arrow.edit, arrow.through_write)].append(arrow)
        for first, *others in alike.values():
            arguments = first.arguments + tuple(name for other in others for name in other.arguments)
            starts = any(arrow.starts_condition for arrow in (first, *others))
            yield dataclasses.replace(first, arguments=arguments, starts_condition=starts)

    def gradients(self, nodes: list[DrawnNode], reached: frozenset[str]) -> Iterator[tuple[DrawnNode, DrawnNode]]:
        """Yield the ends of an arrow for each pair of nodes with a gradient between them."""
        owner = self._owners(nodes)
        flows = self.repeats.project(flow for flow in self.scene.flows if {flow.tail, flow.head} <= reached)
        pairs = {(head, tail): None for _, tail, head in flows if tail in owner and head in owner}
        between = {(owner[head].id, owner[tail].id): (owner[head], owner[tail]) for head, tail in pairs}
        return (ends for ends in between.values() if ends[0] is not ends[1])

    def runs(self) -> dict[str, Path]:
        """Return the calls that each drawn call represents, under their shown names."""
        return {self._call_label(first): tuple(map(self._call_label, run)) for first, run in self.repeats.runs.items()}

    def _owners(self, nodes: list[DrawnNode]) -> dict[str, DrawnNode]:
        return {op.label: node for node in nodes for op in node.operations}

    def _is_inside(self, owner: DrawnNode, other: DrawnNode, tail: str, head: str) -> bool:
        """Whether a flow stays in one node and, if that is rolled, in one pass of it."""
        if owner is not other:
            return False
        return not self.options.is_rolled or self._pass_of(owner, tail) == self._pass_of(owner, head)

    def _pass_label(self, word: str, node: DrawnNode, labels: list[str]) -> str:
        return pass_label(word, [self._pass_of(node, label) for label in labels], node.num_passes)

    def _pass_of(self, node: DrawnNode, label: str) -> int:
        if node.module is None:
            return self.by_label[label].pass_num
        return pass_of(self._module_call(label), self.addresses)

    def _module_call(self, label: str) -> str:
        """Return the module call whose node contains an operation; ``""`` if the operation is a node itself."""
        path = self.around.paths[label]
        places = [self.depths.collapsed_at(path, self.start)]
        places.append(next((place for place, call in enumerate(path) if call in self.alike), None))
        if self.level is not None and len(path) >= self.level + self.start:
            places.append(self.level + self.start - 1)
        place = min((place for place in places if place is not None), default=None)
        return "" if place is None or self.around.sizes[path[place]] == 1 else path[place]

    def _id(self, op: Operation) -> str:
        if call := self._module_call(op.label):
            return module_id(self._call_label(call))
        return layer_id(op) if self.options.is_rolled else node_id(op)

    def _call_label(self, call: str) -> str:
        """Return a call's shown name: only the address if passes are drawn as one."""
        return address_of(call, self.addresses) if self.options.is_rolled else call

    def _node(self, key: str, operations: tuple[Operation, ...]) -> DrawnNode:
        first = operations[0]
        call = self._module_call(first.label)
        path = self.around.paths[first.label]
        if call:
            passes = self.passes.get(address_of(call, self.addresses), 1) if self.options.is_rolled else 1
            boxes = map(self._call_label, path[: path.index(call)])
            node = DrawnNode(key, operations, tuple(boxes), self._call_label(call), passes)
            return self._with_edits(node, operations[-1:])
        boxes = map(self._call_label, self.around.boxes_around(first.label))
        passes = self.layers[first.layer_label] if self.options.is_rolled else 1
        node = DrawnNode(key, operations, tuple(boxes), None, passes, first.label in self.stubs)
        return self._with_edits(node, operations)

    def _with_edits(self, node: DrawnNode, shown: tuple[Operation, ...]) -> DrawnNode:
        """Return a node with its edits, and the changes of the operations whose tensors it shows."""
        edits = self.scene.edits
        if not edits:
            return node
        represented = [each for op in shown for each in (op, *self.represented.get(op.label, ()))]
        changes = [edits.change(op) for op in represented]
        known = tuple(change for change in changes if change is not None)
        return dataclasses.replace(node, edits=tuple(self._edit_lines(node)), changes=known)

    def _edit_lines(self, node: DrawnNode) -> Iterator[str]:
        """Yield a line for each edit; where only some passes have it, with these."""
        passes: dict[str, list[str]] = defaultdict(list)
        labels = {op.label for op in node.operations}
        for op in node.operations:
            for edit in self.scene.edits.of(op):
                inside = node.module is not None or edit.label != op.label
                passes[str(edit) if inside else edit.short].append(str(op.pass_num))
            for edit in self.scene.edits.of_reads(op) if node.module else ():
                if edit.label in labels:  # no arrow shows it
                    passes[str(edit)].append(str(op.pass_num))
        for words, numbers in passes.items():
            some = node.module is None and len(numbers) < node.num_passes
            yield f"edited in pass {', '.join(numbers)}: {words}" if some else f"edited: {words}"

    @cached_property
    def represented(self) -> dict[str, list[Operation]]:
        """The operations that are not drawn, by the label of the one drawn in their place."""
        found: dict[str, list[Operation]] = defaultdict(list)
        for op in self.scene.operations:
            label = op.label
            while label in self.repeats.standing_for:
                label = self.repeats.standing_for[label]
            if label != op.label:
                found[label].append(op)
        return found
