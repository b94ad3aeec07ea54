"""Digests: equal values give equal digests, whatever the layout; other values give others."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture import record
from tests.models import Function

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layout_in_memory_does_not_matter(dtype):
    dense = torch.arange(24).reshape(4, 6).to(dtype)
    strided = dense.t().contiguous().t()
    assert dense.stride() != strided.stride()
    assert fingerprint(dense) == fingerprint(strided) != ""


@given(st.integers(0, 23), st.integers(0, 31))
def test_one_bit_changes_the_digest(element, bit):
    tensor = torch.arange(24, dtype=torch.float32)
    changed = tensor.clone()
    changed.view(torch.int32)[element] ^= (1 << bit) - (1 << 32 if bit == 31 else 0)
    assert fingerprint(tensor) != fingerprint(changed)


def test_lazy_conjugate_and_negative_differ_from_their_base():
    z = torch.randn(4, dtype=torch.complex64)
    assert fingerprint(z.conj()) == fingerprint(z.conj().resolve_conj()) != fingerprint(z)
    assert fingerprint(z.conj().imag) == fingerprint(-(z.imag)) != fingerprint(z.imag)
    one = torch.tensor([1 + 2j])
    assert fingerprint(one.conj().imag) != fingerprint(one.imag)


UNUSUAL = {
    "coo": lambda v: torch.tensor([[0.0, v], [0.0, 1.0]]).to_sparse(),
    "csr": lambda v: torch.tensor([[0.0, v], [0.0, 1.0]]).to_sparse_csr(),
    "csc": lambda v: torch.tensor([[0.0, v], [0.0, 1.0]]).to_sparse_csc(),
    "nested": lambda v: torch.nested.nested_tensor([torch.full((2,), v), torch.ones(3)]),
    "jagged": lambda v: torch.nested.nested_tensor([torch.full((2,), v), torch.ones(3)], layout=torch.jagged),
    "quantized": lambda v: torch.quantize_per_tensor(torch.tensor([v, 1.0]), 0.5, 0, torch.qint8),
    "scale": lambda v: torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), v, 0, torch.qint8),
    "meta": lambda v: torch.empty(int(v), device="meta"),
    "mkldnn": lambda v: torch.full((2,), v).to_mkldnn(),
}


@pytest.mark.parametrize("make", UNUSUAL.values(), ids=UNUSUAL)
@pytest.mark.filterwarnings("ignore")
def test_unusual_tensors_have_digests_that_differ_by_value(make):
    assert fingerprint(make(2.0)) == fingerprint(make(2.0)) != ""
    assert fingerprint(make(2.0)) != fingerprint(make(3.0))


def test_recorded_digests_are_the_fingerprints_of_the_values():
    def forward(x):
        return [x.t(), x[1:], x.to(torch.float16), torch.view_as_complex(x.reshape(-1, 2)).conj(), x.to_sparse()]

    recording = record(Function(forward), (torch.rand(4, 6),))
    for (_, value), tensor in zip(recording.outputs, recording.output, strict=True):
        assert value.fingerprint == fingerprint(tensor) != ""


def test_zeros_without_memory_are_zeros():
    assert fingerprint(torch._efficientzerotensor(6)) == fingerprint(torch.zeros(6))


def test_freed_memory_is_not_read():
    tensor = torch.ones(6)
    tensor.untyped_storage().resize_(0)
    assert fingerprint(tensor) == ""
    record(Function(lambda x: x + (tensor.view(2, 3).shape[0])), (torch.ones(6),))
