"""Tells which outputs of a model have a row for each example, from the shapes for one example and for a batch."""

from __future__ import annotations

from pytest_torchlens.checks import results
from pytest_torchlens.checks.inputs import Arguments
from pytest_torchlens.checks.places import pairs_of
from pytest_torchlens.checks.side_by_side import ancestors
from pytest_torchlens.checks.subject import Outputs
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import Failure
from pytest_torchlens.records import output_name

_ADVICE = "name the dimensions that are taken away, squeeze(-1) in place of squeeze(): one of the batch may be 1, too"


class Lists:
    """The lists in a model's output that hold one item for each example, as those of detectors do.

    Parameters
    ----------
    alone, batch
        The outputs for one example, where such a list has one item, and for a batch of `size`.
    """

    def __init__(self, alone: Outputs, batch: Outputs, size: int) -> None:
        prefixes = {path[:at] for path in alone for at in _zeros_in(path)}
        single, several = {"0"}, {str(row) for row in range(size)}
        self._prefixes = sorted(
            prefix for prefix in prefixes if (_items(alone, prefix), _items(batch, prefix)) == (single, several)
        )

    def __contains__(self, path: str) -> bool:
        return any(_item(path, prefix) is not None for prefix in self._prefixes)

    def of_row(self, outputs: Outputs, row: int) -> Outputs:
        """Return the outputs of a batch with the items of one row alone, by the paths for one example."""
        return {self._moved(path, "0"): output for path, output in outputs.items() if self.path(path, row) == path}

    def path(self, path: str, row: int) -> str:
        """Return the path in a batch of what has this path for one example."""
        return self._moved(path, str(row))

    def _moved(self, path: str, item: str) -> str:
        for prefix in self._prefixes:
            if (former := _item(path, prefix)) is not None:
                path = prefix + item + path[len(prefix) + len(former) :]
        return path


def _zeros_in(path: str) -> list[int]:
    """Return where an item 0 begins in a path."""
    parts = path.split(".")
    return [len(".".join([*parts[:at], ""])) for at, part in enumerate(parts) if part == "0"]


def _item(path: str, prefix: str) -> str | None:
    return path.removeprefix(prefix).partition(".")[0] if path.startswith(prefix) else None


def _items(outputs: Outputs, prefix: str) -> set[str | None]:
    return {_item(path, prefix) for path in outputs} - {None}


def without_rows(alone: Outputs, batch: Outputs, lists: Lists) -> dict[str, str]:
    """Return the outputs that are no larger in a batch, as a mean over it: the reason by path."""
    return {
        path: f"{output_name(path)} has no rows: its shape is {tuple(output.shape)} in a batch"
        for path, output in batch.items()
        if path in alone and alone[path].shape == output.shape and path not in lists
    }


def lost_dim(alone: tuple[int, ...], batch: tuple[int, ...], size: int) -> int | None:
    """Return the dimension of the batch that the shape for one example lacks; None if it has it."""
    if len(batch) != len(alone) + 1:
        return None
    dims = range(len(batch))
    return next((dim for dim in dims if batch[dim] == size and batch[:dim] + batch[dim + 1 :] == alone), None)


def failure_of_lost_dim(alone: Subject, given: Arguments, batch: Outputs, size: int) -> Failure | None:
    """Return the failure of an output that lacks the dimension of the batch for one example, as by a squeeze.

    Parameters
    ----------
    alone
        The model with one example.
    given, batch
        The inputs and outputs of a batch of `size`.
    """
    for path, output in alone.outputs.items():
        shapes = tuple(output.shape), tuple(batch[path].shape) if path in batch else ()
        if lost_dim(*shapes, size) is not None:
            what = f"{output_name(path)} has shape {shapes[0]} for one example, and {shapes[1]} for {size}"
            return results.failure_at(alone.history, _place(alone, alone.record(*given), path, size), what, _ADVICE)
    return None


def _place(alone: Subject, batch: ModelHistory, path: str, size: int) -> int | None:
    """Return the first operation on the way to an output whose result lacks that dimension."""
    leading = ancestors(alone.history.recording, path)
    for one, other in pairs_of(alone.history, batch):
        if one in leading and other is not None:
            values = zip(alone.history.recording.calls[one].outputs, batch.recording.calls[other].outputs, strict=False)
            if any(lost_dim(tuple(mine.shape), tuple(its.shape), size) is not None for mine, its in values):
                return one
    return None
