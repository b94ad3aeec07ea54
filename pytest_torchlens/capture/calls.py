"""Holds the record of a forward pass: calls, module calls, escapes, and the values that pass between them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
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
from pytest_torchlens.capture.leaves import ATOMS
from pytest_torchlens.capture.leaves import UnpackedObject
from pytest_torchlens.capture.leaves import children
from pytest_torchlens.capture.values import Aliased
from pytest_torchlens.capture.values import Source
from pytest_torchlens.capture.values import Value
from pytest_torchlens.capture.values import value_of

if TYPE_CHECKING:
    from pytest_torchlens.capture.code_in_gradient import CodeInGradient
    from pytest_torchlens.capture.saving import Stream


Frames = tuple[CodeType | int, ...]
"""Alternating code objects and instruction offsets; flat, because one is made for every call."""


class ModuleCall:
    """One call of one module.

    Attributes
    ----------
    address
        First name in ``named_modules()``; the class name in angle brackets for modules that are not registered.
    number
        Number of this call of the module, from 1.
    parent
        The enclosing module call; None for the outermost.
    frames
        Code positions from the parent's forward down to this call, innermost first.
    inputs, outputs
        Values of the tensors in its arguments and in its result.
    first, last
        Numbers of the first call inside and of the first call after it.
    seconds
        Duration, including the time that recording takes.
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
        """Yield this call and the enclosing calls, innermost first."""
        call: ModuleCall | None = self
        while call is not None:
            yield call
            call = call.parent


@dataclass(frozen=True)
class Group:
    """A Python function that was run with its inner calls recorded; `custom` is a custom autograd function."""

    name: str
    parent: Group | None
    custom: bool = False

    @property
    def path(self) -> str:
        """Names from the outermost function in, dotted."""
        return f"{self.parent.path}.{self.name}" if self.parent else self.name


@dataclass(frozen=True)
class RandomState:
    """State of a generator before a call that drew from it."""

    generator: torch.Generator
    state: torch.Tensor
    certain: bool = False
    """Whether the arguments alone show that the call draws."""


Edges = tuple[tuple[str, Value | Aliased], ...]
ValueEdges = tuple[tuple[str, Value], ...]
KnownEdges = tuple[tuple[Any, ...], dict[str, Any], Edges, ValueEdges]
"""Arguments of a call, and the edges that were found in them; the pass itself may replace the arguments."""


