from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from torch import nn

from pytest_torchlens.zoo import fill_model
from pytest_torchlens.zoo import fill_tensor


def small() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 5))


def digest(model: nn.Module) -> str:
    whole = hashlib.blake2b(digest_size=8)
    for tensor in model.state_dict().values():
        whole.update(tensor.numpy().tobytes())
    return whole.hexdigest()


def test_values_are_pinned():
    """Baselines rest on these numbers: they are the same for ever."""
    model = small()
    fill_model(model, seed=0)
    expected = {
        "0.weight": [-0.2992313504219055, 0.32887962460517883, 0.07854798436164856],
        "0.bias": [-0.02531951665878296, 0.0061921849846839905, -0.033090487122535706],
        "1.weight": [0.9230608344078064, 0.8832597136497498, 0.9047564268112183],
        "1.running_mean": [0.000579833984375, 0.06545916944742203, 0.019364193081855774],
        "1.running_var": [0.8174923658370972, 0.7498543858528137, 1.347785234451294],
    }
    for name, numbers in expected.items():
        assert model.state_dict()[name].flatten()[:3].tolist() == numbers
    assert digest(model) == "c9b9346ecebfde7f"
    assert fill_tensor((4,)).tolist()[:2] == [0.6175851225852966, 0.5681993365287781]
    assert fill_tensor((6,), torch.int64, 0, 100).tolist() == [21, 37, 95, 54, 13, 49]


def test_global_generators_play_no_part_and_are_left_alone():
    digests = set()
    for seed in (0, 1):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        model = small()
        state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
        fill_model(model)
        assert torch.equal(torch.get_rng_state(), state)
        assert np.random.get_state()[1].tolist() == numpy_state  # noqa: NPY002
        digests.add(digest(model))
    assert len(digests) == 1


def test_the_order_and_the_other_parameters_play_no_part():
    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = nn.Linear(2, 2)

    class Same(nn.Module):
        def __init__(self):
            super().__init__()
            self.second = nn.Linear(2, 2)

    other, same = Other(), Same()
    fill_model(other)
    fill_model(same)
    assert torch.equal(other.second.weight, same.second.weight)


def test_seed_name_and_shape_each_change_the_values():
    first = fill_tensor((100,))
    assert not torch.equal(first, fill_tensor((100,), seed=1))
    assert not torch.equal(first, fill_tensor((100,), name="other"))
    assert not torch.equal(first, fill_tensor((1, 100)).flatten())


def test_ranges():
    model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.Linear(300, 200))
    fill_model(model)
    state = model.state_dict()
    for name, low, high in [
        ("0.weight", -((3 / 72) ** 0.5), (3 / 72) ** 0.5),
        ("2.weight", -0.1, 0.1),
        ("0.bias", -0.1, 0.1),
        ("1.weight", 0.8, 1.2),
        ("1.running_mean", -0.1, 0.1),
        ("1.running_var", 0.5, 1.5),
    ]:
        values = state[name]
        assert values.min() >= low - 1e-6
        assert values.max() <= high + 1e-6
        assert values.max() - values.min() > 0.5 * (high - low)
    assert state["1.num_batches_tracked"] == 0


def test_other_buffers_and_integer_parameters_stay():
    model = nn.Module()
    model.register_buffer("table", torch.arange(4.0))
    model.whole = nn.Parameter(torch.arange(3), requires_grad=False)
    fill_model(model)
    assert model.table.tolist() == [0, 1, 2, 3]
    assert model.whole.tolist() == [0, 1, 2]


def test_tied_parameters_stay_tied_and_are_filled_once():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    fill_model(model)
    assert model[1].weight is model[0].weight
    alone = nn.Sequential(nn.Linear(3, 3, bias=False))
    fill_model(alone)
    assert torch.equal(model[0].weight, alone[0].weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex64])
def test_other_dtypes_hold_the_float32_values(dtype: torch.dtype):
    filled = fill_tensor((50,), dtype)
    if dtype.is_complex:
        pairs = torch.view_as_real(filled)
        assert pairs.min() >= 0
        assert pairs.std() > 0.2
    else:
        assert torch.equal(filled, fill_tensor((50,)).to(dtype))


def test_integers_fill_their_range():
    assert set(fill_tensor((200,), torch.int32, 3, 6).tolist()) == {3, 4, 5}
    assert set(fill_tensor((50,), torch.bool, 0, 2).tolist()) == {False, True}


def test_strides_do_not_matter():
    model = nn.Conv2d(4, 4, 3)
    fill_model(model)
    last = nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last)
    fill_model(last)
    assert torch.equal(model.weight, last.weight)


def test_a_tensor_whose_sign_is_pending_holds_the_values():
    model = small()
    plain = model[3].bias.detach().clone()
    model[3].bias = nn.Parameter(torch._neg_view(plain))
    assert model[3].bias.is_neg()
    fill_model(model)
    other = small()
    fill_model(other)
    assert torch.equal(model[3].bias, other[3].bias)


def test_a_large_tensor_is_filled_across_chunks():
    values = fill_tensor((3, 400_001))
    assert values.unique().numel() > 1_000_000
    assert values.flatten()[:262_144].equal(fill_tensor((3, 400_001)).flatten()[:262_144])


def test_a_lazy_module_is_refused_by_name():
    with pytest.raises(ValueError, match=r"parameter '0.weight' of Sequential has no shape yet"):
        fill_model(nn.Sequential(nn.LazyLinear(3)))


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (torch.int64, 1000, 1001),
        (torch.int64, 0, 10),
        (torch.bfloat16, 0, 1),
        (torch.float16, -1, 0),
        (torch.float32, 0, 1),
    ],
    ids=str,
)
def test_values_stay_below_the_upper_end(dtype, low, high):
    tensor = fill_tensor((4096,), dtype, low, high, seed=0, name="x")
    assert tensor.min() >= low
    assert tensor.max() < high
