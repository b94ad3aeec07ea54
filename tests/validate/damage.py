"""A catalogue of damage to a record, each applied to one operation, with the part and operations that must name it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.functions import info_of
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.history import ModelHistory


class Scene:
    """A record of a model, and one of its operations."""

    def __init__(self, recording: Recording, history: ModelHistory, number: int) -> None:
        self.recording = recording
        self.history = history
        self.number = number
        self.call = recording.calls[number]
        self.label = history.label(number)
        self.nodes = [node for node in history.nodes if node.number == number]
        self._patched: list[tuple[Any, str, Any]] = []

    def patch(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute of the package until `restore` is called."""
        self._patched.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def restore(self) -> None:
        """Undo what `patch` did."""
        while self._patched:
            setattr(*self._patched.pop())

    def earlier(self) -> list[Value]:
        """Return the values that exist before the operation, latest first."""
        made = [value for call in self.recording.calls[: self.number] for value in call.outputs]
        return [*reversed(made), *(source.value for source in self.recording.sources)]

    def reads(self) -> list[Value]:
        return [value_of(read) for _, read in edges_in(self.call)]

    def exchange(self, read: Value, other: Any) -> None:
        """Let the operation read another value, whatever was written to it since."""
        self.swap(lambda leaf: other if isinstance(leaf, Value | Aliased) and value_of(leaf) is read else leaf)

    def swap(self, swap: Callable[[Any], Any]) -> None:
        self.call.args, self.call.kwargs = substitute(self.call.args, swap), substitute(self.call.kwargs, swap)

    def source(self, kind: str) -> Any:
        """Return a source of a kind that this operation is the first to read."""
        before = {value.slot for call in self.recording.calls[: self.number] for _, read in edges_in(call)
                  for value in [value_of(read)]}  # fmt: skip
        slots = {value.slot for value in self.reads()} - before
        found = [s for s in self.recording.sources if s.kind == kind and s.value.slot in slots and not s.written]
        return found[0] if found else None


Damage = Callable[[Scene], "tuple[str, set[str]] | None"]
KINDS: dict[str, Damage] = {}


def kind(damage: Damage) -> Damage:
    """Register a kind of damage: it returns the part and operations to report; None if it does not apply."""
    KINDS[damage.__name__.replace("_", " ")] = damage
    return damage


# -- values -------------------------------------------------------------------------------------------------------


@kind
def fingerprint_changed_by_one_bit(scene):
    value = scene.call.outputs[0]
    if not isinstance(value.digest, int) or scene.call.info.uninitialised:
        return None
    value.digest ^= 1
    return "replay", {scene.label}


@kind
def saved_activation_changed_by_one_bit_in_one_element(scene):
    value = scene.call.outputs[0]
    if value.tensor is None or not value.tensor.numel():
        return None
    value.tensor = value.tensor.detach().clone(memory_format=torch.contiguous_format)
    value.tensor.view(-1).view(torch.uint8)[-1] ^= 1
    return "replay", {scene.label}


@kind
def two_activations_swapped(scene):
    one = scene.call.outputs[0]
    for call in scene.recording.calls[scene.number + 1 :]:
        other = call.outputs[0]
        if (other.shape, other.dtype) == (one.shape, one.dtype) and other.fingerprint != one.fingerprint:
            one.digest, other.digest = other.digest, one.digest
            one.tensor, other.tensor = other.tensor, one.tensor
            return "replay", {scene.label}
    return None


@kind
def saved_activation_of_another_operation(scene):
    value = scene.call.outputs[0]
    for other in scene.earlier():
        if other.tensor is not None and other.fingerprint != value.fingerprint and value.tensor is not None:
            value.tensor = other.tensor
            return "replay", {scene.label}
    return None


@kind
def shape_wrong(scene):
    value = scene.call.outputs[0]
    value.shape = torch.Size([*value.shape, 1])
    return "replay", {scene.label}


@kind
def dtype_wrong(scene):
    value = scene.call.outputs[0]
    value.dtype = torch.float64 if value.dtype is not torch.float64 else torch.float32
    return "replay", {scene.label}


@kind
def device_wrong(scene):
    scene.call.outputs[0].device = torch.device("meta")
    return "replay", {scene.label}


@kind
def size_in_bytes_wrong(scene):
    scene.call.outputs[0].nbytes += 1
    return "replay", {scene.label}


@kind
def gradient_flag_wrong(scene):
    scene.call.outputs[0].requires_grad ^= True
    return "replay", {scene.label}


@kind
def output_left_out_of_a_call(scene):
    if len(scene.call.outputs) < 2:
        return None
    scene.call.outputs = scene.call.outputs[:-1]
    return "replay", {scene.label}


@kind
def outputs_of_a_call_swapped(scene):
    first, *rest = scene.call.outputs
    if not rest or rest[0].digest == first.digest:
        return None
    scene.call.outputs = (rest[0], first, *rest[1:])
    return "replay", {scene.label}


