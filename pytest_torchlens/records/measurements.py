"""Holds what a forward pass cost: time, memory and arithmetic of each operation, of each module and in total."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field

_STEP = 1024
_UNITS = ("B", "KB", "MB", "GB", "TB")


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """What a forward pass cost.

    The lists of operations have one entry for each recorded function call, in the order of the calls:
    `Operation.call_id` is the index.  Times are seconds, sizes bytes.
    """

    operations: tuple[str, ...] = ()
    """Label of each call's (first) tensor; the name of its function where it has no part in the result."""
    operation_seconds: tuple[float, ...] = ()
    """Time of each."""
    operation_flops: tuple[int, ...] = ()
    """Floating-point operations of each."""
    operation_bytes_moved: tuple[int, ...] = ()
    """Bytes that each read and wrote."""
    live_bytes: tuple[int, ...] = ()
    """Bytes of the tensors that were alive while each ran, its arguments and results included.

    Parameters, buffers and inputs, which were there before, are not counted.
    """
    modules: tuple[ModuleMeasurements, ...] = ()
    """The modules that were called, the model itself first."""
    forward_seconds: float | None = None
    """The plain forward pass, untraced: median."""
    forward_spread: float | None = None
    """Its spread: between the quartiles."""
    forward_runs: int = 0
    """How often it was timed."""
    num_threads: int = 0
    """Threads that PyTorch had for an operation."""
    overhead_seconds: float = 0.0
    """What the recording adds to the time of one operation; subtracted from each."""
    peak_bytes: int = 0
    """The largest of `live_bytes`."""
    needed_peak_bytes: int | None = None
    """What the peak would be if each tensor was freed after its last use; None where that is not known."""
    peak_operation: str = ""
    """Label of the operation that ran then."""
    measured_peak_bytes: int | None = None
    """The peak as it was measured in a plain forward pass; None where it could not be."""
    methods: dict[str, str] = field(default_factory=dict)
    """How each number was had, by the name of its field; what could not be had says why."""

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
        """Arithmetic intensity of each operation: floating-point operations a byte; None where nothing was moved."""
        pairs = zip(self.operation_flops, self.operation_bytes_moved, strict=True)
        return tuple(flops / moved if moved else None for flops, moved in pairs)


@dataclass(frozen=True, kw_only=True)
class ModuleMeasurements:
    """What one module cost in all its calls, with the modules inside it and without them."""

    address: str
    """First name in ``named_modules()``; ``""`` for the model itself."""
    seconds: float = 0.0
    """Seconds of the operations that ran inside it."""
    self_seconds: float = 0.0
    """Those of the operations that no module inside it ran."""
    flops: int = 0
    """Floating-point operations inside it; a multiplication with an addition is two."""
    self_flops: int = 0
    """Those that no module inside it ran."""
    bytes_moved: int = 0
    """Bytes that its operations read and wrote."""
    self_bytes_moved: int = 0
    """Those of the operations that no module inside it ran."""


def byte_size(count: int) -> str:
    """Return a number of bytes as text: ``100 B``, ``1.7 KB``, ``233.1 MB``; 1 KB is 1,024 bytes."""
    size, power = float(count), 0
    while round(size, 1) >= _STEP and power < len(_UNITS) - 1:
        size /= _STEP
        power += 1
    return f"{size:,.{min(power, 1)}f} {_UNITS[power]}"
