"""Aligns the nodes of an exported program with the operations of a recorded pass, by the values that they compute."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.checks.exact import ExactPlayer
from pytest_torchlens.checks.exact import steps
from pytest_torchlens.checks.results import values_text
from pytest_torchlens.checks.side_by_side import ancestors
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.tolerance import is_plainly_explained
from pytest_torchlens.checks.tolerance import judge
from pytest_torchlens.replay import Player


class Values:
    """Copies of all that the nodes of programs compute, by shape."""

    def __init__(self) -> None:
        self.by_shape: dict[torch.Size, list[torch.Tensor]] = defaultdict(list)
        self.fingerprints: set[tuple[torch.dtype, torch.Size, str]] = set()

    def add(self, result: Any) -> None:
        """Add the tensors in what a node computes."""
        for _, tensor in walk(result):
            copied = tensor.detach().clone()
            self.by_shape[copied.shape].append(copied)
            self.fingerprints.add(_key(copied))

    def has(self, value: torch.Tensor, exact: torch.Tensor) -> bool:
        """Return whether a node computed a value, but for rounding."""
        return _key(value) in self.fingerprints or any(
            is_plainly_explained(other, value) or judge(other, value, exact).within
            for other in self.by_shape[value.shape]
        )


class Watched(fx.Interpreter):
    """Runs a program node by node, and adds all that its nodes compute to `values`."""

    def __init__(self, module: fx.GraphModule, values: Values) -> None:
        super().__init__(module)
        self._values = values

    def run_on(self, *args: Any, **kwargs: Any) -> Any:
        """Run all nodes on the arguments of the model, in the order in which it was exported with them."""
        return self.run(*pytree.tree_leaves((args, kwargs)), enable_io_processing=False)

    def run_node(self, n: fx.Node) -> Any:
        """Run a node."""
        result = super().run_node(n)
        self._values.add(result)
        return result


def _key(tensor: torch.Tensor) -> tuple[torch.dtype, torch.Size, str]:
    return tensor.dtype, tensor.shape, fingerprint(tensor)


def first_differing(
    subject: Subject, values: Values, function: Callable[..., Any], path: str
) -> tuple[int | None, str]:
    """Return the first operation whose value is not among those that `function` adds to `values`, and both values.

    Only operations count from which such values lead to the output at `path`: an operation that a program does in
    another way, to the same result, is no difference.
    """
    with subject.runs(function=function) as call:
        call()
    missing = _missing(subject, values)
    first = min(ancestors(subject.history.recording, path, lambda value: value.call in missing), default=None)
    return first, "" if first is None else missing[first]


def _missing(subject: Subject, values: Values) -> dict[int, str]:
    """Return the operations with a value that no node computes, with the likeliest of the nodes' values."""
    recording = subject.history.recording
    found: dict[int, str] = {}
    with torch.no_grad(), Player(recording) as player, ExactPlayer(recording) as exact:
        for step in steps(recording, player, exact):
            subject.check_time()
            for output, truth in zip(step.outputs, step.exact, strict=True):
                if not step.call.uninitialised and not values.has(output, truth):
                    found[step.number] = _nearest(output, values)
    return found


def _nearest(output: torch.Tensor, values: Values) -> str:
    others = [other for other in values.by_shape[output.shape] if other.dtype is output.dtype]
    if not others:
        return f"no node of the program computes a tensor of shape {tuple(output.shape)}"
    nearest = min(others, key=lambda other: float((other.double() - output.double()).abs().nan_to_num().mean()))
    return values_text(output, nearest)
