"""Checks that a run goes on with what an earlier one stored: same model, options, batches and activations."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.extraction.activations import Activations
from pytest_torchlens.extraction.batches import LoadedBatch
from pytest_torchlens.extraction.index import Batch
from pytest_torchlens.extraction.index import ExtractError
from pytest_torchlens.extraction.index import Index

_SAME = {
    "model": "the model's class",
    "weights": "the weights (their digest)",
    "evaluated": "the model's evaluation mode",
    "random_seed": "random_seed",
    "inputs": "the function inputs=",
    "labels": "labels",
    "torch": "the version of torch",
}
"""What must be the same, and how a message names it."""


def check_same_run(folder: Path, before: Index, present: Index) -> None:
    """Raise `ExtractError` if another call stored what is in the folder."""
    old, new = asdict(before.provenance), asdict(present.provenance)
    changed = [(words, old[name], new[name]) for name, words in _SAME.items() if old[name] != new[name]]
    if list(before.layers) != list(present.layers):
        changed.append(("the layers", ", ".join(before.layers), ", ".join(present.layers)))
    for label in before.layers.keys() & present.layers.keys():
        transforms = before.layers[label].transform, present.layers[label].transform
        if transforms[0] != transforms[1]:
            changed.append((f"the transform of {label}", *transforms))
    if changed:
        words = "; ".join(f"{what} ({_short(was)} → {_short(now)})" for what, was, now in changed)
        raise ExtractError(f"{folder} has activations of another run; different are {words}; name another folder")


def _short(value: Any) -> str:
    return "none" if value is None or value == "" else f"{value!s:.60}"


def check_batch(folder: Path, batch: LoadedBatch, known: Batch) -> None:
    """Raise `ExtractError` if a batch is not the one whose activations are stored."""
    if (batch.examples, batch.digest) != (known.examples, known.inputs):
        raise ExtractError(
            f"{batch.name} of the loader is not the one whose activations {folder} has: to resume, a loader must yield "
            "the same batches in the same order (shuffle=False, or a generator with a fixed seed)"
        )


def check_repeatable(folder: Path, before: Index) -> None:
    """Raise `ExtractError` if later batches depend on the state that the earlier ones left."""
    provenance = before.provenance
    if provenance.written:
        raise ExtractError(
            f"{folder} cannot be resumed: the model's forward writes to {provenance.written[0]}, and what the stored "
            "batches have written is lost; begin again in another folder"
        )
    if provenance.random_operations and provenance.random_seed is None:
        raise ExtractError(
            f"{folder} cannot be resumed: {provenance.random_operations[0]} draws random numbers, and nothing was "
            "seeded; begin again in another folder with random_seed=0"
        )


def check_activations(folder: Path, before: Index, batch: LoadedBatch, tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise `ExtractError` if a batch gives other activations than the stored ones; warn if slightly other."""
    if before.provenance.random_operations and before.provenance.random_seed is None:
        return
    saved = Activations(folder)
    first = sum(one.examples for one in before.batches[: batch.number])
    for name, tensor in tensors.items():
        was, where = saved.array(name)[first : first + len(tensor)], f"{name} of {batch.name}"
        if isinstance(was, list) or was.shape != tensor.shape or was.dtype != tensor.dtype:
            raise _differs(folder, where, "shape or dtype")
        if fingerprint(was) != fingerprint(tensor):
            _check_close(folder, where, was, tensor)


def _check_close(folder: Path, where: str, was: torch.Tensor, tensor: torch.Tensor) -> None:
    if not tensor.is_floating_point() and not tensor.is_complex():
        raise _differs(folder, where, "other numbers")
    old, new = (torch.view_as_real(each) if each.is_complex() else each for each in (was, tensor))
    old, new = old.double(), new.double()
    finite = old.isfinite()
    if not torch.equal(old[~finite].nan_to_num(), new[~finite].nan_to_num()) or not torch.equal(finite, new.isfinite()):
        raise _differs(folder, where, "other elements are infinite or NaN")
    old, new = old[finite], new[finite]
    difference, scale = _largest(new - old), _scale(old, new)
    if difference > _ROUNDING * torch.finfo(tensor.dtype).eps * scale:
        raise _differs(folder, where, f"they differ by {difference:.3g}, values are of the size {scale:.3g}")
    warnings.warn(
        f"{where} is not bit for bit what {folder} has, but within rounding: other threads, another machine, "
        "or kernels that are not deterministic",
        stacklevel=_CALLER,
    )


def _scale(old: torch.Tensor, new: torch.Tensor) -> float:
    """Return how large values are that differ; what is the same in both runs may be a mask (-1e9), and says nothing."""
    sizes = old.abs()[old != 0]
    usual = sizes.kthvalue(1 + len(sizes) // 4).values.item() if len(sizes) else 0.0
    return max(usual, _largest(old[old != new]))


def _largest(numbers: torch.Tensor) -> float:
    return numbers.abs().max().item() if numbers.numel() else 0.0


_CALLER = 6
"""Where `extract` was called, from the warning above: of the first batch, and of the last stored one."""

_ROUNDING = 64
"""Largest difference that is rounding, in steps of the type at the largest value."""


def _differs(folder: Path, where: str, how: str) -> ExtractError:
    return ExtractError(
        f"{where} is not what {folder} has ({how}): the model, its inputs or the transform compute otherwise than in "
        "the run before, or depend on the batches before; name another folder"
    )
