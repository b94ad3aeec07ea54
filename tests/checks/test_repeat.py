from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from pytest_torchlens.records import CheckStatus
from tests.checks.subjects import check
from tests.checks.subjects import line_of

X = torch.arange(8.0).reshape(2, 4)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = self.layer(x)
        return y * self.calls  # the counter


ticks = itertools.count()


class Ticking(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.relu()
        return (y + next(ticks)).relu()  # from outside


class Averaging(nn.Module):
    """Moves a buffer in eval mode, which the output does not show."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.lerp_(x.mean(0), 0.5)  # type: ignore[operator,union-attr]
        return x * 2


class Caching(nn.Module):
    """Keeps a buffer from the first call on, which computing anew would give, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = torch.arange(4.0)
        return x + self.table


class Remembering(nn.Module):
    """Keeps the largest value that it has seen, as a dynamic scale does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.largest = torch.maximum(self.largest, x[0, 0])
        return x / (1 + self.largest)  # remembers


def test_what_a_call_on_other_values_leaves_is_found() -> None:
    result = check("repeat", Remembering().eval(), X)
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert "left in the model" in result.failure.cause


def test_a_counter_is_found_at_the_operation_that_reads_it() -> None:
    result = check("repeat", Counting().eval(), X)
    assert result.status is CheckStatus.FAILED
    assert result.operation == "mul_1_2"
    assert line_of(result).endswith("# the counter")
    assert result.failure is not None
    assert "left in the model" in result.failure.cause


def test_a_value_from_outside_is_found_and_called_not_deterministic() -> None:
    result = check("repeat", Ticking().eval(), X)
    assert result.operation == "add_1_2"
    assert line_of(result).endswith("# from outside")
    assert result.failure is not None
    assert "not deterministic" in result.failure.cause


def test_state_that_moves_in_eval_mode_fails_though_the_output_is_the_same() -> None:
    result = check("repeat", Averaging().eval(), X)
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert "buffer 'mean'" in result.failure.message


class Warming(nn.Module):
    """Takes another path from the second call on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.is_warm = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if self.is_warm:
            y = y.sigmoid()  # warm
        self.is_warm = True
        return self.layer(y)


def test_an_operation_that_only_one_call_runs_is_found() -> None:
    result = check("repeat", Warming().eval(), X)
    assert line_of(result).endswith("# warm")
    assert result.failure is not None
    assert result.failure.values == "only one of the two calls runs this operation"


def test_a_cache_and_random_numbers_of_torch_pass() -> None:
    assert check("repeat", Caching().eval(), X).status is CheckStatus.PASSED
    trained = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    assert check("repeat", trained, X).status is CheckStatus.PASSED


def test_an_output_without_tensors_is_not_applicable() -> None:
    class Talking(nn.Module):
        def forward(self, x: torch.Tensor) -> str:
            return "hello"

    assert check("repeat", Talking(), X).reason == "its output holds no tensor to compare"


def test_a_bag_of_tokens_is_called_with_another_bag() -> None:
    class KeepsAMean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed = nn.Embedding(9, 4)
            self.mean: torch.Tensor | None = None

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            y = self.embed(tokens).amax(1)
            self.mean = y.mean() if self.mean is None else self.mean
            return y - self.mean  # of the first bag

    result = check("repeat", KeepsAMean().eval(), torch.tensor([[1, 5, 2, 7]]))
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# of the first bag")


def test_a_model_that_takes_no_other_values_says_so() -> None:
    class Strict(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not torch.equal(x, X):
                raise ValueError("only X")
            return x * 2

    result = check("repeat", Strict().eval(), X)
    assert result.status is CheckStatus.PASSED
    assert result.unseen == ("what it keeps from its first call: the model raised ValueError on other values: only X",)


class Late(nn.Module):
    """Counts its calls, and changes at some count."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = self.layer(x)
        return y * self.factor()  # the factor

    def factor(self) -> int:
        return 2 if self.calls > 50 else 1


class EveryFourth(Late):
    def factor(self) -> int:
        return 2 if self.calls % 4 == 0 else 1


class Unread(Late):
    def factor(self) -> int:
        return 1


@pytest.mark.parametrize("model", [Late, EveryFourth])
def test_a_counter_that_a_later_call_reads_is_found_there(model: type[Late]) -> None:
    result = check("repeat", model().eval(), X)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# the factor")
    assert result.failure is not None
    assert result.failure.cause == "it reads attribute 'calls', which calls count"


def test_a_counter_that_nothing_reads_passes_and_the_result_says_what_was_tried() -> None:
    result = check("repeat", Unread().eval(), X)
    assert result.status is CheckStatus.PASSED
    assert result.unseen[1:] == ("whether a much later call reads attribute 'calls': 10 later calls were tried",)


class Tracked(nn.Module):
    """Counts its calls in a buffer, and reads it or not."""

    def __init__(self, *, reads: bool) -> None:
        super().__init__()
        self.reads = reads
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * torch.where(self.calls == 10**9, 2, 1) if self.reads else x * 2


def test_a_buffer_that_counts_fails_only_if_something_reads_it() -> None:
    result = check("repeat", Tracked(reads=False).eval(), X)
    assert (result.status, len(result.unseen)) == (CheckStatus.PASSED, 1)
    assert result.notes == ("buffer 'calls' counts calls, and nothing reads it",)
    assert check("repeat", Tracked(reads=True).eval(), X).status is CheckStatus.FAILED


def test_an_input_that_a_call_writes_to_is_named() -> None:
    class Writing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.mul_(2)  # writes
            return x.sin()

    result = check("repeat", Writing().eval(), X)
    assert line_of(result).endswith("# writes")
    assert result.failure is not None
    assert result.failure.cause == "a call writes to input '0', which the second call reads"
    assert "clone" in result.failure.advice
