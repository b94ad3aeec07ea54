from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchlens.checks.draws import WAYS
from pytest_torchlens.checks.draws import other_values
from pytest_torchlens.records import CheckStatus
from tests.checks.subjects import check
from tests.checks.subjects import line_of

X = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
SEQUENCE = torch.rand(3, 5, 8, generator=torch.Generator().manual_seed(0))


class Normalised(nn.Module):
    """Takes away the mean of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x).relu()
        y = y - y.mean((0, 2, 3), keepdim=True)  # over the batch
        return y.mean((2, 3))


class Reshaped(nn.Module):
    """Attends over the examples, as a wrong transpose makes it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)  # batch_first was forgotten

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]  # attends


class Windows(nn.Module):
    """Merges the batch with other dimensions, and takes it apart again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, c, h, w = x.shape
        windows = x.reshape(n, c, 2, h // 2, 2, w // 2).permute(0, 2, 4, 1, 3, 5).reshape(n * 4, c, h // 2, w // 2)
        windows = windows - windows.mean((1, 2, 3), keepdim=True)
        return windows.reshape(n, 4, c, h // 2, w // 2).amax((1, 3, 4))


class Scaled(nn.Module):
    """Divides by the largest number of the batch, but by no less than one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu() / x.amax().clamp(min=1)  # the largest


def test_what_only_larger_numbers_in_other_rows_change_is_found() -> None:
    result = check("rows", Scaled(), torch.rand(1, 4))
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# the largest")


def test_numbers_that_a_model_does_not_take_are_not_drawn_beyond_the_range() -> None:
    class Overflows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.eye(len(x)) @ (x * 40).exp()

    class Binned(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.arange(11.0)[(x * 10).long()]

    assert check("rows", Overflows(), torch.rand(1, 4)).status is CheckStatus.PASSED
    assert check("rows", Binned(), torch.rand(1, 4)).status is CheckStatus.PASSED


class WithLoss(nn.Module):
    """Has an output that no row owns."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = x.mean((2, 3))
        return {"logits": y, "loss": y.square().mean()}


def test_a_mean_over_the_batch_is_found() -> None:
    result = check("rows", Normalised().eval(), X)
    assert result.status is CheckStatus.FAILED
    assert result.operation == "mean_1_3"
    assert line_of(result).endswith("# over the batch")


@pytest.mark.parametrize("name", ["rows", "batch-size"])
def test_what_is_constant_for_one_example_alone_is_found_in_the_batch(name: str) -> None:
    class Centred(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x.square()
            return y - y.mean(0)  # zero for one example

    result = check(name, Centred(), torch.rand(2, 4))
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# zero for one example")


class Carries(nn.Module):
    """Gives each row the state that the rows before it left."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, made = torch.zeros(8), []
        for row in x:
            state = (self.layer(row) + 0.5 * state).tanh()  # of the row before
            made.append(state)
        return torch.stack(made)


@pytest.mark.parametrize("size", [2, 3])
def test_what_earlier_rows_leave_to_later_ones_is_found_in_the_last(size: int) -> None:
    result = check("rows", Carries(), torch.rand(2, 8), size=size)
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert "the last row of the output changes" in result.failure.message
    assert line_of(result).endswith("# of the row before")
    result = check("batch-size", Carries(), torch.rand(2, 8), size=size)
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert f"as the last in a batch of {size}" in result.failure.message
    assert line_of(result).endswith("# of the row before")


def test_what_only_the_row_before_leaves_is_found_though_no_example_is_taken_alone() -> None:
    class Shifts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert len(x) > 1
            return torch.cat([x[:1], x[1:] - x[:-1]])  # the row before

    result = check("rows", Shifts(), torch.rand(3, 4), size=3)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# the row before")


def test_attention_over_the_wrong_dimension_is_found() -> None:
    result = check("rows", Reshaped().eval(), SEQUENCE)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# attends")


def test_windows_and_outputs_without_rows_pass() -> None:
    assert check("rows", Windows(), X).status is CheckStatus.PASSED
    result = check("rows", WithLoss(), X)
    assert (result.status, result.compared) == (CheckStatus.PASSED, 1)
    assert "output 'loss' has no rows" in result.unseen[0]


class Routed(nn.Module):
    """Gathers the rows for each expert: a row's place, and the shapes, depend on the others."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, 8)
        choice = (tokens.sum(1) > 4).long()
        made = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            made[choice == number] = expert(tokens[choice == number]) * 3
        return made.reshape(x.shape)


class Limited(Routed):
    """Weighs each token by its place in the queue, in which those of other rows stand before."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flip(0).reshape(-1, 8)
        choice = (tokens.sum(1) > 4).long()
        place = choice.cumsum(0)  # in the queue
        return (self.experts[0](tokens) * (1 + place)[:, None]).reshape(x.shape).flip(0)


class Paired(nn.Module):
    """Compares each example with each, beside what belongs to one."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.mean(1)
        return y, y @ y.T


class Gathered(nn.Module):
    """Sorts the tokens of all rows by their expert, and sums up at places that depend on it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, 8)
        order = (tokens.sum(1) > 4).long().argsort(stable=True)
        noise = order.argsort()[:, None] * 1e-8  # as a kernel rounds at another place
        return (tokens + noise).reshape(x.shape)


