"""Modules: how often each was called, what they contain, and what comes out of them."""

from __future__ import annotations

from collections import Counter

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture.calls import ModuleCall
from pytest_torchlens.history.graph import Node
from pytest_torchlens.records import ModuleRecord


class Modules:
    """The module calls of a recording, and their names.

    The name of a call is its address if the module was called once, else ``address:number``.
    """

    def __init__(self, recording: Recording, nodes: list[Node]) -> None:
        self._recording = recording
        self._passes = Counter(call.address for call in recording.module_calls)
        self._operations: Counter[int] = Counter()
        self._around: dict[int, tuple[str, ...]] = {}
        """Names from the outermost module in, by the id of the innermost call."""
        for node in nodes:
            if node.call is not None and node.call.module is not None:
                for call in node.call.module.stack():
                    self._operations[id(call)] += 1

    def top_level_passes(self) -> tuple[str, ...]:
        """Return the calls that the model itself made, in order; those inside its calls to itself are among them."""
        calls = self._recording.module_calls
        return tuple([call.label for call in calls if call.parent is not None and not call.parent.address])

    def _pass_children(self) -> dict[str, list[list[str]]]:
        """Return by module, for each of its calls, the calls of submodules that it made."""
        children_of_call: dict[int, list[str]] = {}
        by_address: dict[str, list[list[str]]] = {}
        for call in self._recording.module_calls:
            children_of_call[id(call)] = []
            by_address.setdefault(call.address, []).append(children_of_call[id(call)])
            if call.parent is not None:
                children_of_call[id(call.parent)].append(call.label)
        return by_address

    def name(self, call: ModuleCall) -> str:
        """Return the name of a module call."""
        return call.address if self._passes[call.address] == 1 else call.label

    def passes(self, address: str) -> int:
        """Return how often the module at an address was called."""
        return self._passes[address]

    def around(self, node: Node) -> tuple[str, ...]:
        """Return the names of the module calls around an operation, outermost first, without the model itself."""
        if node.call is None or node.call.module is None:
            return ()
        return self._names_around(node.call.module)

    def _names_around(self, call: ModuleCall) -> tuple[str, ...]:
        names = self._around.get(id(call))
        if names is None:
            inside_out = [self.name(one) for one in call.stack() if one.parent is not None]
            names = self._around[id(call)] = tuple(reversed(inside_out))
        return names

    def bottom_level(self, node: Node) -> str | None:
        """Return the name of the module call that ran only this operation and returned its output."""
        for call in node.exited:
            if self._operations[id(call)] == 1 and node.call is not None and call is node.call.module:
                return self.name(call)
        return None

    def records(self) -> tuple[ModuleRecord, ...]:
        """Return a record of each module in order of first calls: the model first, modules never called last."""
        own_params = Counter[str]()
        for name, shape in self._recording.parameters.items():
            own_params[name.rpartition(".")[0]] += shape.numel()
        addresses = dict.fromkeys(call.address for call in self._recording.module_calls)
        order = {address: index for index, address in enumerate(addresses)}
        modules = self._recording.modules
        names = {name: modules[name] for name in sorted(modules, key=lambda name: order.get(name, len(order)))}
        children: dict[str, list[str]] = {name: [] for name in names}
        for name in names:
            if name:
                children.setdefault(name.rpartition(".")[0], []).append(name)
        pass_children = self._pass_children()
        return tuple(
            ModuleRecord(
                address=name,
                module_type=kind,
                num_passes=self._passes[name],
                children=tuple(children[name]),
                num_params=own_params[name],
                pass_children=tuple(map(tuple, pass_children.get(name, ()))),
            )
            for name, kind in names.items()
        )
