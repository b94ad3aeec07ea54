"""Looks for outputs that read later inputs at many positions at once.

Each example of a batch has other inputs from another position on.  In a batch kernels round otherwise than for the
sequence alone, so that this only shows where to look.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from pytest_torchlens.checks.exact import is_discrete
from pytest_torchlens.checks.positions import Region
from pytest_torchlens.checks.sequences import Sequence
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Outputs
from pytest_torchlens.checks.tolerance import eps_of
from pytest_torchlens.checks.tolerance import in_doubles

_MOST_POSITIONS = 192
"""So many positions in all make up the batch: an example for each cut of a short sequence, none for a long one."""
_PLAINLY = 64.0
"""Kernels round otherwise in a batch: a difference of so many units of the largest number is more than that."""
_SEED = 5


def chosen_cuts(length: int, known: set[int]) -> list[int]:
    """Return positions to cut at beside those known: one of each stretch of the sequence, drawn with a seed."""
    left = [at for at in range(2, length) if at not in known]
    fit = _MOST_POSITIONS // length
    count = min(len(left), fit) if fit > 1 else 0
    generator = torch.Generator().manual_seed(_SEED)
    stretches = torch.tensor(left).tensor_split(count) if count else ()
    return [int(part[torch.randint(len(part), (), generator=generator)]) for part in stretches]


def suspected_cuts(sequence: Sequence, short: Outputs, shown: int, cuts: list[int], depend: set[str]) -> list[int]:
    """Return the positions before which an output seems to change with the inputs after them: most plainly first.

    Parameters
    ----------
    sequence
        The sequence, of one example.
    short, shown
        The outputs on its first positions alone, and how many these are.
    cuts
        The positions.
    depend
        Paths of the outputs that depend on the inputs.

    Raises
    ------
    NotApplicableError
        If the model takes no batch of sequences.
    """
    outputs = _in_batch(sequence, cuts)
    found = dict.fromkeys(cuts, 0.0)
    for path in sorted(depend & outputs.keys() & short.keys()):
        plain, batch = sequence.subject.outputs[path], outputs[path]
        if not plain.dim() or plain.size(0) != 1 or batch.shape != (len(cuts), *plain.shape[1:]):
            continue
        explained = _PLAINLY * _unit(plain, batch)
        for row, at in enumerate(cuts):
            region = Region(0, at, sequence.length, shown=shown)
            views = [region.of(tensor, short[path].shape) for tensor in (plain, batch[row : row + 1])]
            if views[0] is not None and views[1] is not None and (change := _change(views[0], views[1])):
                found[at] = max(found[at], change / explained if explained else math.inf)
    return sorted((at for at in cuts if found[at] > 1), key=lambda at: -found[at])


def _in_batch(sequence: Sequence, cuts: list[int]) -> Outputs:
    if sequence.dim == 0 or sequence.tensor.size(0) != 1:
        raise NotApplicableError("no dimension of the sequence is known to be that of the batch")
    changed = [sequence.with_others(at, sequence.length - at)[sequence.name] for at in cuts]
    kwargs: dict[str, Any] = {
        name: value.expand(len(cuts), *value.shape[1:]) if _is_of_one_example(sequence, name) else value
        for name, value in sequence.subject.kwargs.items()
    }
    way = f"in a batch of {len(cuts)}"
    try:
        return sequence.subject.call((), kwargs | {sequence.name: torch.cat(changed)}, way=way)
    except ModelRaisedError as error:
        raise NotApplicableError(str(error)) from error


def _is_of_one_example(sequence: Sequence, name: str) -> bool:
    value = sequence.subject.kwargs[name]
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.size(0) == 1


def _unit(plain: torch.Tensor, batch: torch.Tensor) -> float:
    """Return the unit in the last place of the largest number that varies: others may be -1e9, which masks; 0 if none.

    Whole numbers have none.
    """
    if is_discrete(plain):
        return 0.0
    numbers = in_doubles(plain)
    varying = numbers[(in_doubles(batch) != numbers).any(0, keepdim=True) & numbers.isfinite()]
    return eps_of(plain) * float(varying.abs().max()) if varying.numel() else 0.0


def _change(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return by how much an output changes at most; infinite if infinities or NaN are at other places."""
    one, other = in_doubles(one), in_doubles(other)
    finite = one.isfinite() & other.isfinite()
    if not bool(((one == other) | (one.isnan() & other.isnan()))[~finite].all()):
        return math.inf
    return float((one - other)[finite].abs().max()) if bool(finite.any()) else 0.0
