"""Layouts, shapes and results with many parts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.nn.utils.rnn import pad_packed_sequence

from tests.capture.programs import Programs
from tests.capture.programs import check
from tests.capture.programs import trace

PROGRAMS = Programs()
OFFSETS = torch.tensor([0, 1, 3])

pytestmark = [pytest.mark.filterwarnings(f"ignore:{said}") for said in ("Sparse", "The PyTorch API of nested")]  # once


@PROGRAMS.add(
    """
    input_1
    tensor_1
    getitem_1: input_1
    sparsecootensor_1: tensor_1 getitem_1
    coalesce_1: sparsecootensor_1
    todense_1: sparsecootensor_1
    output_1: coalesce_1
    output_2: todense_1
    """
)
def sparse_coordinates(x):
    s = torch.sparse_coo_tensor(torch.tensor([[0, 0, 1]]), x[:3], (3,))
    return s.coalesce(), s.to_dense()


@PROGRAMS.add(
    """
    input_1
    diag_1: input_1
    tosparsecsr_1: diag_1
    matmul_1: tosparsecsr_1 input_1
    output_1: matmul_1
    """
)
def sparse_rows(x):
    return torch.diag(x).to_sparse_csr() @ x


@PROGRAMS.add(
    """
    input_1
    unfold_1: input_1
    sum_1: unfold_1
    expand_1: input_1
    asstrided_1: input_1
    t_1: asstrided_1
    contiguous_1: t_1
    output_1: sum_1
    output_2: expand_1
    output_3: contiguous_1
    """
)
def overlapping_and_expanded(x):
    return x.unfold(0, 3, 1).sum(-1), x.expand(2, 6), x.as_strided((2, 2), (1, 2)).t().contiguous()


@PROGRAMS.add(
    """
    input_1
    view_1: input_1
    contiguous_1: view_1
    permute_1: contiguous_1
    mul_1: permute_1
    output_1: mul_1
    """
)
def channels_last(x):
    return x.view(1, 2, 3, 1).contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1) * 1


@PROGRAMS.add(
    """
    input_1
    split_1: input_1
    split_2: input_1
    topk_1: input_1
    topk_2: input_1
    view_1: input_1
    max_1: view_1
    max_2: view_1
    getitem_1: input_1
    unbind_1: getitem_1
    unbind_2: getitem_1
    output_1: split_1
    output_2: split_2
    output_3: topk_1
    output_4: topk_2
    output_5: max_1
    output_6: max_2
    output_7: unbind_1
    output_8: unbind_2
    """
)
def many_results(x):
    return torch.split(x, 4), x.topk(2), x.view(2, 3).max(0), torch.unbind(x[:2])


@PROGRAMS.add(
    """
    input_1
    input_2
    embedding_1: input_1 $embed.weight
    to_1: input_2
    sort_1: to_1
    sort_2: to_1
    to_2: sort_2
    indexselect_1: embedding_1 to_2
    packpaddedsequence_1: indexselect_1 sort_1
    packpaddedsequence_2: indexselect_1 sort_1
    emptylike_1: to_2
    arange_1
    scatter_1: emptylike_1 to_2 arange_1
    getitem_1: packpaddedsequence_2
    zeros_1: getitem_1
    getitem_2: packpaddedsequence_2
    gru_1: packpaddedsequence_1 packpaddedsequence_2 zeros_1 $gru.weight_ih_l0..8
    gru_2: packpaddedsequence_1 packpaddedsequence_2 zeros_1 $gru.weight_ih_l0..8
    indexselect_2: gru_2 scatter_1
    padpackedsequence_1: gru_1 packpaddedsequence_2
    padpackedsequence_2: gru_1 packpaddedsequence_2
    indexselect_3: padpackedsequence_1 scatter_1
    cpu_1: scatter_1
    getitem_3: padpackedsequence_2 cpu_1
    output_1: indexselect_3
    """,
    inputs=lambda: (torch.tensor([[1, 2, 0], [3, 4, 5]]), torch.tensor([2, 3])),
)
class PackedSequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 3, padding_idx=0)
        self.gru = nn.GRU(3, 2, batch_first=True, bidirectional=True)

    def forward(self, ids, lengths):
        packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.gru(packed)[0], batch_first=True)[0]


@PROGRAMS.add(
    """
    input_1
    maxpool2dwithindices_1: input_1
    maxpool2dwithindices_2: input_1
    interpolate_1: input_1
    interpolate_2: input_1
    maxunpool2d_1: maxpool2dwithindices_1 maxpool2dwithindices_2
    adaptiveavgpool2d_1: input_1
    output_1: maxunpool2d_1
    output_2: adaptiveavgpool2d_1
    output_3: interpolate_1
    output_4: interpolate_2
    """,
    inputs=lambda: (torch.arange(1.0, 17.0).view(1, 1, 4, 4),),
)
def resized(x):
    values, places = F.max_pool2d(x, 2, return_indices=True)
    area = F.interpolate(x, size=2, mode="area")
    exact = F.interpolate(x, size=(2, 3), mode="nearest-exact")
    return F.max_unpool2d(values, places, 2), F.adaptive_avg_pool2d(x, 1), area, exact


@PROGRAMS.add(
    """
    input_1
    transformerencoderlayerfwd_1: input_1 $layer.self_attn.in_proj_weight..12
    output_1: transformerencoderlayerfwd_1
    """,
    inputs=lambda: (torch.ones(2, 3, 4),),
    mode="no_grad",
)
class EncoderFastPath(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()

    def forward(self, x):
        return self.layer(x)


def test_saved_values():
    _, history = trace(PROGRAMS["resized"], "grad")
    assert history["interpolate_1"].tensor_contents.tolist() == [[[[3.5, 5.5], [11.5, 13.5]]]]
    assert history["adaptiveavgpool2d_1"].tensor_contents.item() == 8.5


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_layer_prints(name):
    program = PROGRAMS[name]
    _, history = trace(program, "grad" if program.mode == "any" else program.mode)
    assert all(op.layer_label in str(op) for op in history)
    assert str(history)


@PROGRAMS.add(
    """
    input_1
    diag_1: input_1
    tosparse_1: diag_1
    coalesce_1: tosparse_1
    values_1: coalesce_1
    mul_1: values_1
    todense_1: coalesce_1 ~mul_1
    output_1: todense_1
    """
)
def sparse_values_written(x):
    s = torch.diag(x).to_sparse().coalesce()
    s.values().mul_(3)
    return s.to_dense()


@PROGRAMS.add(
    """
    input_1
    diag_1: input_1
    tosparsecsr_1: diag_1
    values_1: tosparsecsr_1
    add_1: values_1
    todense_1: tosparsecsr_1 ~add_1
    output_1: todense_1
    """
)
def values_of_sparse_rows_written(x):
    s = torch.diag(x).to_sparse_csr()
    s.values().add_(1)
    return s.to_dense()


@PROGRAMS.add(
    """
    input_1
    view_1: input_1
    mul_1: view_1
    constant_1
    constant_2
    nestedviewfromjagged_1: mul_1 constant_1 constant_2
    mul_2: mul_1
    nestedtopaddedtensor_1: nestedviewfromjagged_1 ~mul_2
    output_1: nestedtopaddedtensor_1
    """,
    mode="no_grad",
)
def base_of_ragged_rows_written(x):
    base = x.view(3, 2) * 1
    rows = torch.nested.nested_tensor_from_jagged(base, OFFSETS)
    base.mul_(3)
    return torch.nested.to_padded_tensor(rows, 0.0)


@PROGRAMS.add(
    """
    input_1
    nestedtensorfromtensorlist_1: input_1
    unbind_1: nestedtensorfromtensorlist_1
    unbind_2: nestedtensorfromtensorlist_1
    mul_1: unbind_1
    nestedtopaddedtensor_1: nestedtensorfromtensorlist_1 ~mul_1
    output_1: nestedtopaddedtensor_1
    """,
    mode="no_grad",
)
def nested_row_written(x):
    rows = torch.nested.as_nested_tensor([x, x])
    rows.unbind()[0].mul_(3)
    return torch.nested.to_padded_tensor(rows, 0.0)


@PROGRAMS.parametrize()
def test_graph(program, mode):
    check(program, mode)
