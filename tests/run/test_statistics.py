from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import Operation
from pytest_torchlens.run.errors import code_of
from pytest_torchlens.run.job import activation_statistics
from pytest_torchlens.zoo import Inputs


class Odd(nn.Module):
    def forward(self, x):
        relu = torch.relu(x)
        lost = relu / relu
        return lost, relu.to(torch.int64), relu.bool(), torch.fft.fft(x), x[:0], x.half(), x.to_sparse(), x.log() * 0


def statistics(model, *args):
    return activation_statistics(model, Inputs(args, {}), None)


def test_numbers_of_each_tensor():
    found = statistics(Odd(), torch.tensor([[-1.0, 0.0, 1.0, 2.0]]))
    rows = {name: place for place, name in enumerate(found.operations)}
    relu = rows["relu_1_1"]
    assert (found.mean[relu], found.minimum[relu], found.maximum[relu], found.zeros[relu]) == (0.75, 0.0, 2.0, 0.5)
    assert math.isclose(found.std[relu], torch.tensor([0.0, 0.0, 1.0, 2.0]).std(correction=0), rel_tol=1e-6)
    lost = rows["div_1_2"]
    assert (found.mean[lost], found.not_finite[lost], found.zeros[lost]) == (1.0, 0.5, 0.0)
    assert found.mean[rows["input_1_0"]] == 0.5


def test_integers_and_truth_values_have_numbers_and_what_is_no_such_tensor_has_none():
    names = statistics(Odd(), torch.tensor([[-1.0, 0.0, 1.0, 2.0]])).operations
    kinds = {name.partition("_")[0] for name in names}
    assert {"to", "bool", "half", "log"} <= kinds
    assert not {"fftfft", "getitem", "tosparse"} & kinds


def test_nothing_finite_is_no_number():
    found = statistics(nn.ReLU(), torch.full((2, 2), float("nan")))
    assert math.isnan(found.mean[0])
    assert found.not_finite[0] == 1.0


def test_a_model_without_tensors():
    class Nothing(nn.Module):
        def forward(self):
            return None

    assert statistics(Nothing()).operations == ()


def test_code_around_a_line(tmp_path):
    file = tmp_path / "net: odd.py"
    file.write_text("one\ntwo\nthree\nfour\nfive\nsix\n", encoding="utf-8")
    lines = f"{file}:3, in forward", f"{file}:1, in f", "gone.py:7, in f", f"{file}:99, in f", "no line"
    operations = tuple(
        Operation(
            layer_label="a",
            layer_label_w_pass="a",  # noqa: S106 - a label
            layer_label_short="a",
            operation_num=0,
            layer_type="a",
            layer_type_num=1,
            layer_total_num=0,
            source_line=line,
        )
        for line in lines
    )
    code = code_of(HistoryRecord(model_name="net", operations=operations))
    assert list(code) == list(lines[:2])
    assert code[lines[0]].splitlines() == ["     1 one", "     2 two", ">    3 three", "     4 four", "     5 five"]
    assert code[lines[1]].splitlines()[0] == ">    1 one"


def test_a_histogram_counts_the_finite_elements_from_least_to_greatest():
    values = torch.tensor([0.0, 0.0, 1.0, 5.0, 10.0, float("nan"), float("inf")])
    counts = statistics(nn.Identity(), values).histograms[0]
    assert (len(counts), sum(counts)) == (20, 5)
    assert [counts[step] for step in (0, 2, 10, 19)] == [2, 1, 1, 1]


@pytest.mark.parametrize("value", [3.0, float("nan")])
def test_equal_or_no_finite_elements_are_one_step(value):
    counts = statistics(nn.Identity(), torch.full((4,), value)).histograms[0]
    assert counts == (4 if value == 3.0 else 0, *[0] * 19)