class Call:
    """One function call.

    Attributes
    ----------
    info
        The function.
    args, kwargs
        Its arguments with a `Value` or `Aliased` in place of each tensor.
    outputs
        The tensors it returned, in the order of `leaves.walk`; if it returned none, those it overwrote.
    returned
        Whether `outputs` were returned (and not only overwritten).
    writes
        Slots of the tensors that it overwrote.
    overlaps
        Slots of its arguments in the same memory, for each memory that it overwrites; none where it is only one.
    module
        The innermost enclosing module call.
    frames
        Code positions from that module's forward down to this call, innermost first.
    ambient
        Row in the table of global settings.
    random
        Generator state before the call, if it drew.
    elapsed
        Duration in nanoseconds.
    group
        The enclosing composite function.
    """

    __slots__ = (
        "ambient",
        "args",
        "elapsed",
        "frames",
        "group",
        "info",
        "known_edges",
        "kwargs",
        "module",
        "outputs",
        "overlaps",
        "random",
        "returned",
        "writes",
    )

    def __init__(  # noqa: PLR0913 - called for every operation: no wrapper around the fields
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
        self.overlaps: tuple[tuple[int, ...], ...] = ()
        self.known_edges: KnownEdges | None = None

    @property
    def may_be_view(self) -> bool:
        """Whether it returned one tensor and wrote none; if that shares memory with the first argument, it is a view.

        A view depends only on the writes to its own bytes.
        """
        return len(self.outputs) == 1 and not self.writes and not self.info.opaque

    @property
    def uninitialised(self) -> bool:
        """Whether its result is, or may end in, uninitialised memory; ``x.new(y)``, an alias of `y`, is not."""
        if not self.info.uninitialised:
            return False
        return self.info.name != "new" or not any(type(arg) in _CONTENTS for arg in self.args[1:2])


_CONTENTS = frozenset([Value, Aliased, list, tuple])  # a shape is ints or a `torch.Size`


@dataclass(frozen=True)
class Escape:
    """A value that Python read: ``bool(x)``, ``x.item()``, ``x.numpy()``.

    Attributes
    ----------
    name
        The function: ``"__bool__"``, ``"item"``.
    value
        The value that was read.
    call
        Number of the next call: the time of the escape.
    result
        The number or truth value that Python got; else None.
    module, frames
        As in `Call`.
    others
        Other values that were read: the second tensor of ``torch.equal(x, y)``.
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
        The dispatcher's name for it: ``"aten::add.Tensor"``.
    call
        Number of the next recorded call: the time of the operation.
    where
        ``module`` or ``thread`` and its name.
    frames
        Code positions of the whole stack, innermost first.
    mode
        Class name of the mode, other than ours, whose handler called it; ``""`` if other code did.
    in_backward
        Whether autograd called it in a backward pass.
    dispatch_disabled
        Whether ``torch._C.DisableTorchFunction`` was in force, under which no function mode sees a call.
    by_node
        Whether forward called a node of the autograd graph (``y.grad_fn(gradient)``), which no mode sees, or may have.
    by_transform
        Whether a function transform ran it that is not recorded: `torch.func.functionalize` made one before the pass.
    inside
        Name of the custom autograd function that was recorded as one operation because of it; else ``""``.
    """

    name: str
    call: int
    where: str
    frames: Frames
    mode: str = ""
    in_backward: bool = False
    dispatch_disabled: bool = False
    by_node: bool = False
    by_transform: bool = False
    inside: str = ""

    @property
    def by_extension(self) -> bool:
        """Whether nothing kept function modes from seeing it: code in C++ called it past Python."""
        return not (self.mode or self.in_backward or self.dispatch_disabled)


@dataclass(frozen=True)
class Circumstances:
    """What else is known of a call that ran under modes, or whose function is suspect.

    Attributes
    ----------
    modes
        Class names of the modes that saw the call after the tracer, outermost first.
    arguments
        Fingerprint of each tensor argument when the function began, by path.
    """

    modes: tuple[str, ...]
    arguments: dict[str, str]


UNWATCHED = "the dispatcher was not watched"


@dataclass
class Recording:
    """The record of one forward pass."""

    model_name: str
    modules: dict[str, str]
    """Class names by address, in the order of ``named_modules()``, before the pass."""
    model: weakref.ref[torch.nn.Module]
    seed: int | None
    parameters: dict[str, torch.Size] = field(default_factory=dict)
    """Address and shape of each distinct parameter, after the pass."""
    parameter_bytes: int = 0
    trainable: list[str] = field(default_factory=list)
    """Addresses of the parameters that require gradients."""
    replaced_parameters: set[str] = field(default_factory=set)
    """Addresses of the parameters that the pass read, and that another one, or none, has taken the place of since."""
    calls: list[Call] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    module_calls: list[ModuleCall] = field(default_factory=list)
    other_classes: dict[str, set[str]] = field(default_factory=dict)
    """Names of the classes that modules took in the pass (a lazy one, a parametrized one), by address."""
    escapes: list[Escape] = field(default_factory=list)
    ambient: AmbientTable = field(default_factory=AmbientTable)
    outputs: list[tuple[str, Value | Aliased]] = field(default_factory=list)
    """Path and value of each tensor in the model's output."""
    output_kinds: dict[str, str] = field(default_factory=dict)
    """Path and kind of each tensor in the model's output, and of each container around one."""
    output: Any = None
    """The object that the model returned."""
    digests_after: dict[int, str] = field(default_factory=dict)
    """Fingerprints after the pass of sources, by id; and of parameters and buffers that were not read, if asked for."""
    silent_writes: list[str] = field(default_factory=list)
    """Sources that changed although no recorded call wrote to them."""
    uninitialised: dict[int, tuple[torch.Tensor, ...]] = field(default_factory=dict)
    """Contents of the memory that `torch.empty` and similar functions returned, by number of the call."""
    code_in_gradients: dict[int, CodeInGradient] = field(default_factory=dict)
    """Code that autograd ran inside recorded calls, by number of the call."""
    circumstances: dict[int, Circumstances] = field(default_factory=dict)
    """What else is known of some calls, by number."""
    num_dispatched: int | None = None
    """Number of recorded calls and of dispatcher operations outside them; None if the dispatcher was not watched."""
    missed_operations: list[MissedOperation] = field(default_factory=list)
    """Operations that the dispatcher ran outside any recorded call."""
    why_unwatched: str = UNWATCHED
    """Why `num_dispatched` is None."""
    compiled: bool = False
    """Whether code ran, or was made to run, that PyTorch compiles: under a dispatch mode it runs uncompiled."""
    untraced: list[str] = field(default_factory=list)
    """Messages about code that ran, or will run, without being recorded."""
    unknown_sources: list[Source] = field(default_factory=list)
    """Constants that no recorded call made, though they did not exist before the pass."""
    detours: list[tuple[int, str]] = field(default_factory=list)
    """What went past the graph, as a second recording shows: number of the call, message."""
    threaded: bool = False
    """Whether threads that forward started were recorded too; module calls may then overlap."""
    unrecorded_threads: list[str] = field(default_factory=list)
    """Names of threads that an operation started."""
    started: float = 0.0
    """Seconds since the epoch."""
    elapsed: float = 0.0
    """Seconds of the whole forward pass, including the time that recording takes."""
    gradients: Gradients | None = None
    """Gradients of the saved activations; None if `SaveOptions.gradients` is off."""
    stream: Stream | None = None
    """Activations that were written to disk; None if `SaveOptions.stream_to` is not set."""
    slots: int = 0
    """Number of tensor objects."""

    def has_saved(self, value: Value) -> bool:
        """Return whether a value's tensor is kept, in memory or on disk."""
        return value.tensor is not None or (self.stream is not None and self.stream.has(value))


def edges_in(call: Call) -> Edges:
    """Return path and value of each tensor argument of a call, positional ones first.

    A path is ``"0"`` for the first positional argument, ``"weight"`` for a keyword, ``"0.2"`` for the third tensor of
    a list that is the first argument.  Each object is entered once, by its first path.
    """
    known = call.known_edges
    return known[2] if known is not None and known[0] is call.args and known[1] is call.kwargs else _find_edges(call)[2]


def values_read(call: Call) -> ValueEdges:
    """Return the same with the value of each argument alone, without the writes through other tensors."""
    known = call.known_edges
    return known[3] if known is not None and known[0] is call.args and known[1] is call.kwargs else _find_edges(call)[3]


def _find_edges(call: Call) -> KnownEdges:
    edges: list[tuple[str, Value | Aliased]] = []
    _add_edges(enumerate(call.args), "", edges, set())
    if call.kwargs:
        _add_edges(call.kwargs.items(), "", edges, set())
    values = tuple([(path, value_of(read)) for path, read in edges])
    call.known_edges = (call.args, call.kwargs, tuple(edges), values)
    return call.known_edges


def _add_edges(
    items: Iterable[tuple[Any, Any]], path: str, edges: list[tuple[str, Value | Aliased]], entered: set[int]
) -> None:
    """Add path and value of each tensor among the items of a container of recorded arguments."""
    for key, item in items:
        kind = type(item)
        if kind in ATOMS:
            continue
        inner = f"{path}.{key}" if path else str(key)
        if kind is Value or kind is Aliased:
            edges.append((inner, item))
        elif kind is UnpackedObject:
            if id(item) not in entered:
                entered.add(id(item))
                _add_edges(children(item), inner, edges, entered)
        elif isinstance(item, list | tuple | dict | slice):
            _add_edges(children(item), inner, edges, entered)
