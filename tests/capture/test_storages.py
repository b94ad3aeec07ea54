"""Methods of storages that write to the memory of tensors, which no mode sees."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from pytest_torchlens.capture import record
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


TABLE = torch.ones(3)


def filled_before_it_is_read(x):
    TABLE.untyped_storage().fill_(0)
    return x + TABLE


def filled_before_it_is_read_through_others(x):
    last, integers = TABLE[1:], TABLE.view(torch.int32)
    TABLE.untyped_storage().fill_(0)
    return x * TABLE + last.sum() + integers


def filled_array(x):
    array = torch.from_numpy(np.ones(3, np.float32))
    array.untyped_storage().fill_(0)
    return x + array


def filled_by_a_constructor(x):
    made = torch.Tensor([1, 2, 3])
    made.untyped_storage().fill_(0)
    return x + made


def copied_from(dtype, count):
    def copied(x):
        y = x * 2
        y.untyped_storage().copy_(torch.ones(count, dtype=dtype).untyped_storage())
        return y + x

    return copied


def of_another_dtype_over_it(x):
    y = x * 2
    part = torch.empty(0, dtype=torch.uint8).set_(y.untyped_storage(), 5, (3,))
    part.fill_(0)
    return y + 1


def array_of_another_dtype(x):
    y = (x * 2).detach()
    torch.from_numpy(y.numpy().view(np.int32)).zero_()
    return y + x


def odd_bytes(x):
    storage = torch.UntypedStorage(7)
    storage.fill_(1)
    return x.sum() + torch.empty(0, dtype=torch.uint8).set_(storage)


def odd_bytes_under_floats(x):
    storage = torch.UntypedStorage(7)
    y = torch.empty(0).set_(storage, 0, (1,))
    y.copy_(x[0, :1])
    z = y * 2
    storage.fill_(0)
    return z + y


def never_read(x):
    torch.UntypedStorage(7).fill_(0)
    return x + 1


def quantized(x):
    y = torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)
    y.untyped_storage().fill_(3)
    return y.dequantize() + x


def sparse(x):
    y = torch.diag(x[0]).to_sparse()
    y._values().untyped_storage().fill_(0)
    return y.to_dense() + x[0]


def compressed(x):
    y = torch.diag(x[0]).to_sparse_csr()
    y.values().untyped_storage().fill_(1)
    return y.to_dense() + x[0]


def raised(x):
    y = x * 2
    with pytest.raises(RuntimeError):
        y.untyped_storage().copy_(torch.UntypedStorage(4))
    return y + 1


WRITES = {
    "filled before it is read": filled_before_it_is_read,
    "filled before it is read through others": filled_before_it_is_read_through_others,
    "filled array": filled_array,
    "filled by a constructor": filled_by_a_constructor,
    "copied from integers": copied_from(torch.int32, 6),
    "copied from doubles": copied_from(torch.float64, 3),
    "copied from bytes": copied_from(torch.uint8, 24),
    "of another dtype over it": of_another_dtype_over_it,
    "array of another dtype": array_of_another_dtype,
    "odd bytes": odd_bytes,
    "odd bytes under floats": odd_bytes_under_floats,
    "never read": never_read,
    "quantized": quantized,
    "sparse": sparse,
    "compressed": compressed,
    "raised": raised,
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


def test_a_method_that_raises_leaves_no_operation():
    assert [call.info.name for call in record(Function(raised), (torch.rand(2, 3),)).calls] == ["mul", "add"]


def test_a_buffer_that_only_its_storage_is_written_of():
    class Fills(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.ones(3))

        def forward(self, x):
            self.count.untyped_storage().fill_(0)
            return x * 2

    model = Fills()
    assert validate(model, (torch.rand(3),)).verdict.status is Status.PASSED
    assert model.count.tolist() == [1, 1, 1]


def bytes_by_list(x):
    return torch.empty(0).set_(torch.UntypedStorage(list(x.untyped_storage()))) * 2


def bytes_one_by_one(x):
    storage = torch.UntypedStorage(x.nbytes)
    for place, byte in enumerate(x.untyped_storage().tolist()):
        storage[place] = byte
    return torch.empty(0).set_(storage) * 2


@pytest.mark.parametrize("function", [bytes_by_list, bytes_one_by_one])
def test_bytes_that_python_reads_off_a_storage_leave_the_graph(function):
    verdict = validate(Function(function), (torch.rand(3),)).verdict
    assert verdict.status is Status.UNPROVEN, verdict.words
    assert "made after __getitem__ handed an input's values to Python" in verdict.words


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
    *((torch.UntypedStorage, name) for name in ("fill_", "copy_", "__setitem__", "__getitem__", "byteswap", "resize_")),
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
