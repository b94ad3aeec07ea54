"""A page with curves and videos."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_page(folder: Path) -> None:
    """Write it."""
    del folder
