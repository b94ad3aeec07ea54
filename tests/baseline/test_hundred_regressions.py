"""Twenty regressions on five real models: each is found where it was put, in its class, and nothing else is accused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchlens.baseline.compare import compare
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot import Step
from pytest_torchlens.records import Change
from tests.baseline.samples import an_input
from tests.baseline.samples import filled
from tests.baseline.samples import snapshot_of
from tests.baseline.samples import tampered_snapshot

torchvision = pytest.importorskip("torchvision")

MODELS: dict[str, dict[str, Any]] = {
    "mobilenet_v3_small": {},
    "resnet18": {},
    "swin_t": {},
    "convnext_tiny": {},
    "vit_b_16": {"image_size": 96},
}
X = an_input(1, 3, 96, 96)
ACTIVATIONS = ("relu", "gelu", "hardswish")
NORMS = ("batchnorm", "layernorm")
WEIGHTED = ("linear", "conv2d")
Out = Callable[[torch.Tensor], torch.Tensor]


def result(change: Out) -> Callable[..., Any]:
    """Tamper with what the function returns."""
    return lambda func, args, kwargs: change(func(*args, **kwargs))


def _changed_at(out: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    out = out.clone()
    out[index] = value
    return out


def _weight_at(args: Any, kwargs: Any) -> tuple[str | int, torch.Tensor]:
    return (1, args[1]) if len(args) > 1 else ("weight", kwargs["weight"])


def weight(change: Out) -> Callable[..., Any]:
    """Tamper with the weight that the function is given."""

    def tamper(func: Any, args: Any, kwargs: Any) -> Any:
        where, tensor = _weight_at(args, kwargs)
        if where == 1:
            return func(args[0], change(tensor), *args[2:], **kwargs)
        return func(*args, **{**kwargs, "weight": change(tensor)})

    return tamper


def _without_bias(func: Any, args: Any, kwargs: Any) -> Any:
    bias = args[2] if len(args) > 2 else kwargs["bias"]
    out = func(*args, **kwargs)
    return out - bias.reshape(-1, 1, 1) if out.ndim == 4 and out.shape[-1] != len(bias) else out - bias


def _another_eps(func: Any, args: Any, kwargs: Any) -> Any:
    if "eps" in kwargs:
        return func(*args, **{**kwargs, "eps": 1e-2})
    return func(*args[:-1], 1e-2, **kwargs)


def _doubled(tensor: torch.Tensor) -> torch.Tensor:
    place = tensor.abs().argmax()
    return _changed_at(tensor.reshape(-1), place, 2 * tensor.reshape(-1)[place]).reshape(tensor.shape)


def _transposed(out: torch.Tensor) -> torch.Tensor:
    return out.transpose(-1, -2).contiguous().transpose(-1, -2)


# -- beneath the recorder: a kernel that computes something else
KERNELS: dict[str, tuple[tuple[str, ...], Callable[..., Any], Change]] = {
    "a few eps": (ACTIVATIONS, result(lambda out: out * (1 + 2**-21)), Change.LOCAL_CHANGE),
    "float16 accumulation": (WEIGHTED, result(lambda out: out.half().float()), Change.REGRESSION),
    "weight rounded to bfloat16": (WEIGHTED, weight(lambda w: w.bfloat16().float()), Change.REGRESSION),
    "one weight element doubled": (WEIGHTED, weight(_doubled), Change.REGRESSION),
    "bias dropped": (("linear",), _without_bias, Change.REGRESSION),
    "a wrong epsilon inside": (NORMS, _another_eps, Change.REGRESSION),
    "another activation": (ACTIVATIONS, result(lambda out: nn.functional.softplus(out, beta=20.0)), Change.REGRESSION),
    "one output row zeroed": (WEIGHTED, result(lambda out: _changed_at(out, (..., 0), 0.0)), Change.REGRESSION),
    "NaN at one place": (WEIGHTED, result(lambda out: _changed_at(out, (0, ..., -1), torch.nan)), Change.NAN_CHANGE),
    "infinite at one place": (NORMS, result(lambda out: _changed_at(out, (0, ..., -1), torch.inf)), Change.NAN_CHANGE),
    "sign of one channel": (NORMS, result(lambda out: _changed_at(out, (..., -1), -out[..., -1])), Change.REGRESSION),
    "off by one": (ACTIVATIONS, result(lambda out: out.flatten().roll(1).reshape(out.shape)), Change.REGRESSION),
    "other strides": (NORMS, result(_transposed), Change.META_CHANGE),
}


# -- edits of the model: another call, seen as such
def _module(model: nn.Module, step: Step) -> nn.Module:
    return model.get_submodule(step.module[-1].partition(":")[0])


def _replace(model: nn.Module, step: Step, make: Callable[[nn.Module], nn.Module]) -> None:
    address = step.module[-1].partition(":")[0]
    parent, _, name = address.rpartition(".")
    setattr(model.get_submodule(parent), name, make(model.get_submodule(address)))


class Cast(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x).half().float()


def _set_eps(model: nn.Module, step: Step) -> None:
    _module(model, step).eps *= 10


def _set_weights(model: nn.Module, step: Step) -> None:
    with torch.no_grad():
        _module(model, step).weight[0] += 0.5


EDITS: dict[str, tuple[tuple[str, ...], Callable[[nn.Module, Step], None], Change, str]] = {
    "a changed default": (NORMS, _set_eps, Change.STRUCTURE, "argument"),
    "an operation removed": (
        ACTIVATIONS,
        lambda m, s: _replace(m, s, lambda old: nn.Identity()),
        Change.STRUCTURE,
        "removed",
    ),
    "a function replaced": (
        ACTIVATIONS,
        lambda m, s: _replace(m, s, lambda old: nn.Tanh()),
        Change.STRUCTURE,
        "replaced",
    ),
    "an inserted cast": (NORMS, lambda m, s: _replace(m, s, Cast), Change.STRUCTURE, "added"),
    "a renamed module": (
        NORMS,
        lambda m, s: _replace(m, s, nn.Sequential),
        Change.REFACTOR,
        "renamed",
    ),
    "a bias taken away": (
        ("linear",),
        lambda m, s: setattr(_module(m, s), "bias", None),
        Change.STRUCTURE,
        "is not read",
    ),
    "other weights": (WEIGHTED, _set_weights, Change.INPUTS_DIFFER, "other weights"),
}


def _target(clean: Snapshot, functions: tuple[str, ...], number: int) -> Step:
    """Return one of the steps that fit, another one for each regression, in a module of its own."""
    steps = [step for step in clean.steps if step.function in functions and step.module and step.parents]
    leaf = [step for step in steps if {edge.parent.rpartition(".")[0] for edge in step.reads} <= {step.module[-1]}]
    if "linear" in functions:  # for what is done to the weight and the bias of a module
        wanted = {"weight"} | ({"bias"} if functions == ("linear",) else set())
        leaf = [step for step in leaf if wanted <= {edge.parent.rpartition(".")[2] for edge in step.reads}]
    if functions == NORMS:  # of an output whose strides can be others
        leaf = [step for step in leaf if sum(size > 1 for size in step.shape) > 1]
    own = [step for step in leaf if ":" not in step.module[-1] and f"{step.module[-1]}:2" not in clean.calls]
    return own[(7 * number + len(own) // 3) % len(own)]


def _found(model: nn.Module, clean: Snapshot, number: int, name: str) -> tuple[str, bool]:
    """Inject a regression; return what the comparison reported, and whether that is right."""
    if name in KERNELS:
        functions, tamper, change = KERNELS[name]
        step = _target(clean, functions, number)
        comparison, words = compare(clean, tampered_snapshot(model, X, step.id, tamper, clean)), ""
    else:
        functions, edit, change, words = EDITS[name]
        step = _target(clean, functions, number)
        edited = copy.deepcopy(model)
        edit(edited, step)
        comparison = compare(clean, snapshot_of(edited, X))
    accused = {finding.operation for finding in comparison.findings if finding.change is not Change.LARGER}
    at_step = all(_is_at(step, operation) for operation in accused)
    right = comparison.verdict is change and bool(accused) and at_step
    right = right and any(words in finding.message for finding in comparison.findings)
    told = [(finding.change.value, finding.operation, finding.message) for finding in comparison.findings]
    return f"{name} at {step.id}: {comparison.verdict.value} {told}", right


def _is_at(step: Step, operation: str) -> bool:
    """Whether an operation is the step, or in the module that an edit put around or in its place."""
    return operation == step.id or operation.startswith((f"{step.module[-1]}/", f"{step.module[-1]}."))


@pytest.fixture
def one_path():
    """Keep attention off its fast path, which it leaves when a mode such as the tampering one is on."""
    kept = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(kept)


@pytest.mark.slow
@pytest.mark.usefixtures("one_path")
def test_each_regression_is_found_where_it_is_and_none_elsewhere(capsys):
    names = [*KERNELS, *EDITS]
    assert len(names) == 20
    wrong = []
    for model_name, arguments in MODELS.items():
        model = filled(getattr(torchvision.models, model_name)(**arguments))
        for module in model.modules():
            if hasattr(module, "inplace"):
                module.inplace = False
        clean = snapshot_of(model, X)
        for number, name in enumerate(names):
            told, right = _found(model, clean, number, name)
            wrong += [] if right else [f"{model_name}: {told}"]
    total = len(MODELS) * len(names)
    with capsys.disabled():
        print(f"\n{total - len(wrong)} of {total} seeded regressions found at their operation, in their class")  # noqa: T201 - the figure is asked for
    assert wrong == []
