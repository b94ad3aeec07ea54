"""Holds the costs of a forward pass: time, memory and FLOPs of each operation, of each module and in total."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field

_STEP = 1024
_UNITS = ("B", "KB", "MB", "GB", "TB")


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """The costs of a forward pass.

    The lists of operations have one entry for each recorded function call, in the order of the calls:
    `Operation.call_id` is the index.  Times are seconds, sizes bytes.
    """

    operations: tuple[str, ...] = ()
    """Label of each call's (first) tensor; the function's name if no label exists."""
    operation_seconds: tuple[float, ...] = ()
    """Time of each."""
    operation_flops: tuple[int, ...] = ()
    """Floating-point operations of each."""
    operation_bytes_moved: tuple[int, ...] = ()
    """Bytes that each read and wrote."""
    live_bytes: tuple[int, ...] = ()
    """Bytes of the tensors that were alive while each ran, its arguments and results included.

    Parameters, buffers and inputs, which existed before, are not counted.
    """
    modules: tuple[ModuleMeasurements, ...] = ()
    """The modules that were called, the model itself first."""
    forward_seconds: float | None = None
    """The plain forward pass, untraced: median."""
    forward_spread: float | None = None
    """Interquartile range of its times."""
    forward_runs: int = 0
    """Number of timed passes."""
    num_threads: int = 0
    """PyTorch's number of threads for one operation."""
    overhead_seconds: float = 0.0
    """Time that recording adds to one operation; subtracted from each."""
    peak_bytes: int = 0
    """The largest of `live_bytes`."""
    needed_peak_bytes: int | None = None
    """The peak if each tensor were freed after its last use; None if that is not known."""
    peak_operation: str = ""
    """Label of the operation that ran at the peak."""
    measured_peak_bytes: int | None = None
    """The peak measured in a plain forward pass; None if it could not be measured."""
    methods: dict[str, str] = field(default_factory=dict)
    """How each number was measured, by the name of its field; if it was not, why."""

    @property
    def seconds(self) -> float:
        """Time of all operations."""
        return sum(self.operation_seconds)

    @property
    def flops(self) -> int:
        """Floating-point operations of the whole pass."""
        return sum(self.operation_flops)

    @property
    def bytes_moved(self) -> int:
        """Bytes that all operations read and wrote."""
        return sum(self.operation_bytes_moved)

    @property
    def operation_intensity(self) -> tuple[float | None, ...]:
        """Arithmetic intensity of each operation: floating-point operations per byte; None if no byte was moved."""
        pairs = zip(self.operation_flops, self.operation_bytes_moved, strict=True)
        return tuple(flops / moved if moved else None for flops, moved in pairs)


@dataclass(frozen=True, kw_only=True)
class ModuleMeasurements:
    """The costs of one module in all its calls: total, and without the modules inside it."""

    address: str
    """First name in ``named_modules()``; ``""`` for the model itself."""
    seconds: float = 0.0
    """Seconds of the operations that ran inside it."""
    self_seconds: float = 0.0
    """Those of the operations that ran in no module inside it."""
    flops: int = 0
    """Floating-point operations inside it; a multiply-add counts as two."""
    self_flops: int = 0
    """Those that ran in no module inside it."""
    bytes_moved: int = 0
    """Bytes that its operations read and wrote."""
    self_bytes_moved: int = 0
    """Those of the operations that ran in no module inside it."""


def count_text(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 tensor``, ``1,024 tensors``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def byte_size(count: int) -> str:
    """Return a number of bytes as text: ``100 B``, ``1.7 KB``, ``233.1 MB``; 1 KB is 1,024 bytes."""
    size, power = float(count), 0
    while round(size, 1) >= _STEP and power < len(_UNITS) - 1:
        size /= _STEP
        power += 1
    return f"{size:,.{min(power, 1)}f} {_UNITS[power]}"
