"""Methods of storages that write to the memory of tensors, which no mode sees."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchlens.records import Status
from pytest_torchlens.validate import validate
from tests.capture.programs import Programs
from tests.capture.programs import check
from tests.models import Function

PROGRAMS = Programs()


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    getitem_1: mul_1
    asstrided_1: mul_1
    fillstorage_1: asstrided_1
    add_1: getitem_1 ~fillstorage_1
    output_1: add_1
    """,
    mode="no_grad",
)
def filled(x):
    y = x * 2
    last = y[3:]
    y.untyped_storage().fill_(0)
    return last + 1


@PROGRAMS.add(
    """
    input_1
    mul_1: input_1
    asstrided_1: mul_1
    asstrided_2: input_1
    copystorage_1: asstrided_1 asstrided_2
    add_1: mul_1 ~copystorage_1
    output_1: add_1
    """,
    mode="no_grad",
)
def copied(x):
    y = x * 2
    y.untyped_storage().copy_(x.untyped_storage())
    return y + 1


@PROGRAMS.parametrize()
def test_graph(program, mode):
    check(program, mode)


def copied_by_keyword(x):
    y = x * 2
    y.untyped_storage().copy_(src=x.untyped_storage(), non_blocking=False)
    return y + 1


def swapped_bytes_by_keyword(x):
    y = x * 2
    y.untyped_storage().byteswap(dtype=torch.float32)
    return y.nan_to_num() + 1


def one_byte(x):
    y = x * 2
    y[1].untyped_storage()[3] = 7
    return y + 1


def swapped_bytes(x):
    y = x * 2
    y.untyped_storage().byteswap(torch.float32)
    return y.nan_to_num() + 1


def new_storage(x):
    storage = torch.UntypedStorage(x.nbytes)
    storage.copy_(x.untyped_storage())
    return torch.empty(0).set_(storage) * 2


def copied_storage(x):
    return torch.empty(0).set_((x * 2).untyped_storage().clone()) * 2


WRITES = {
    "filled": lambda x: filled(x.flatten()),
    "copied": copied,
    "copied by keyword": copied_by_keyword,
    "one byte": one_byte,
    "swapped bytes": swapped_bytes,
    "swapped bytes by keyword": swapped_bytes_by_keyword,
    "new storage": new_storage,
    "copied storage": copied_storage,
}


@pytest.mark.parametrize("function", WRITES.values(), ids=WRITES)
def test_writes_to_a_storage_are_replayed(function):
    found = validate(Function(function), (torch.rand(2, 3),))
    assert found.verdict.status is Status.PASSED
    assert found.history["output_1"].has_input_ancestor


class WritesItsWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 3))

    def forward(self, x):
        self.weight.untyped_storage().copy_(x.untyped_storage())
        return self.weight * 3


def test_a_weight_written_through_its_storage_is_put_back():
    model = WritesItsWeight()
    found = validate(model, (torch.rand(2, 3),))
    assert found.verdict.status is Status.PASSED
    assert torch.equal(model.weight, torch.ones(2, 3))
    assert found.history["mul_1"].has_input_ancestor


def test_a_wrong_argument_raises_the_error_of_pytorch():
    def fills(x):
        with pytest.raises(RuntimeError, match="expects int"):
            (x * 2).untyped_storage().fill_("no number")
        return x + 1

    assert validate(Function(fills), (torch.rand(2),)).verdict


INHERITED = [
    *((torch.UntypedStorage, name) for name in ("fill_", "copy_", "__setitem__", "byteswap", "resize_")),
    (torch.Tensor, "set_"),
]


@pytest.mark.parametrize(("owner", "name"), INHERITED, ids=[name for _, name in INHERITED])
def test_another_tools_replacement_of_a_method_stays(owner, name, monkeypatch):
    before = dict(vars(owner))
    validate(nn.ReLU(), (torch.rand(2),))
    assert dict(vars(owner)) == before
    inherited = getattr(owner, name)

    def another(*args, **kwargs):
        return inherited(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, another)
        validate(nn.ReLU(), (torch.rand(2),))
        assert vars(owner)[name] is another
    validate(nn.ReLU(), (torch.rand(2),))
    assert getattr(owner, name) is inherited
