"""The live record of a forward pass: calls, the values between them, and where values come from."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from types import CodeType
from typing import Any

import torch

from pytest_torchlens.capture.ambient import AmbientTable
from pytest_torchlens.capture.functions import FunctionInfo

Frames = tuple[CodeType | int, ...]
"""Code objects and instruction offsets in turn: flat, for one is made for every call."""


class Value:
    """One state of one tensor: what a call returned, or what a source held.

    Stands for the tensor in the arguments of later calls.

    Attributes
    ----------
    slot
        Number of the tensor object; an in-place call makes a new value in the same slot.
    call
        Number of the call that made it; -1 for a source.
    position
        Which of the call's tensors it is, or which of the sources.
    shape, dtype, device, stride, nbytes
        As when made; ``stride`` is None for tensors without strides, ``nbytes`` counts the elements' bytes.
    gradfunc
        Name of the autograd node, ``""`` without one.
    requires_grad
        Whether autograd follows it.
    digest
        Fingerprint: a number for dense CPU tensors, text for others, ``""`` where there is none.
    tensor
        The kept tensor, or None.
    """

    __slots__ = (
        "call",
        "device",
        "digest",
        "dtype",
        "gradfunc",
        "nbytes",
        "position",
        "requires_grad",
        "shape",
        "slot",
        "stride",
        "tensor",
    )

    def __init__(self, slot: int, call: int, position: int, tensor: torch.Tensor) -> None:
        self.slot = slot
        self.call = call
        self.position = position
        self.dtype = tensor.dtype
        self.device = tensor.device
        self.requires_grad = requires_grad = tensor.requires_grad
        self.gradfunc = type(tensor.grad_fn).__name__ if requires_grad else ""
        self.stride: tuple[int, ...] | None = None
        try:
            self.shape = tensor.shape
            self.nbytes = tensor.nbytes
            self.stride = tensor.stride()
        except RuntimeError:  # sparse and nested tensors lack some of these
            self.shape, self.nbytes = shape_of(tensor), _bytes_of(tensor)
        if tensor.layout is torch.jagged:
            self.shape, self.stride = shape_of(tensor), None
        self.digest: int | str = ""
        self.tensor: torch.Tensor | None = None

    @property
    def fingerprint(self) -> str:
        """The digest as text."""
        return f"{self.digest:016x}" if isinstance(self.digest, int) else self.digest


def shape_of(tensor: torch.Tensor) -> torch.Size:
    """Return a tensor's shape; of a nested tensor, whose rows differ, the number of rows and -1 for what differs."""
    if not tensor.is_nested:
        return tensor.shape
    if tensor.layout is torch.strided:
        return torch.Size([tensor.size(0)])
    return torch.Size([size if type(size) is int else -1 for size in tensor.shape])


def _bytes_of(tensor: torch.Tensor) -> int:
    parts = sparse_parts(tensor)
    return sum(part.nbytes for part in parts) if parts else tensor.numel() * tensor.itemsize


def sparse_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the tensors that a sparse tensor is made of; none for other layouts."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()


@dataclass(frozen=True)
class Aliased:
    """An argument whose memory was written through other tensors since `value` was made."""

    value: Value
    writes: tuple[Value, ...]


@dataclass
class Source:
    """A tensor that no recorded call made.

    Attributes
    ----------
    kind
        ``"input"``, ``"parameter"``, ``"buffer"`` or ``"constant"``.
    name
        Path of the input, address of the parameter or buffer, or where a constant came from.
    value
        Its state at its first use; ``value.tensor`` is the tensor itself, or a copy if a recorded call overwrote it.
    live
        The tensor object itself.
    version
        The tensor's version counter when it was first used; -1 where it has none.
    final
        Its fingerprint after the forward pass, if a recorded call overwrote it.
    """

    kind: str
    name: str
    value: Value
    live: torch.Tensor
    version: int = -1
    final: str = ""

    @property
    def written(self) -> bool:
        """Whether a recorded call wrote to its memory."""
        return self.value.tensor is not self.live


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
    entered, exited
        Values that went in and came out.
    first, last
        Numbers of the first call inside and of the first call after it.
    seconds
        Time from entering to leaving it, recording included.
    """

    __slots__ = (
        "address",
        "entered",
        "exited",
        "first",
        "frames",
        "last",
        "module_type",
        "number",
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
        self.entered: tuple[Value, ...] = ()
        self.exited: tuple[Value, ...] = ()
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


Circumstances = tuple[ModuleCall | None, Frames, int, int, Group | None, RandomState | None]
"""Module, frames, ambient, elapsed, group and random of a `Call`."""


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

    def __init__(
        self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any], returned: bool, where: Circumstances
    ) -> None:
        self.info = info
        self.args = args
        self.kwargs = kwargs
        self.returned = returned
        self.module, self.frames, self.ambient, self.elapsed, self.group, self.random = where
        self.outputs: tuple[Value, ...] = ()
        self.writes: tuple[int, ...] = ()


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
    """

    name: str
    value: Value | None
    call: int
    result: bool | int | float | complex | None
    module: ModuleCall | None
    frames: Frames


@dataclass(frozen=True)
class Missed:
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
    calls: list[Call] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    module_calls: list[ModuleCall] = field(default_factory=list)
    escapes: list[Escape] = field(default_factory=list)
    ambient: AmbientTable = field(default_factory=AmbientTable)
    outputs: list[tuple[str, Value | Aliased]] = field(default_factory=list)
    """Path in the returned object and value, for each tensor of the model's output."""
    output: Any = None
    """What the model returned."""
    silent_writes: list[str] = field(default_factory=list)
    """Sources that changed although no recorded call wrote to them."""
    uninitialised: dict[int, tuple[torch.Tensor, ...]] = field(default_factory=dict)
    """What the memory held that calls of `torch.empty` and its kin returned, by number of the call."""
    dispatched: int | None = None
    """Operations that the dispatcher ran; None if it was not watched."""
    missed: list[Missed] = field(default_factory=list)
    """Operations that the dispatcher ran outside any recorded call."""
    started: float = 0.0
    """Seconds since the epoch."""
    elapsed: float = 0.0
    """Seconds of the whole forward pass, recording included."""
    slots: int = 0
