"""A tensor computed inside an operation and stored there is reported as missed; one made of Python data is not."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from pytest_torchlens.records import Status
from pytest_torchlens.validate import validate
from tests.models import Function

KEPT = []


def by_a_hook(x):
    """Keep a tensor that is computed inside ``exp``."""
    kept = []

    def pack(saved):
        kept.append(saved * 2)
        return saved

    with saved_tensors_hooks(pack, lambda saved: saved):
        x.detach().requires_grad_().exp()
    return kept[0] * 2


def by_a_hook_in_a_gradient(x):
    """What Grad-CAM does."""
    kept = []
    x = x.detach().requires_grad_()
    y = x.exp()
    y.register_hook(kept.append)
    torch.autograd.grad(y.pow(2).sum(), x)
    return kept[0] * 2


@torch.library.custom_op("lens_tests::keeps", mutates_args=())
def keeps(x: torch.Tensor) -> torch.Tensor:
    KEPT.append(x.exp())
    return x * 2


def by_an_operator(x):
    keeps(x)
    return KEPT[-1] * 3


class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        result = func(*[arg.inner if isinstance(arg, Wrapped) else arg for arg in args], **(kwargs or {}))
        return cls(result) if isinstance(result, torch.Tensor) else result


def test_a_tensor_that_a_hook_in_a_gradient_stores_is_unproven():
    part = validate(Function(by_a_hook_in_a_gradient), (torch.ones(3),)).verdict.part("completeness")
    assert part.status is Status.UNPROVEN
    assert part.reason.startswith("mul_1_6 reads a tensor made inside grad_1_5, where a hook")


SPARSE = torch.eye(3).to_sparse()


@pytest.mark.parametrize("sparse", [SPARSE, SPARSE.coalesce()], ids=["coo", "coalesced"])
def test_a_sparse_constant_existed_before(sparse):
    verdict = validate(Function(lambda x: (sparse @ x[:, None]).to_dense() * 2), (torch.ones(3),)).verdict
    assert verdict.status is Status.PASSED, verdict.words


def as_part_of_a_wrapper(x):
    return (Wrapped(x * 1) + 1).inner * 2


@pytest.mark.parametrize(
    ("forward", "cause"),
    [
        (
            by_a_hook,
            "aten::mul made it inside a recorded operation, which did not return it: a hook or a cache kept it",
        ),
        (by_an_operator, ""),  # the dispatcher's watch does not see into it
    ],
)
def test_a_tensor_that_an_operation_stores_is_missed(forward, cause):
    verdict = validate(Function(forward), (torch.ones(3),)).verdict
    part = verdict.part("completeness")
    assert not part.status.ok
    assert "was made during the pass by no recorded operation" in part.failures[0].message
    assert part.failures[0].cause == cause


def test_a_tensor_that_a_wrapper_holds_is_handed_out():
    found = validate(Function(as_part_of_a_wrapper), (torch.ones(3),))
    assert found.verdict.status is Status.PASSED, found.verdict.words
    assert found.history["unwrap_1"].parent_layers == ("add_1_3",)


CACHE = torch.zeros(3)


def constant_written_in_an_operation(x):
    CACHE.add_(1)
    return CACHE + x


@pytest.mark.parametrize("forward", [constant_written_in_an_operation, lambda x: x + torch.Tensor([1.0, 2.0, 3.0])])
def test_constants_are_not_missed_operations(forward):
    verdict = validate(Function(forward), (torch.ones(3),)).verdict
    assert verdict, verdict
