from __future__ import annotations

import base64
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


def statistics(model, *args, pictures=False):
    return activation_statistics(model, Inputs(args, {}), None, pictures)


def pixels(picture):
    size, _, text = picture.partition(":")
    height, width = map(int, size.split("x"))
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8).reshape(height, width)


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


def test_no_picture_is_made_where_none_is_asked_for():
    assert statistics(nn.Identity(), torch.rand(2, 3)).pictures == ()


def test_the_picture_of_an_image_has_its_channels_beside_each_other():
    values = torch.zeros(2, 5, 2, 3)
    values[0, 1], values[0, 4, 0, 2], values[1] = 1.0, 2.0, 7.0
    found = pixels(statistics(nn.Identity(), values, pictures=True).pictures[0])
    assert found.shape == (5, 15)  # two rows of four channels, with a line between
    assert found[:2, 4:7].unique().tolist() == [round(255 / 7)]
    assert found[3].tolist() == [0, 0, round(510 / 7), *[0] * 12]
    assert not found[2].any()


def test_the_picture_of_a_table_has_its_rows_and_odd_values_at_the_ends():
    values = torch.tensor([[-1.0, 1.0, float("inf")], [0.0, float("nan"), float("-inf")]])
    assert pixels(statistics(nn.Identity(), values, pictures=True).pictures[0]).tolist() == [[0, 255, 255], [128, 0, 0]]


def test_the_picture_of_a_large_map_averages_it():
    values = torch.arange(64.0).reshape(1, 1, 1, 64).expand(1, 1, 32, 64)
    found = pixels(statistics(nn.Identity(), values, pictures=True).pictures[0])
    assert found.shape == (16, 16)
    assert found[3].tolist() == [round((1.5 + 4 * step) * 255 / 63) for step in range(16)]


@pytest.mark.parametrize("shape", [(), (1,), (7,), (1, 1), (2, 3, 4, 5, 6), (1, 1, 1, 1)])
def test_every_tensor_with_elements_has_a_picture(shape):
    assert pixels(statistics(nn.Identity(), torch.rand(shape), pictures=True).pictures[0]).numel()
