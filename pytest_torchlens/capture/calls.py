"""Holds the record of a forward pass: calls, module calls, escapes, and the values that pass between them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from types import CodeType
from typing import TYPE_CHECKING
from typing import Any

import torch

from pytest_torchlens.capture.ambient import AmbientTable
from pytest_torchlens.capture.functions import FunctionInfo
from pytest_torchlens.capture.gradients import Gradients
from pytest_torchlens.capture.leaves import UnpackedObject
from pytest_torchlens.capture.leaves import children
from pytest_torchlens.capture.values import Aliased
from pytest_torchlens.capture.values import Source
from pytest_torchlens.capture.values import Value

if TYPE_CHECKING:
    from pytest_torchlens.capture.saving import Stream


Frames = tuple[CodeType | int, ...]
"""Code objects and instruction offsets in turn: flat, for one is made for every call."""


class ModuleCall:
    """One call of one module.

    Attributes
    ----------
    address
        First name in ``named_modules()``; the class name in angle brackets for modules that are not registered.
    number
        Which call of that module it is, from 1.
    parent
        The module call around it; None for the outermost.
    frames
        Code positions from the parent's forward down to this call, innermost first.
    inputs, outputs
        Values that went in and came out.
    first, last
        Numbers of the first call inside and of the first call after it.
    seconds
        Time from entering to leaving it, recording included.
    """

    __slots__ = (
        "address",
        "first",
        "frames",
        "inputs",
        "last",
        "module_type",
        "number",
        "outputs",
        "parent",
        "seconds",
    )

    def __init__(
        self, address: str, module_type: str, number: int, parent: ModuleCall | None, frames: Frames, first: int
    ) -> None:
        self.address = address
        self.module_type = module_type
        self.number = number
        self.parent = parent
        self.frames = frames
        self.first = first
        self.last = first
        self.inputs: tuple[Value, ...] = ()
        self.outputs: tuple[Value, ...] = ()
        self.seconds = 0.0

    @property
    def label(self) -> str:
        """Address with the number of the call: ``"features.3:1"``."""
        return f"{self.address}:{self.number}"

    def stack(self) -> Iterator[ModuleCall]:
        """Yield this call and those around it, innermost first."""
        call: ModuleCall | None = self
        while call is not None:
            yield call
            call = call.parent


@dataclass(frozen=True)
class Group:
    """A Python function that was run with its inner calls recorded."""

    name: str
    parent: Group | None

    @property
    def path(self) -> str:
        """Names from the outermost function in, dotted."""
        return f"{self.parent.path}.{self.name}" if self.parent else self.name


@dataclass(frozen=True)
class RandomState:
    """State of the generator that a call drew from, as it was before."""

    generator: torch.Generator
    state: torch.Tensor
    certain: bool = False
    """Whether the arguments alone tell that the call draws."""


class Call:
    """One function call.

    Attributes
    ----------
    info
        The function.
    args, kwargs
        Its arguments with a `Value` or `Aliased` in place of each tensor.
    outputs
        The tensors it returned, in the order of `leaves.walk`; what it overwrote if it returned none.
    returned
        Whether `outputs` were returned (and not only overwritten).
    writes
        Slots whose memory it overwrote.
    module
        The innermost module call around it.
    frames
        Code positions from that module's forward down to this call, innermost first.
    ambient
        Row in the table of global settings.
    random
        Generator state before the call, if it drew.
    elapsed
        Duration in nanoseconds.
    group
        The composite function around it.
    """

    __slots__ = (
        "ambient",
        "args",
        "elapsed",
        "frames",
        "group",
        "info",
        "kwargs",
        "module",
        "outputs",
        "random",
        "returned",
        "writes",
    )

    def __init__(  # noqa: PLR0913 - one is made for every call: nothing in between
        self,
        info: FunctionInfo,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        module: ModuleCall | None,
        frames: Frames,
        ambient: int,
        group: Group | None,
    ) -> None:
        self.info = info
        self.args = args
        self.kwargs = kwargs
        self.module = module
        self.frames = frames
        self.ambient = ambient
        self.group = group
        self.random: RandomState | None = None
        self.elapsed = 0
        self.returned = True
        self.outputs: tuple[Value, ...] = ()
        self.writes: tuple[int, ...] = ()

    @property
    def may_be_view(self) -> bool:
        """Whether it gave one tensor and wrote none: over the memory of its first argument, it is a view of that.

        Then only what was written to the bytes of the view shows in what it gave.
        """
        return len(self.outputs) == 1 and not self.writes and not self.info.opaque

    @property
    def uninitialised(self) -> bool:
        """Whether what it gave is, or may end in, whatever the memory held: not so of ``x.new(y)``, an alias of `y`."""
        given = self.info.name == "new" and any(type(arg) in _CONTENTS for arg in self.args[1:2])
        return self.info.uninitialised and not given


_CONTENTS = frozenset([Value, Aliased, list, tuple])  # a shape is ints or a `torch.Size`


@dataclass(frozen=True)
class Escape:
    """A value handed over to Python: ``bool(x)``, ``x.item()``, ``x.numpy()``.

    Attributes
    ----------
    name
        The function: ``"__bool__"``, ``"item"``.
    value
        What was read.
    call
        Number of the next call, which tells when it happened.
    result
        What Python was given, for numbers and truth values; else None.
    module, frames
        As in `Call`.
    others
        What else was read: the second tensor of ``torch.equal(x, y)``.
    """

    name: str
    value: Value | None
    call: int
    result: bool | int | float | complex | None
    module: ModuleCall | None
    frames: Frames
    others: tuple[Value, ...] = ()


@dataclass(frozen=True)
class MissedOperation:
    """A dispatcher operation that ran while no recorded call was in progress.

    Attributes
    ----------
    name
        As the dispatcher has it: ``"aten::add.Tensor"``.
    call
        Number of the next recorded call, which tells when it happened.
    where
        ``module`` or ``thread`` and its name.
    frames
        Code positions of the whole stack, innermost first.
    """

    name: str
    call: int
    where: str
    frames: Frames


@dataclass
class Recording:
    """All that was recorded of one forward pass."""

    model_name: str
    modules: dict[str, str]
    """Address to class name, in order of ``named_modules()``."""
    model: weakref.ref[torch.nn.Module]
    seed: int | None
    parameters: dict[str, torch.Size] = field(default_factory=dict)
    """Address and shape of each distinct parameter, after the pass."""
    parameter_bytes: int = 0
    trainable: list[str] = field(default_factory=list)
    """Addresses of the parameters that are trained."""
    calls: list[Call] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    module_calls: list[ModuleCall] = field(default_factory=list)
    escapes: list[Escape] = field(default_factory=list)
    ambient: AmbientTable = field(default_factory=AmbientTable)
    outputs: list[tuple[str, Value | Aliased]] = field(default_factory=list)
    """Path in the returned object and value, for each tensor of the model's output."""
    output_kinds: dict[str, str] = field(default_factory=dict)
    """Path in the returned object and kind, for each tensor of the model's output and what is around it."""
    output: Any = None
    """What the model returned."""
    silent_writes: list[str] = field(default_factory=list)
    """Sources that changed although no recorded call wrote to them."""
    uninitialised: dict[int, tuple[torch.Tensor, ...]] = field(default_factory=dict)
    """What the memory held that calls of `torch.empty` and its kin returned, by number of the call."""
    num_dispatched: int | None = None
    """Operations that the dispatcher ran; None if it was not watched."""
    missed_operations: list[MissedOperation] = field(default_factory=list)
    """Operations that the dispatcher ran outside any recorded call."""
    why_unwatched: str = "the dispatcher was not watched"
    """Why `num_dispatched` is None."""
    untraced: list[str] = field(default_factory=list)
    """What ran, or will run, out of sight."""
    unknown_sources: list[Source] = field(default_factory=list)
    """Constants that were made during the pass and out of sight."""
    threaded: bool = False
    """Whether threads that forward started were recorded too: module calls may then overlap."""
    unrecorded_threads: list[str] = field(default_factory=list)
    """Threads that an operation started."""
    started: float = 0.0
    """Seconds since the epoch."""
    elapsed: float = 0.0
    """Seconds of the whole forward pass, recording included."""
    gradients: Gradients | None = None
    """Gradients of the kept activations, if they were asked for."""
    stream: Stream | None = None
    """Activations that were written to disk."""
    slots: int = 0


def edges_in(call: Call) -> Iterator[tuple[str, Value | Aliased]]:
    """Yield path and value of each tensor argument of a call, positional ones first.

    A path is ``"0"`` for the first positional argument, ``"weight"`` for a keyword, ``"0.2"`` for the third tensor of
    a list that is the first argument.
    """
    yield from edges_of(call.args)
    yield from edges_of(call.kwargs)


def edges_of(template: Any, path: str = "", entered: set[int] | None = None) -> Iterator[tuple[str, Value | Aliased]]:
    """Yield path and value of each tensor in recorded arguments; an object is entered by the first path to it."""
    if isinstance(template, Value | Aliased):
        yield path, template
    elif isinstance(template, list | tuple | dict | slice | UnpackedObject):
        entered = set() if entered is None else entered
        if type(template) is UnpackedObject:
            if id(template) in entered:
                return
            entered.add(id(template))
        for key, item in children(template):
            yield from edges_of(item, f"{path}.{key}" if path else str(key), entered)
