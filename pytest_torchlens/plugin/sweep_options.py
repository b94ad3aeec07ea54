"""Options of runs over many models: in which process, how long, how many, in what order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from typing import Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_torchlens.run import Limits

MANY = 20
"""A zoo file with more models than these has each run in a worker process."""
SECONDS = 600
SIZES = ("fast", "slow", "huge")


def add_sweep_options(group: pytest.OptionGroup, parser: pytest.Parser) -> None:
    """Declare them."""
    group.addoption(
        "--lens-isolate",
        dest="lens_isolate",
        action="store_const",
        const=True,
        default=None,
        help="Run each model in a worker process with a limit of time and memory: a crash, a kill or a hang costs that "
        f"model only. Default: where a zoo file has more than {MANY} models to run.",
    )
    group.addoption(
        "--lens-no-isolate",
        dest="lens_isolate",
        action="store_const",
        const=False,
        help="Run each model in pytest's own process, also where there are many.",
    )
    group.addoption(
        "--lens-timeout",
        metavar="SECONDS",
        dest="lens_timeout",
        default=None,
        help=f"Time that a model may take in a worker process. Default: {SECONDS}, or what the zoo file says of it.",
    )
    group.addoption(
        "--lens-memory",
        metavar="SIZE",
        dest="lens_memory",
        default=None,
        help="Memory that a worker process may take, as 8GiB. Default: four fifths of the machine's, shared between "
        "the workers of xdist, or what the zoo file says of the model.",
    )
    group.addoption(
        "--lens-limit",
        metavar="N",
        dest="lens_limit",
        default=None,
        help="Run the N cheapest of the models asked for.",
    )
    group.addoption(
        "--lens-sample",
        metavar="N[,SEED]",
        dest="lens_sample",
        default=None,
        help="Run N of the models asked for, drawn from all families alike. Default seed: 0.",
    )
    group.addoption(
        "--lens-size",
        metavar="CLASS[,CLASS...]",
        dest="lens_size",
        default=None,
        help=f"Run models of these size classes of the zoo file: {', '.join(SIZES)}. Default: all.",
    )
    group.addoption(
        "--lens-resume",
        dest="lens_resume",
        action="store_true",
        default=False,
        help="Go on with the last run that was cut short: models that passed in it, under the same versions, settings "
        "and options, are not run again, and stand in the report.",
    )
    group.addoption(
        "--lens-table",
        metavar="FILE",
        dest="lens_table",
        default=None,
        help="Write a row a model into this CSV file as each ends; rows of other models in it stay. Default: no table.",
    )
    parser.addini("lens_timeout", "Seconds that a model may take, as --lens-timeout", default="")
    parser.addini("lens_memory", "Memory that a worker process may take, as --lens-memory", default="")


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
