"""The module calls around each operation."""

from __future__ import annotations

from collections import Counter
from collections import defaultdict
from functools import cached_property

from pytest_torchlens.draw.scene import Scene
from pytest_torchlens.records import Operation

Path = tuple[str, ...]
"""Module calls, outermost first."""


class Surroundings:
    """Knows of each operation, by its label, which module calls it is drawn in."""

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
        """Function calls in each module call; buffers and constants are none."""
        seen: set[tuple[str, int | str]] = set()
        for op in self._operations:
            if not is_source(op):
                number = op.call_id if op.call_id >= 0 else op.label
                seen.update((call, number) for call in self.paths[op.label])
        return Counter(call for call, _ in seen)

    @cached_property
    def _bottom(self) -> set[str]:
        """Module calls that are nothing but one operation."""
        ends = (op for op in self._operations if op.is_bottom_level_submodule_output)
        return {call for op in ends for call in self.paths[op.label][-1:] if self.sizes[call] == 1}

    def boxes_around(self, label: str) -> Path:
        """Leave out the box of a module that is nothing but one operation: the node's own shape says it."""
        path = self.paths[label]
        return path[:-1] if path and path[-1] in self._bottom else path


def is_source(operation: Operation) -> bool:
    """Whether it is there before the pass: a buffer or a constant."""
    return operation.is_buffer_layer or operation.is_constant


def common(paths: list[Path]) -> Path:
    """Return the start that all of `paths` share."""
    if not paths:
        return ()
    shared = zip(*paths, strict=False)
    length = next((i for i, names in enumerate(shared) if len(set(names)) > 1), min(map(len, paths)))
    return paths[0][:length]