# -- edges --------------------------------------------------------------------------------------------------------


@kind
def edge_to_another_parent(scene):
    for read in scene.reads():
        for other in scene.earlier():
            alike = (other.shape, other.dtype) == (read.shape, read.dtype)
            if alike and other.slot != read.slot and read.call >= 0:
                scene.exchange(read, other)
                return "replay", {scene.label}
    return None


@kind
def edge_to_an_older_state_of_the_parent(scene):
    for read in scene.reads():
        for other in scene.earlier():
            if other.slot == read.slot and other is not read:
                scene.exchange(read, other)
                return "replay", {scene.label}
    return None


@kind
def edge_from_the_future(scene):
    later = [value for call in scene.recording.calls[scene.number + 1 :] for value in call.outputs]
    known = {value.slot for value in scene.earlier()}
    for read in scene.reads():
        for other in later:
            if other.slot not in known:
                scene.exchange(read, other)
                return "replay", {scene.label}
    return None


@kind
def argument_positions_swapped(scene):
    args = scene.call.args
    if len(args) < 2 or not all(isinstance(arg, Value | Aliased) for arg in args[:2]) or args[0] is args[1]:
        return None
    scene.call.args = (args[1], args[0], *args[2:])
    return "replay", {scene.label}


@kind
def edge_dropped_from_the_graph(scene):
    if not scene.nodes or not scene.nodes[0].parents:
        return None
    scene.nodes[0].parents.pop()
    return "invariants", {scene.label}


@kind
def edge_added_to_the_graph(scene):
    if not scene.nodes:
        return None
    other = scene.history.nodes[0]
    scene.nodes[0].parents.append((other, "9", False))
    if scene.nodes[0] not in other.children:
        other.children.append(scene.nodes[0])
    return "invariants", {scene.label}


@kind
def edge_of_the_graph_to_another_parent(scene):
    for node in scene.nodes[:1]:
        for place, (parent, path, write) in enumerate(node.parents):
            for other in scene.history.nodes:
                if other.number < node.number and other is not parent and other.kind == "operation" and not write:
                    node.parents[place] = (other, path, write)
                    if not any(child is node for child in other.children):
                        other.children.append(node)
                    return "invariants", {scene.label}
    return None


@kind
def child_dropped_from_the_graph(scene):
    if not scene.nodes or not scene.nodes[0].children:
        return None
    child = scene.nodes[0].children.pop()
    return "invariants", {child.label}


@kind
def child_added_to_the_graph(scene):
    later_nodes = [node for node in scene.history.nodes if node.number > scene.number and node.kind == "operation"]
    for node in later_nodes if scene.nodes else ():
        if not any(parent is scene.nodes[0] for parent, _, _ in node.parents):
            scene.nodes[0].children.append(node)
            return "invariants", {scene.label}
    return None


@kind
def parameter_of_another_operation(scene):
    for node in scene.nodes[:1]:
        for other in scene.recording.sources:
            if node.parameters and other.kind == "parameter" and all(other is not own for own in node.parameters):
                node.parameters[0] = other
                return "invariants", {scene.label}
    return None


# -- writes -------------------------------------------------------------------------------------------------------


def aliased(scene):
    return [read for _, read in edges_in(scene.call) if isinstance(read, Aliased)]


@kind
def write_through_another_tensor_forgotten(scene):
    for read in aliased(scene):
        fewer = Aliased(read.value, read.writes[1:])
        scene.swap(lambda leaf, read=read, fewer=fewer: fewer if leaf is read else leaf)
        return "replay", {scene.label}
    return None


@kind
def write_through_another_tensor_made_up(scene):
    for _, read in edges_in(scene.call):
        for other in scene.earlier():
            if isinstance(read, Value) and other.slot != read.slot and other.call >= 0:
                more = Aliased(read, (other,))
                scene.swap(lambda leaf, read=read, more=more: more if leaf is read else leaf)
                return "replay", {scene.label}
    return None


@kind
def write_in_place_forgotten(scene):
    if not scene.call.writes:
        return None
    returned = {value.slot for value in scene.call.outputs}
    part = "invariants" if returned & set(scene.call.writes) else "replay"
    scene.call.writes = ()
    return part, {scene.label}


@kind
def write_in_place_undone(scene):
    """Replace the function by one with the same result that does not write."""
    if not scene.call.writes or scene.call.info.name not in INSTEAD_OF_WRITING:
        return None
    scene.call.info = info_of(INSTEAD_OF_WRITING[scene.call.info.name])
    return "replay", {scene.label}


INSTEAD_OF_WRITING = {"add_": torch.add, "mul_": torch.mul, "relu_": torch.relu, "__iadd__": torch.add}


def later_labels(scene):
    """Return the operations from this one on: the first that reads the different tensor may be any of them."""
    return {scene.history.label(number) for number in range(scene.number, len(scene.recording.calls))}
