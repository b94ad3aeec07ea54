"""Small programs with their expected graphs, and the checks for every one.

A graph is given line by line, ``layer: parents``, by short labels (``linear_1:2`` is the second pass of a layer);
``~`` marks a parent reached through a write to shared memory, ``$`` a parameter; layers without parents stand alone.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture import record
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.validate import validate
from tests.models import Function
from tests.models import short_label

MODES = {"grad": torch.enable_grad, "no_grad": torch.no_grad}


def numbers():
    """Return the usual input: 1 to 6."""
    return (torch.arange(1.0, 7.0),)


@dataclasses.dataclass
class Program:
    """A function or module class, its inputs, and its graph."""

    code: Any
    graph: str
    inputs: Callable[[], tuple[Any, ...]] = numbers
    kwargs: Callable[[], dict[str, Any]] = dict
    mode: str = "any"

    def build(self):
        torch.manual_seed(3)
        model = self.code() if isinstance(self.code, type) else Function(self.code)
        args, kwargs = self.inputs(), self.kwargs()
        torch.manual_seed(4)
        return model, args, kwargs


class Programs(dict):
    """Programs by name; a decorator enters them."""

    def add(self, graph, **options):
        def enter(code):
            self[code.__name__] = Program(code, textwrap.dedent(graph).strip(), **options)
            return code

        return enter

    def parametrize(self):
        """Return the mark that runs a test on each program in each gradient mode that it takes."""
        sets = {
            f"{name}-{mode}": (program, mode)
            for name, program in self.items()
            for mode in (MODES if program.mode == "any" else [program.mode])
        }
        return pytest.mark.parametrize(("program", "mode"), sets.values(), ids=sets)


def trace(program, mode):
    """Return model and history of a recorded run."""
    model, args, kwargs = program.build()
    with MODES[mode]():
        return model, ModelHistory(record(model, args, kwargs, keep="all"))


def graph_of(history):
    """Return a history's graph in the form of this file."""
    short = {op.label: short_label(op) for op in history.operations}
    lines = []
    for op in history.operations:
        parents = [f"{'~' if edge.through_write else ''}{short[edge.parent]}" for edge in op.edges]
        parents += [f"${name}" for name in _few(op.parent_param_addresses)]
        line = f"{short_label(op)}: {' '.join(dict.fromkeys(parents))}"
        lines.append(line if parents else short_label(op))
    return "\n".join(lines)


def _few(names):
    """Return up to three names as they are; more as the first and how many there are: ``lstm.weight_ih_l0..8``."""
    return names if len(names) <= 3 else [f"{names[0]}..{len(names)}"]


def what_is_left(model, args, kwargs, output):
    """Return a comparable form of a call's result and the state afterwards."""
    tensors = [*model.state_dict(keep_vars=True).items(), *model.named_buffers(), *walk(args), *walk(kwargs)]
    return {
        "type": type(output),
        "output": [(path, type(leaf), leaf.dtype, fingerprint(leaf)) for path, leaf in walk(output)],
        "tensors": [(name, fingerprint(tensor)) for name, tensor in tensors],
        "attributes": {name: sorted(module.__dict__) for name, module in model.named_modules()},
        "modes": [module.training for module in model.modules()],
        "random": fingerprint(torch.get_rng_state()),
    }


def check(program, mode):
    """Assert that a traced run equals a plain run, that the graph is the expected one, and that it validates."""
    model, args, kwargs = program.build()
    with MODES[mode]():
        plain = what_is_left(model, args, kwargs, model(*args, **kwargs))
    model, args, kwargs = program.build()
    before = what_is_left(model, args, kwargs, None)
    with MODES[mode]():
        verdict = validate(model, args, kwargs).verdict
    assert what_is_left(model, args, kwargs, None) == before
    with MODES[mode]():
        recording = record(model, args, kwargs, keep="all")
    assert what_is_left(model, args, kwargs, recording.output) == plain
    assert graph_of(ModelHistory(recording)) == program.graph
    found = [(part.name, failure.operation, failure.message) for part in verdict.parts for failure in part.failures]
    assert found == []
    assert verdict.status.ok  # unproven if a value goes to Python and comes back


def assert_saved(history, **sums):
    """Assert the sums of saved activations by short label, at the time they were made."""
    got = {label: history[label].tensor_contents.detach().sum().item() for label in sums}
    assert got == pytest.approx(sums)


class Twice(nn.Module):
    """A linear layer that doubles, without a bias."""

    def __init__(self, size=2):
        super().__init__()
        self.fc = nn.Linear(size, size, bias=False)
        with torch.no_grad():
            self.fc.weight.copy_(2 * torch.eye(size))

    def forward(self, x):
        return self.fc(x)
