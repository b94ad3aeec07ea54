"""Keyword arguments of the model named as parameters of our wrappers."""

from __future__ import annotations

import ast
import functools
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import pytest_torchlens
from pytest_torchlens.capture import record
from pytest_torchlens.capture.guarded import Limits
from pytest_torchlens.capture.guarded import record_guarded
from pytest_torchlens.capture.patches import module_calls_intercepted
from pytest_torchlens.validate import validate
from tests.models import Function

PACKAGE = Path(pytest_torchlens.__file__).parent


def names_of_parameters() -> list[str]:
    """Return the parameters of all our functions that pass on keyword arguments."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py"))
    functions = (node.args for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    wrappers = (args for args in functions if args.vararg and args.kwarg and args.kwarg.arg == "kwargs")
    names = {arg.arg for wrapper in wrappers for arg in [*wrapper.posonlyargs, *wrapper.args, *wrapper.kwonlyargs]}
    return sorted(names - {"self", "func"} | {"args", "kwargs", "call", "name"})  # PyTorch's own wrappers take those


def module_call(x, name):
    return Function(lambda **named: named[name] * 2)(**{name: x})


def scripted_function(x, name):
    return torch.jit.CompilationUnit(f"def twice({name}):\n    return {name} * 2\n").twice(**{name: x})


@functools.cache
def traced(name):
    namespace = {}
    exec(f"def forward(self, {name}):\n    return {name} * 2\n", namespace)  # noqa: S102 - the name is to vary
    module = type("Twice", (nn.Module,), namespace)()
    return torch.jit.trace(module, example_kwarg_inputs={name: torch.ones(3)})


def traced_module(x, name):
    return traced(name)(**{name: x})


def vmapped(x, name):
    return torch.vmap(lambda row, **named: row * named[name])(x, **{name: x})


def differentiated(x, name):
    return torch.func.grad(lambda v, **named: (v * named[name]).sum())(x, **{name: x})


def in_a_thread(x, name):
    results = []
    thread = threading.Thread(target=lambda **named: results.append(named[name] * 2), kwargs={name: x})
    thread.start()
    thread.join()
    return results[0]


USES = [module_call, scripted_function, traced_module, vmapped, differentiated, in_a_thread]
pytestmark = [
    pytest.mark.parametrize("name", names_of_parameters()),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning"),
]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
def test_inside_forward(use, name):
    model, x = Function(lambda x: use(x, name) + 1), torch.ones(3)
    expected = model(x)
    result = validate(model, (x,))
    assert result, result.verdict
    guarded = record_guarded(nn.Module.__call__, model, (x,), {}, Limits(100, float("inf")))
    assert guarded.recording is not None, guarded
    assert torch.equal(guarded.result, expected)


def test_of_the_model(name):
    model, named = Function(lambda x, **named: x + named[name]), {name: torch.ones(3)}
    result = validate(model, (torch.ones(3),), named)
    assert result, result.verdict
    assert len(record(model, (torch.ones(3),), named).calls) == 1
    with module_calls_intercepted():
        assert torch.equal(model(torch.ones(3), **named), torch.full((3,), 2.0))
