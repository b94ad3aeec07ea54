"""Sizes for people: the one place that knows how bytes are shown."""

from __future__ import annotations

_STEP = 1024
_UNITS = ("B", "KB", "MB", "GB", "TB")


def byte_size(count: int) -> str:
    """Return a number of bytes as text: ``100 B``, ``1.7 KB``, ``233.1 MB``; 1 KB is 1,024 bytes."""
    size, power = float(count), 0
    while round(size, 1) >= _STEP and power < len(_UNITS) - 1:
        size /= _STEP
        power += 1
    return f"{size:,.{min(power, 1)}f} {_UNITS[power]}"
