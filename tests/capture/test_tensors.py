"""Number formats, layouts and shapes of every kind."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.capture.programs import Programs
from tests.capture.programs import check
from tests.capture.programs import trace

PROGRAMS = Programs()
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch, on quantized tensors
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch, on quantized tensors


@PROGRAMS.add(
    """
    input_1
    neg_1: input_1
    complex_1: input_1 neg_1
    conj_1: complex_1
    resolveconj_1: conj_1
    viewasreal_1: resolveconj_1
    imag_1: conj_1
    mul_1: imag_1
    mul_2: conj_1
    real_1: mul_2
    output_1: viewasreal_1
    output_2: mul_1
    output_3: real_1
    """
)
def complex_with_a_lazy_conjugate(x):
    z = torch.complex(x, -x).conj()
    return torch.view_as_real(z.resolve_conj()), z.imag * 1, (z * z).real


@PROGRAMS.add(
    """
    input_1
    half_1: input_1
    mul_1: half_1
    bfloat16_1: input_1
    sqrt_1: bfloat16_1
    to_1: input_1
    to_2: to_1
    output_1: mul_1
    output_2: sqrt_1
    output_3: to_2
    """
)
def short_floats(x):
    return x.half() * 2, x.bfloat16().sqrt(), x.to(torch.float8_e4m3fn).to(torch.float32)


@PROGRAMS.add(
    """
    input_1
    long_1: input_1
    floordiv_1: long_1
    remainder_1: long_1
    lshift_1: long_1
    invert_1: long_1
    and_1: long_1
    gt_1: long_1
    any_1: gt_1
    bincount_1: long_1
    to_1: long_1
    output_1: floordiv_1
    output_2: remainder_1
    output_3: lshift_1
    output_4: invert_1
    output_5: and_1
    output_6: any_1
    output_7: bincount_1
    output_8: to_1
    """
)
def integers_and_truth_values(x):
    y = x.long()
    return y // 2, y % 4, y << 1, ~y, y & 3, (y > 2).any(), torch.bincount(y), y.to(torch.int8)


@PROGRAMS.add(
    """
    input_1
    quantizepertensor_1: input_1
    dequantize_1: quantizepertensor_1
    intrepr_1: quantizepertensor_1
    output_1: quantizepertensor_1
    output_2: dequantize_1
    output_3: intrepr_1
    """
)
def quantized(x):
    q = torch.quantize_per_tensor(x, 0.5, 1, torch.qint8)
    return q, q.dequantize(), q.int_repr()


class IntegerWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.tensor([[1, -2, 0], [3, 4, 1]], dtype=torch.int8))
        self.register_buffer("scale", torch.tensor(0.5))


@PROGRAMS.add(
    """
    input_1
    buffer_1
    to_1: buffer_1
    buffer_2
    mul_1: to_1 buffer_2
    linear_1: input_1 mul_1
    output_1: linear_1
    """,
    inputs=lambda: (torch.ones(1, 3),),
)
class Dequantizing(IntegerWeights):
    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype) * self.scale)


@PROGRAMS.add(
    """
    input_1
    gt_1: input_1
    getitem_1: input_1 gt_1
    sum_1: getitem_1
    mean_1: getitem_1
    cat_1: input_1 getitem_1
    zeros_1
    sum_2: zeros_1
    output_1: getitem_1
    output_2: sum_1
    output_3: mean_1
    output_4: cat_1
    output_5: sum_2
    """
)
def nothing_selected(x):
    picked = x[x > 1e6]
    return picked, picked.sum(), picked.mean(), torch.cat([x, picked]), torch.zeros(0, 3).sum(0)


@PROGRAMS.add(
    """
    input_1
    input_2
    embedding_1: input_1 $time.weight
    add_1: input_2 embedding_1
    output_1: add_1
    """,
    inputs=lambda: (torch.tensor(7), torch.ones(2, 3)),
)
class ScalarInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(10, 3)

    def forward(self, step, x):
        return x + self.time(step)


@PROGRAMS.add(
    """
    input_1
    view_1: input_1
    tensor_1
    maskedfill_1: view_1 tensor_1
    softmax_1: maskedfill_1
    nantonum_1: softmax_1
    getitem_1: input_1
    matmul_1: nantonum_1 getitem_1
    output_1: matmul_1
    """
)
def not_a_number_on_the_way(x):
    scores = x.view(2, 3).masked_fill(torch.tensor([[True], [False]]), float("-inf"))
    return torch.nan_to_num(scores.softmax(-1)) @ x[:3]


@PROGRAMS.add(
    """
    input_1
    tensor_1
    getitem_1: tensor_1
    expand_1: getitem_1
    scaleddotproductattention_1: input_1 expand_1
    nantonum_1: scaleddotproductattention_1
    output_1: nantonum_1
    """,
    inputs=lambda: (torch.randn(1, 1, 3, 4),),
)
def attention_with_a_masked_row(x):
    keep = torch.tensor([True, False, True])[:, None].expand(3, 3)
    return F.scaled_dot_product_attention(x, x, x, attn_mask=keep).nan_to_num()


@PROGRAMS.add(
    """
    input_1
    tensor_1
    astensor_1
    asarray_1
    getitem_1: input_1
    add_1: tensor_1 getitem_1
    getitem_2: input_1
    add_2: astensor_1 getitem_2
    getitem_3: input_1
    add_3: asarray_1 getitem_3
    getitem_4: input_1
    output_1: add_1
    output_2: add_2
    output_3: add_3
    output_4: getitem_4
    """
)
def values_from_lists(x):
    made = torch.tensor([1, 2]), torch.as_tensor([[1.0, 2.0]]), torch.asarray([3.0, 4.0])
    return [tensor + x[:2] for tensor in made], x[[0, 2]]


@PROGRAMS.add(
    """
    input_1
    neg_1: input_1
    view_1: neg_1
    bitwiseand_1: view_1
    view_2: bitwiseand_1
    output_1: view_2
    """
)
def bits_of_a_float(x):
    bits = (-x).view(torch.int32)
    bits.bitwise_and_(0x7FFFFFFF)
    return bits.view(torch.float32)


DTYPES = {
    "short_floats": {"half_1": "float16", "bfloat16_1": "bfloat16", "to_1": "float8_e4m3fn", "to_2": "float32"},
    "quantized": {"quantizepertensor_1": "qint8", "dequantize_1": "float32", "intrepr_1": "int8"},
    "complex_with_a_lazy_conjugate": {"conj_1": "complex64", "imag_1": "float32"},
}


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes(name):
    _, history = trace(PROGRAMS[name], "grad")
    assert {label: history[label].tensor_dtype.removeprefix("torch.") for label in DTYPES[name]} == DTYPES[name]


def test_saved_values():
    _, history = trace(PROGRAMS["not_a_number_on_the_way"], "grad")
    assert history["softmax_1"].tensor_contents.isnan().sum() == 3


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_layer_prints(name):
    program = PROGRAMS[name]
    _, history = trace(program, "grad" if program.mode == "any" else program.mode)
    assert all(op.layer_label in str(op) for op in history)
    assert str(history)


@PROGRAMS.parametrize()
def test_graph(program, mode):
    check(program, mode)
