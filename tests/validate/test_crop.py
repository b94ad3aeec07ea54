"""A crop of a call gives a part of its result, and tells the effects of arguments apart."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import record
from pytest_torchlens.capture.calls import values_read
from pytest_torchlens.capture.functions import info_of
from pytest_torchlens.capture.leaves import tensors as tensors_in
from pytest_torchlens.validate import validate
from pytest_torchlens.validate.crop import channels_apart
from pytest_torchlens.validate.crop import crop_of
from pytest_torchlens.validate.crop import differing
from pytest_torchlens.validate.crop import replaced
from tests.models import Function

NAMES = ("input", "running_mean", "running_var", "weight", "bias")

CROPPED = {
    "max_pool2d": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max_pool2d, with indices": lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
    "max_pool2d, one image": lambda x: F.max_pool2d(x[0], 3),
    "avg_pool1d": lambda x: F.avg_pool1d(x[0], 2),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (3, 1)),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 2),
    "softmax": lambda x: F.softmax(x, -1),
    "softmax, over channels": lambda x: F.softmax(x, dim=1),
    "log_softmax": lambda x: F.log_softmax(x, 2),
}


@pytest.mark.parametrize("forward", CROPPED.values(), ids=CROPPED)
def test_a_crop_of_a_call_gives_that_part_of_its_result(forward):
    x = torch.rand(2, 12, 16, 16)
    recording = record(Function(forward), (x,), keep="all")
    call = recording.calls[-1]
    tensors = {path: value.tensor for path, value in values_read(call)}
    cropped = crop_of(call, tensors)
    assert 0 < cropped["0"].numel() <= tensors["0"].numel() / 12
    args = tuple(cropped.get(str(place), arg) for place, arg in enumerate(call.args))
    parts = call.info.func(*args, **call.kwargs)
    for part, whole in zip(tensors_in(parts), (value.tensor for value in call.outputs), strict=True):
        torch.testing.assert_close(part, whole[tuple(map(slice, part.shape))])


@pytest.mark.parametrize("forward", CROPPED.values(), ids=CROPPED)
def test_a_call_of_which_a_crop_suffices_has_no_failures(forward):
    part = validate(Function(forward), (torch.rand(2, 12, 16, 16),)).verdict.part("perturbation")
    assert (part.failures, part.exempt) == ((), {})


@pytest.mark.parametrize("name", NAMES)
def test_a_normalisation_computes_each_channel_from_that_channel_alone(name):
    tensors = dict(zip(NAMES, (torch.rand(1, 12, 1, 1), *torch.rand(4, 12)), strict=True))
    call = Call(info_of(torch.batch_norm), (), {}, None, (), 0, None)
    for channels in channels_apart(call, list(tensors.items())):
        changed = {**tensors, name: replaced(tensors[name], channels, tensors[name] + 1)}
        is_other = differing(F.batch_norm(**changed), F.batch_norm(**tensors))
        assert is_other.tolist() == channels.tolist()
        assert 0 < channels.sum() < len(channels)


def test_other_bits_are_told_from_equal_ones():
    numbers = torch.tensor([[1.0, float("nan"), 0.0], [2.0, 3.0, 4.0]])
    other = torch.tensor([[1.0, float("nan"), -0.0], [2.0, 3.5, 4.0]])
    assert differing(numbers, other).tolist() == [False, False, True, False, True, False]
    assert differing(numbers.t(), other.t()).tolist() == [False, False, False, True, True, False]
    assert differing(numbers, other.double()) is None
    assert differing(numbers, other[:1]) is None


@pytest.mark.parametrize(
    ("function", "channels", "apart"),
    [(torch.batch_norm, 4, False), (torch.batch_norm, 5, True), (torch.layer_norm, 12, False)],
)
def test_effects_are_told_apart_only_where_there_are_channels_for_each_argument(function, channels, apart):
    cropped = [("0", torch.rand(1, channels, 1, 1)), *((name, torch.rand(channels)) for name in "1234")]
    found = channels_apart(Call(info_of(function), (), {}, None, (), 0, None), cropped)
    assert (found is not None) == apart
