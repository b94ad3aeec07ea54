"""Values: the state of one tensor at one time, and the sources, which no recorded call made."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pytest_torchlens.capture.wrappers import HeldByWrapper
    from pytest_torchlens.capture.write_log import Reading

PLAIN = (torch.Tensor, torch.nn.Parameter)
CPU = torch.device("cpu")


class Value:
    """One state of one tensor: an output of a call, or the contents of a source.

    It takes the place of the tensor in the arguments of later calls.

    Attributes
    ----------
    slot
        Number of the tensor object; an in-place call makes a new value in the same slot.
    call
        Number of the call that made it; -1 for a source.
    position
        Its position among the call's outputs, or among the sources.
    shape, dtype, device, nbytes
        As when it was made; ``nbytes`` counts the elements' bytes.
    contiguous
        Whether it is an ordinary tensor, dense in memory in the order of its elements.
    gradfunc
        Name of the autograd node; ``""`` if there is none.
    requires_grad
        Whether it requires gradients.
    digest
        Fingerprint: a number for dense CPU tensors, text for others, ``""`` if there is none.
    tensor
        The saved tensor, or None.
    """

    __slots__ = (
        "_stride",
        "call",
        "contiguous",
        "device",
        "digest",
        "dtype",
        "gradfunc",
        "nbytes",
        "position",
        "requires_grad",
        "shape",
        "slot",
        "tensor",
    )

    def __init__(self, slot: int, call: int, position: int, tensor: torch.Tensor) -> None:
        self.slot = slot
        self.call = call
        self.position = position
        self.dtype = tensor.dtype
        self.device = CPU if tensor.is_cpu else tensor.device
        self.requires_grad = requires_grad = tensor.requires_grad
        self.gradfunc = _gradfunc(tensor) if requires_grad else ""
        self._stride: tuple[int, ...] | None = None
        try:
            self.shape = tensor.shape
            self.nbytes = tensor.nbytes
            self.contiguous = type(tensor) in PLAIN and tensor.is_contiguous()
            if not self.contiguous:
                self._stride = strides_of(tensor)
                self.shape = shape_of(tensor)
        except RuntimeError:  # sparse and nested tensors lack some of these
            self.shape, self.nbytes = shape_of(tensor), _bytes_of(tensor)
            self.contiguous = False
        self.digest: int | str = ""
        self.tensor: torch.Tensor | None = None

    @property
    def stride(self) -> tuple[int, ...] | None:
        """Strides, in elements; None for tensors without strides."""
        return _contiguous_strides(self.shape) if self.contiguous else self._stride

    @property
    def fingerprint(self) -> str:
        """The digest as text."""
        return f"{self.digest:016x}" if isinstance(self.digest, int) else self.digest


def _gradfunc(tensor: torch.Tensor) -> str:
    try:
        function = tensor.grad_fn
    except RuntimeError:  # a view made without gradients, whose base was written to with gradients
        return ""
    return "" if function is None else type(function).__name__


@functools.lru_cache(maxsize=1024)
def _contiguous_strides(shape: torch.Size) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    return tuple(reversed(strides[: len(shape)]))


def strides_of(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return a tensor's strides; None for a sparse or nested tensor."""
    try:
        return None if tensor.layout is not torch.strided or tensor.is_nested else tensor.stride()
    except RuntimeError:
        return None


def shape_of(tensor: torch.Tensor) -> torch.Size:
    """Return a tensor's shape; for a nested tensor the number of rows, and -1 for each size that differs by row."""
    if not tensor.is_nested:
        return tensor.shape
    if tensor.layout is torch.strided:
        return torch.Size([tensor.size(0)])
    return torch.Size([size if type(size) is int else -1 for size in tensor.shape])


def _bytes_of(tensor: torch.Tensor) -> int:
    parts = sparse_parts(tensor)
    return sum(part.nbytes for part in parts) if parts else tensor.numel() * tensor.itemsize


def version_of(tensor: torch.Tensor) -> int:
    """Return a tensor's version counter; -1 for an inference tensor, which has none."""
    return -1 if tensor.is_inference() else tensor._version


def sparse_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the index and value tensors of a sparse tensor; none for other layouts."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()


class Aliased:
    """An argument whose memory was written through other tensors since `value` was made.

    Attributes
    ----------
    value
        The value of the tensor itself.
    base
        The value that the edge comes from: `value`, or, if that is a view in which other writes show too, the value
        of the tensor that it is a view of.
    reading
        Where to look up the writes at first use; None if they were passed.
    """

    __slots__ = ("_writes", "base", "reading", "value")

    def __init__(
        self,
        value: Value,
        writes: tuple[Value, ...] | None = None,
        reading: Reading | None = None,
        base: Value | None = None,
    ) -> None:
        self.value = value
        self.base = value if base is None else base
        self.reading = reading
        self._writes = writes

    @property
    def writes(self) -> tuple[Value, ...]:
        """The values of the later writes that overlap the bytes that were read, in order."""
        if self._writes is None:
            self._writes = () if self.reading is None else self.reading.writes()
        return self._writes


def value_of(read: Value | Aliased) -> Value:
    """Return the value of a read, without the writes through other tensors."""
    return read.value if isinstance(read, Aliased) else read


def base_of(read: Value | Aliased) -> Value:
    """Return the value that the edge of a read comes from."""
    return read.base if isinstance(read, Aliased) else read


def values_in(read: Value | Aliased) -> tuple[Value, ...]:
    """Return the values that a read depends on: that of its base, and the writes through other tensors that show."""
    return (read.base, *read.writes) if isinstance(read, Aliased) else (read,)


@dataclass(slots=True)
class Source:
    """A tensor that no recorded call made.

    Attributes
    ----------
    kind
        ``"input"``, ``"parameter"``, ``"buffer"`` or ``"constant"``.
    name
        Path of the input, address of the parameter or buffer, or origin of the constant.
    value
        Its state at its first use; ``value.tensor`` is the tensor itself, or a copy if a recorded call overwrote it.
    live
        The tensor object itself.
    version
        The tensor's version counter when it was first used; -1 if it has none.
    final
        Its fingerprint after the forward pass, if a recorded call overwrote it.
    since
        Number of the last call before its first use.
    maker
        The dispatcher operation that allocated its memory during the pass; ``""`` if unknown or not watched.
    made_inside
        Number of the recorded call that this operation was part of, and which did not return the tensor; -1 if none.
    memory
        Its storage key at its first use: ``tensor.data = other`` gives it other memory.
    foreign
        Whether another library owned that memory.
    wrapper
        For a tensor that wraps others, what it held at its first use; forward may give it other attributes.
    """

    kind: str
    name: str
    value: Value
    live: torch.Tensor
    version: int = -1
    final: str = ""
    since: int = -1
    maker: str = ""
    made_inside: int = -1
    memory: int = 0
    foreign: bool = False
    wrapper: HeldByWrapper | None = None

    @property
    def label(self) -> str:
        """Kind and name, if it has one: ``"buffer 'mean'"``."""
        return f"{self.kind} {self.name!r}" if self.name else self.kind

    @property
    def written(self) -> bool:
        """Whether a recorded call wrote to its memory."""
        return self.value.tensor is not self.live