def test_places_in_an_order_of_all_rows_may_round_otherwise() -> None:
    result = check("rows", Gathered(), SEQUENCE)
    assert result.status is CheckStatus.PASSED
    assert result.notes == (
        "bits differ, by what rounding explains: from argsort_1_5 on, shapes or places depend on other rows",
    )


def test_routes_change_shapes_and_round_otherwise() -> None:
    torch.manual_seed(0)
    assert check("rows", Routed(), SEQUENCE).status is CheckStatus.PASSED
    result = check("rows", Limited(), SEQUENCE)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# in the queue")


def test_a_table_of_pairs_has_no_rows_and_an_output_may_have_its_rows_elsewhere() -> None:
    class Swapped(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.transpose(0, 1) * 2

    result = check("rows", Paired(), SEQUENCE)
    assert (result.status, result.compared) == (CheckStatus.PASSED, 1)
    assert "output '1' has no rows: its shape is (2, 2) in a batch" in result.unseen
    assert check("rows", Swapped(), torch.rand(1, 4, 3)).status is CheckStatus.PASSED


class Bag(nn.Module):
    """Adds up embedded tokens, whatever their order."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embed(tokens).sum(1)  # type: ignore[no-any-return]


class CentredBag(Bag):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        y = super().forward(tokens)
        return y - y.mean(0)  # over bags


class AtTheLargest(Bag):
    """Takes the place of the largest token, as of an end of text."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embed(tokens.gather(1, tokens.argmax(1, keepdim=True)))  # type: ignore[no-any-return]


TOKENS = torch.randint(0, 20, (1, 9), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["rows", "batch-size", "shapes"])
def test_bags_of_tokens_are_compared_with_other_bags(name: str) -> None:
    assert check(name, Bag(), TOKENS).status is CheckStatus.PASSED
    assert check(name, AtTheLargest(), TOKENS).status is CheckStatus.PASSED
    result = check(name, CentredBag(), TOKENS)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# over bags")


def test_sizes_among_the_inputs_that_cannot_change_stay() -> None:
    class Tiled(nn.Module):
        def forward(self, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
            return x.reshape(len(x), *grid[0].tolist()).mean(-1)  # of each line

    assert check("rows", Tiled(), torch.rand(1, 6), torch.tensor([[2, 3]])).status is CheckStatus.PASSED
    assert check("rows", Tiled(), torch.rand(1, 24), torch.tensor([[4, 2, 3]])).status is CheckStatus.PASSED


def test_classes_that_little_does_not_change_are_compared_on_inputs_that_are_far_out() -> None:
    class Classes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x.sum(1) > 6).long()

    class OfTheBatch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x.sum(1) + x.abs().sum() > 9).long()  # over the batch

    x = torch.tensor([[0.4, 0.5, 0.6, 0.5]])
    assert check("rows", Classes(), x).status is CheckStatus.PASSED
    result = check("rows", OfTheBatch(), x)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# over the batch")


@pytest.mark.parametrize("name", ["rows", "batch-size"])
def test_single_numbers_of_examples_are_those_of_others(name: str) -> None:
    class Rated(Bag):
        def forward(self, users: torch.Tensor) -> torch.Tensor:
            y = self.embed(users)
            return y - y.mean(0)  # over users

    class UpToTheLongest(Bag):
        def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            return super().forward(tokens[:, : int(lengths.max())])

    result = check(name, Rated(), torch.tensor([3]))
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# over users")
    tokens = TOKENS.expand(2, -1)
    assert check(name, UpToTheLongest(), tokens, torch.tensor([9, 4])).status is CheckStatus.FAILED
    assert check(name, UpToTheLongest(), tokens, torch.tensor([9, 9])).status is CheckStatus.PASSED


def test_lengths_that_must_stay_in_order_stay() -> None:
    class Packed(Bag):
        def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(self.embed(tokens), lengths, batch_first=True)
            return nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)[0][:, :2].sum(1)

    for lengths in ([9, 4], [9, 7, 4]):
        tokens = TOKENS.expand(len(lengths), -1)
        assert check("rows", Packed(), tokens, torch.tensor(lengths), size=len(lengths)).status is CheckStatus.PASSED


