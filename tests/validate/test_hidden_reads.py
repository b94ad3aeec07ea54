"""Operators of other libraries: none may read a tensor unseen, and one that reads its arguments alone is believed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchlens.records import Status
from pytest_torchlens.validate import tolerance
from pytest_torchlens.validate import validate

X = torch.tensor([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]])
ASIDE = {}
LIBRARY = torch.library.Library("lens_hidden_reads", "DEF")


@torch.library.custom_op("lens_hidden_reads::aside", mutates_args=())
def aside(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + ASIDE["y"]


def aside_by_impl(x):
    return x * 2 + ASIDE["y"]


LIBRARY.define("resize(int size) -> Tensor")
LIBRARY.impl("resize", lambda size: torch.arange(size * 1.0), "CompositeExplicitAutograd")
LIBRARY.define("impl(Tensor x) -> Tensor")
LIBRARY.impl("impl", aside_by_impl, "CPU")


@torch.library.custom_op("lens_hidden_reads::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand_like(x)


@torch.library.custom_op("lens_hidden_reads::doubled", mutates_args={"x"})
def doubled(x: torch.Tensor) -> None:
    x.mul_(2)


@torch.library.custom_op("lens_hidden_reads::shaky", mutates_args=())
def shaky(x: torch.Tensor) -> torch.Tensor:
    ASIDE["count"] = ASIDE.get("count", 0) % 7 + 1
    return x + 1e-3 * ASIDE["count"]


@torch.library.custom_op("lens_hidden_reads::with_table", mutates_args=())
def with_table(x: torch.Tensor) -> torch.Tensor:
    return x * ASIDE.setdefault("table", torch.arange(3.0))


class Model(nn.Module):
    """Puts an activation aside, then calls an operator with another one."""

    def __init__(self, operator):
        super().__init__()
        self.operator = operator
        self.fc = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        ASIDE["y"] = self.fc(x)
        y = self.norm(x)
        out = self.operator(y)
        return (y if out is None else out) * 3


@pytest.mark.parametrize(
    "operator", [aside, torch.ops.lens_hidden_reads.aside.default, torch.ops.lens_hidden_reads.impl]
)
@torch.no_grad()
def test_a_tensor_put_aside_is_found(operator):
    model = Model(operator).eval()
    verdict = validate(model, (X,)).verdict
    assert verdict.status is Status.UNPROVEN
    assert "it reads a tensor that is not among its arguments" in verdict.words


@pytest.mark.parametrize("operator", [noisy, doubled, with_table])
@pytest.mark.parametrize("training", [True, False])
@torch.no_grad()
def test_other_operators_are_believed(operator, training):
    assert validate(Model(operator).train(training), (X,)).verdict.status is Status.PASSED


@torch.no_grad()
def test_one_may_have_the_name_of_another_of_pytorch():
    model = Model(lambda y: y + torch.ops.lens_hidden_reads.resize(3)).eval()
    assert validate(model, (X,)).verdict.status is Status.PASSED


@torch.no_grad()
def test_one_that_does_not_repeat_itself_reads_nothing_unseen():
    with tolerance((0.0, 0.1)):
        verdict = validate(Model(shaky).eval(), (X,), parts=["replay"]).verdict
    assert verdict.status is Status.PASSED_WITH_TOLERANCE


@torch.no_grad()
def test_a_fingerprint_that_raises_ends_no_validation(monkeypatch: pytest.MonkeyPatch):
    calls = []

    def raising(tensor):
        calls.append(tensor)
        raise LookupError("no fingerprint")

    monkeypatch.setattr("pytest_torchlens.validate.hidden_reads.fingerprint", raising)
    assert validate(Model(with_table).eval(), (X,)).verdict.status is Status.PASSED
    assert len(calls) == 1


@torch.library.custom_op("lens_hidden_reads::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    ASIDE["times"] = ASIDE.get("times", 0) + 1
    if ASIDE["times"] == ASIDE.get("raises_at"):
        raise OSError("the table's file is closed")
    return x * 2


@torch.no_grad()
def test_an_operator_that_raises_anything_when_it_runs_again_ends_no_validation():
    ASIDE.update(times=0, raises_at=None)
    validate(Model(counted).eval(), (X,))
    ASIDE.update(times=0, raises_at=ASIDE["times"])
    assert validate(Model(counted).eval(), (X,)).verdict.status is Status.PASSED
    assert ASIDE["times"] == ASIDE["raises_at"]


@pytest.mark.parametrize("transform", [torch.vmap, torch.func.grad, lambda run: lambda x: torch.func.vjp(run, x)])
def test_inside_a_transform_nothing_can_be_validated(transform):
    model = nn.Linear(3, 3)

    def run(x):
        validate(model, (x,))
        return x.sum()

    with pytest.raises(RuntimeError, match=r"Linear cannot be validated inside torch\.func\.grad, vmap"):
        transform(run)(X)
