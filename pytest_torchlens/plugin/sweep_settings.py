"""What the options of runs over many models come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any

import pytest

from pytest_torchlens.plugin.options import SECONDS
from pytest_torchlens.plugin.options import SIZES

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_torchlens.report import ResultTable
    from pytest_torchlens.run import Limits


@dataclass(frozen=True)
class SweepOptions:
    """These options, checked."""

    isolate: bool | None
    """None decides by the number of models."""
    timeout: float
    memory: int | None
    """Bytes; None takes a share of the machine's."""
    limit: int | None
    sample: tuple[int, int] | None
    """How many models, and the seed."""
    sizes: tuple[str, ...]
    resume: bool
    table: Path | None
    """The CSV file of results; None where none is asked for."""

    @classmethod
    def of(cls, config: pytest.Config) -> SweepOptions:
        """Read and check them.

        Raises
        ------
        pytest.UsageError
            If a value is none that the option takes.
        """
        option: Any = config.option
        # A debugger needs the model in the process that has the terminal.
        isolate = False if option.usepdb else option.lens_isolate
        return cls(
            isolate=isolate,
            timeout=_seconds(option.lens_timeout or config.getini("lens_timeout")),
            memory=_memory(option.lens_memory or config.getini("lens_memory")),
            limit=None if option.lens_limit is None else _count("--lens-limit", option.lens_limit),
            sample=_sample(option.lens_sample),
            sizes=_sizes(option.lens_size),
            resume=option.lens_resume,
            table=config.invocation_params.dir / option.lens_table if option.lens_table else None,
        )

    def limits(self) -> Limits:
        """Return what a model may use whose zoo file says nothing else."""
        from pytest_torchlens.run import Limits
        from pytest_torchlens.run import memory_share

        return Limits(self.timeout, self.memory or memory_share())

    def open_table(self) -> ResultTable | None:
        """Return the file of results; None where none is asked for.

        Raises
        ------
        pytest.UsageError
            If it is the file of something else.
        """
        if self.table is None:
            return None
        from pytest_torchlens.report import ResultTable
        from pytest_torchlens.report import TableError

        try:
            return ResultTable(self.table)
        except TableError as error:
            raise pytest.UsageError(f"--lens-table: {error}") from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text or SECONDS)
    except ValueError:
        seconds = 0
    if not seconds > 0:
        raise pytest.UsageError(f"--lens-timeout: {text!r} is no number of seconds above 0")
    return seconds


def _memory(text: str) -> int | None:
    if not text:
        return None
    from pytest_torchlens.zoo.units import bytes_of

    try:
        return bytes_of(text)
    except ValueError as error:
        raise pytest.UsageError(f"--lens-memory: {error}") from None


def _count(name: str, text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise pytest.UsageError(f"{name}: {text!r} is no number of models from 1")
    return int(text)


def _sample(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    count, comma, seed = text.partition(",")
    if comma and not seed.isdecimal():
        raise pytest.UsageError(f"--lens-sample: the seed {seed!r} is no whole number from 0")
    return _count("--lens-sample", count), int(seed or 0)


def _sizes(text: str | None) -> tuple[str, ...]:
    if text is None:
        return SIZES
    from pytest_torchlens.records import nearest

    sizes = tuple(size.strip() for size in text.split(","))
    for size in sizes:
        if size not in SIZES:
            raise pytest.UsageError(f"--lens-size: no size class {size!r}: {nearest(size, SIZES)}")
    return sizes