def test_rows_of_examples_that_are_padded_otherwise_are_tried() -> None:
    class Trimmed(Bag):
        def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            longest = int(mask.sum(1).max())
            return self.embed(tokens)[:, :longest].mean(1)

    mask = torch.arange(9) < torch.tensor([[6], [9]])
    assert check("rows", Trimmed(), TOKENS.expand(2, -1), mask).status is CheckStatus.FAILED


def test_the_dimension_of_the_batch_is_an_option() -> None:
    assert check("rows", Reshaped().eval(), SEQUENCE, dim=1).status is CheckStatus.PASSED


def test_batch_norm_fails_in_train_mode_and_passes_in_eval_mode() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    result = check("rows", model.train(), X)
    assert result.operation == "batchnorm_1_2"
    assert result.failure is not None
    assert "train mode" in result.failure.advice
    assert check("rows", model.eval(), X).status is CheckStatus.PASSED
    result = check("rows", nn.BatchNorm1d(4).train(), torch.rand(3, 4))  # which takes no example alone
    assert result.operation == "batchnorm_1_1"
    result = check("rows", Normalised().train(), X)
    assert result.failure is not None
    assert "train mode" not in result.failure.advice


@pytest.mark.parametrize("name", ["rows", "batch-size"])
def test_a_model_that_ignores_its_input_is_checked_with_other_weights_or_not_at_all(name: str) -> None:
    class Dead(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ones(len(x), 3)

    faint = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    weight = faint.get_parameter("1.weight")
    nn.init.zeros_(weight)
    result = check(name, faint, X)
    assert (result.status, result.redrawn) == (CheckStatus.PASSED, True)
    assert torch.equal(weight, torch.zeros_like(weight))
    result = check(name, Dead(), X)
    assert result.status is CheckStatus.NOT_APPLICABLE
    assert "nor with weights drawn anew" in result.reason


def test_inputs_without_rows_are_not_applicable() -> None:
    class Scalar(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    class Listed(nn.Module):
        def forward(self, images: list[torch.Tensor]) -> torch.Tensor:
            return torch.stack([image.mean() for image in images])

    assert "no input has a dimension 0" in check("rows", Scalar(), torch.tensor(1.5)).reason
    assert "lists of tensors" in check("rows", Listed(), [torch.rand(3, 4, 4)]).reason


def test_a_batch_that_the_model_refuses_is_not_applicable() -> None:
    class One(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(192).cumsum(0)

    assert "the model raised RuntimeError in a batch of 2" in check("rows", One(), X).reason


class Waves(nn.Module):
    """Takes complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 4, dtype=torch.complex64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["repeat", "rows", "batch-size", "shapes"])
def test_complex_numbers_are_drawn_as_pairs(name: str) -> None:
    assert check(name, Waves().eval(), torch.view_as_complex(torch.rand(2, 8, 2))).status is CheckStatus.PASSED


def test_complex_rows_that_depend_on_others_are_found() -> None:
    class Mixing(Waves):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) - x.mean()

    assert check("rows", Mixing(), torch.view_as_complex(torch.rand(2, 8, 2))).status is CheckStatus.FAILED


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int64])
def test_whole_numbers_of_any_type_are_drawn(dtype: torch.dtype) -> None:
    class Weighted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.double() @ torch.arange(1.0, 9.0, dtype=torch.float64)

    numbers = torch.tensor([[200, 3, 180, 7, 90, 0, 250, 1]]).to(dtype)
    assert check("rows", Weighted(), numbers).status is CheckStatus.PASSED


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int32, torch.int64])
def test_the_largest_and_the_least_number_of_a_type_may_be_drawn(dtype: torch.dtype) -> None:
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    tensor = torch.tensor([most, least, most, 3], dtype=dtype)
    for draw, way in enumerate(WAYS):
        made = other_values(tensor, 1, draw)
        assert made.dtype is dtype
        assert torch.equal(made, tensor) is (way.whole == "kept")


@pytest.mark.parametrize("name", ["rows", "batch-size", "shapes"])
def test_an_empty_batch_or_one_without_values_is_not_applicable(name: str) -> None:
    class Same(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    empty = check(name, Same(), torch.empty(0, 8))
    assert empty.status is CheckStatus.NOT_APPLICABLE
    assert name == "shapes" or "the batch is empty" in empty.reason
    assert "an input is on the meta device" in check(name, Same(), torch.empty(2, 8, device="meta")).reason
