"""Makes the inputs of a program smaller while two environments still differ on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace

import torch

from pytest_torchlens.run.repro.gap import Gap
from pytest_torchlens.run.repro.program import Program
from pytest_torchlens.run.repro.script import is_expanded
from pytest_torchlens.run.repro.script import program_text
from pytest_torchlens.run.repro.trials import Bench
from pytest_torchlens.run.repro.trials import Outcome

ROUNDS = 60
SECONDS = 60.0
_AT_ONCE = 16
_STATE = "rng_state"

Dimension = tuple[str, int]
"""Name of an input, and the number of one of its dimensions."""


@dataclass(frozen=True)
class _Cut:
    """A smaller program, and which part it takes of each input."""

    program: Program
    parts: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)


def shrink(program: Program, bench: Bench, gap: Gap) -> Program:
    """Return the smallest program found on which both environments differ as they did.

    It takes halves and single elements of dimensions, alone or all of one size together, and ends when none of these
    shows the fault, or after a minute.
    """
    deadline = time.monotonic() + SECONDS
    program = _plainer(program, bench, gap)
    for _ in range(ROUNDS):
        smaller = _smaller(program, bench, gap)
        if smaller is None or time.monotonic() > deadline:
            break
        program = smaller
    return program


def _plainer(program: Program, bench: Bench, gap: Gap) -> Program:
    """Return the program without strides of its inputs and without gradients, where it still shows the fault."""
    for change in (_contiguous, _without_gradients):
        plain = change(program)
        if program_text(plain) != program_text(program) and gap.shows_in(bench.run(plain).gap):
            program = plain
    return program


def _contiguous(program: Program) -> Program:
    return replace(program, inputs={name: tensor.contiguous() for name, tensor in program.inputs.items()})


def _without_gradients(program: Program) -> Program:
    return replace(program, settings={**program.settings, "gradients": "off"})


def _smaller(program: Program, bench: Bench, gap: Gap) -> Program | None:
    """Return a smaller program that shows the fault; None if there is none."""
    bench.keep(program)
    cuts = sorted(_cuts(program), key=lambda cut: cut.program.size)
    for first in range(0, len(cuts), _AT_ONCE):
        few = cuts[first : first + _AT_ONCE]
        outcomes = bench.run_all([(program_text(cut.program), cut.parts) for cut in few])
        for cut, outcome in zip(few, outcomes, strict=True):
            if _shows(outcome, gap, cut.program):
                return cut.program
    return None


def _shows(outcome: Outcome, gap: Gap, program: Program) -> bool:
    return not outcome.error and outcome.place == 0 and gap.shows_in(outcome.gap) and program.size > 0


def _cuts(program: Program) -> Iterator[_Cut]:
    numbers = {number for statement in program.statements for number in statement.numbers()}
    for dimensions, size in _groups(program):
        for start, length in dict.fromkeys([(0, 1), (0, size // 2), (size // 2, size - size // 2), (0, size - 1)]):
            yield _cut(program, dimensions, start, length)
            if size in numbers:
                yield _cut(program, dimensions, start, length, size)


def _groups(program: Program) -> Iterator[tuple[list[Dimension], int]]:
    """Yield dimensions that are cut together, with their size: each alone, and all of one size."""
    inputs, apart = program.inputs, program.way is None or not program.way.together
    by_size: dict[int, list[Dimension]] = {}
    for name, tensor in inputs.items():
        for dim, size in enumerate(tensor.shape if not name.startswith(_STATE) else ()):
            if size > 1:
                by_size.setdefault(size, []).append((name, dim))
    for size, dimensions in by_size.items():
        yield dimensions, size
        if len(dimensions) > 1 and apart:
            yield from (([one], size) for one in dimensions)


def _cut(program: Program, dimensions: list[Dimension], start: int, length: int, size: int = 0) -> _Cut:
    """Return a cut; whole numbers equal to `size` among the arguments follow it, if it is given."""
    inputs = dict(program.inputs)
    parts: dict[str, list[tuple[int, int, int]]] = {}
    for name, dim in dimensions:
        if not is_expanded(inputs[name], dim):
            parts.setdefault(name, []).append((dim, start, length))
        inputs[name] = _narrowed(inputs[name], dim, start, length)
    statements = program.statements
    if size:
        statements = tuple(one.with_numbers(lambda n: length if n == size else n) for one in statements)
    return _Cut(replace(program, inputs=inputs, statements=statements), parts)


def _narrowed(tensor: torch.Tensor, dim: int, start: int, length: int) -> torch.Tensor:
    """Return a part of a tensor in memory as dense as the whole, with its dimensions in the same order there."""
    part = tensor.narrow(dim, start, length)
    order = sorted(range(tensor.dim()), key=lambda d: (tensor.stride(d), -d))
    strides, step = [0] * tensor.dim(), 1
    for d in order:
        if tensor.stride(d) == 0 and tensor.shape[d] > 1:
            continue
        strides[d] = step
        step *= max(part.shape[d], 1)
    like = torch.empty(step, dtype=tensor.dtype, device=tensor.device).as_strided(part.shape, strides)
    places = tuple(slice(0, 1) if is_expanded(tensor, d) else slice(None) for d in range(tensor.dim()))
    like[places].copy_(part[places])
    return like
