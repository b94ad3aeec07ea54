from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.ao.nn.quantized.dynamic as nnqd
from torch import nn

from pytest_torchlens.checks import rounding
from pytest_torchlens.checks.tolerance import Judgement
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import CheckStatus
from tests.checks.subjects import TwoLayers
from tests.checks.subjects import check
from tests.checks.subjects import line_of

X = torch.rand(2, 8, generator=torch.Generator().manual_seed(0)) + 0.5


def cause_of(result: CheckResult) -> str:
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    return result.failure.cause


class Normed(TwoLayers):
    """Divides by the root of the mean square, of numbers whose squares are large or small."""

    scale = 1000.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.scale
        mean = y.pow(2).mean(1, keepdim=True)  # squares
        return self.last(y * torch.rsqrt(mean))  # type: ignore[no-any-return]


class Small(Normed):
    scale = 1e-4


class NormedInFloat32(TwoLayers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 1000
        mean = y.float().pow(2).mean(1, keepdim=True)
        return self.last(y * torch.rsqrt(mean).to(y.dtype))  # type: ignore[no-any-return]


class Mixed(TwoLayers):
    """Makes a constant in the default dtype."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x) + torch.linspace(0, 1, 8)
        return self.last(y)  # meets float32


class Alike(TwoLayers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x) + torch.linspace(0, 1, 8, dtype=x.dtype))  # type: ignore[no-any-return]


class Turned(TwoLayers):
    """Turns by the angle of a position, as rotary embeddings do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        angles = x * 1857
        angles = angles.cos()  # of large angles
        return self.last(y + angles / 20)  # type: ignore[no-any-return]


@torch.library.custom_op("lens_tests::sine", mutates_args=())
def sine(x: torch.Tensor) -> torch.Tensor:
    """A kernel that is coarse in bfloat16."""
    return (x * 8).round().sin() if x.dtype is torch.bfloat16 else (x * 8).sin()


class Coarse(TwoLayers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.last(torch.ops.lens_tests.sine(y))  # a coarse kernel


@torch.library.custom_op("lens_tests::scale", mutates_args=())
def scale(x: torch.Tensor, broken: float) -> torch.Tensor:
    """A kernel that is broken in bfloat16."""
    return torch.full_like(x, broken) if x.dtype is torch.bfloat16 else x * 1.5


class Broken(TwoLayers):
    def __init__(self, broken: float) -> None:
        super().__init__()
        self.broken = broken

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y = torch.ops.lens_tests.scale(y, self.broken)  # a broken kernel
        return self.last(y)  # type: ignore[no-any-return]


@pytest.mark.parametrize("broken", [float("inf"), float("nan")])
def test_an_overflow_is_said_only_of_values_beyond_the_range_of_the_type(broken: float) -> None:
    result = check("dtype", Broken(broken), X, types="bfloat16")
    assert line_of(result).endswith("# a broken kernel")
    assert cause_of(result).startswith("inf or NaN where float64 gives numbers up to ")
    assert result.failure is not None
    assert result.failure.advice.startswith("run the operation in float32: its kernel for this type is wrong")


@torch.library.custom_op("lens_tests::product", mutates_args=())
def product(x: torch.Tensor, weight: torch.Tensor, digits: float) -> torch.Tensor:
    """A product in float32 that is computed in fewer digits."""
    low = x if x.dtype is torch.float64 else (x / digits).round() * digits if digits else x.bfloat16().to(x.dtype)
    return (low @ weight.T).to(x.dtype)


class HalfInside(TwoLayers):
    def __init__(self, digits: float, is_cast: bool) -> None:
        super().__init__()
        self.digits, self.is_cast = digits, is_cast

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.is_cast and torch.is_autocast_enabled("cpu")):
            y = torch.ops.lens_tests.product(x.sin(), self.first.weight, self.digits)  # in fewer digits
        return y, self.first(x)


def test_what_is_half_inside_is_not_blamed_where_autocast_is_on_and_is_where_it_is_off() -> None:
    assert check("dtype", HalfInside(0, is_cast=True), X, types="autocast").status is CheckStatus.PASSED
    for model in (HalfInside(0, is_cast=False), HalfInside(0.5, is_cast=True)):
        result = check("dtype", model, X, types="autocast")
        assert "the operation itself errs" in cause_of(result)
        assert line_of(result).endswith("# in fewer digits")


@pytest.mark.parametrize(("model", "word"), [(Normed(), "overflow"), (Small(), "underflow")])
def test_squares_that_leave_the_range_of_float16_are_found(model: nn.Module, word: str) -> None:
    result = check("dtype", model, X, types="float16")
    assert cause_of(result).startswith(word)
    assert line_of(result).endswith("# squares")
    assert result.operation == "pow_1_2"
    assert check("dtype", model, X).status is CheckStatus.PASSED


def test_a_constant_of_another_dtype_is_found() -> None:
    result = check("dtype", Mixed(), X, types="bfloat16")
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# meets float32")
    assert check("dtype", Mixed(), X, types="autocast").status is CheckStatus.PASSED


class Raising(TwoLayers):
    """Raises in low precision: an error of PyTorch, or of its own."""

    def __init__(self, function: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if y.dtype is not torch.float32:
            self.function(y)
        return self.last(y)  # type: ignore[no-any-return]


def unsupported(x: torch.Tensor) -> None:
    raise RuntimeError("a state of 8 numbers was expected")


MIXED: dict[str, Callable[[torch.Tensor], object]] = {
    "index put": lambda x: x.index_put_((torch.tensor([0]),), torch.ones(1, 8)),
    "promotion is not supported": lambda x: nn.functional.prelu(x, torch.ones(1)),
    "recurrent": lambda x: nn.LSTM(8, 8)(x.relu()),
    "fill": lambda x: x.half().masked_fill(x > 0, -1e9),
    "attention": lambda x: nn.functional.scaled_dot_product_attention(x, x, x.float()),
}


@pytest.mark.parametrize("function", MIXED.values(), ids=MIXED)
def test_types_that_pytorch_does_not_combine_are_found(function: Callable[[torch.Tensor], object]) -> None:
    result = check("dtype", Raising(function), X, types="bfloat16")
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert "in the dtype of what they meet" in result.failure.advice


@pytest.mark.parametrize("function", [torch.linalg.inv, torch.view_as_complex, unsupported])
def test_other_errors_in_low_precision_are_not_applicable(function: Callable[[torch.Tensor], object]) -> None:
    result = check("dtype", Raising(function), X, types="bfloat16")
    assert result.status is CheckStatus.NOT_APPLICABLE
    assert "Error: " in result.reason


def test_angles_that_have_too_few_digits_are_found() -> None:
    result = check("dtype", Turned(), X, types="bfloat16")
    assert "the type has too few digits" in cause_of(result)
    assert line_of(result).endswith("# of large angles")


def test_a_kernel_that_rounds_more_is_found_and_nothing_else_would_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    result = check("dtype", Coarse(), X, types="bfloat16")
    assert "the operation itself errs" in cause_of(result)
    assert line_of(result).endswith("# a coarse kernel")
    monkeypatch.setattr(rounding, "judge", lambda *_: Judgement(0.0, 0.0, 0.0, within=True))
    assert check("dtype", Coarse(), X, types="bfloat16").status is CheckStatus.PASSED


@pytest.mark.parametrize("model", [NormedInFloat32(), Alike()])
def test_squares_in_float32_and_constants_in_the_dtype_of_the_input_pass(model: nn.Module) -> None:
    result = check("dtype", model, X, types="bfloat16,float16,autocast")
    assert (result.status, result.unit) == (CheckStatus.PASSED, "operations")
    assert result.compared >= 9
    assert not torch.is_autocast_enabled("cpu")


def test_an_overflow_that_no_output_shows_is_noted() -> None:
    class Masked(TwoLayers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            lowest = torch.full_like(x, -60000.0).masked_fill(x > 0.9, 0)
            return self.last((x + lowest + lowest).softmax(1))  # type: ignore[no-any-return]

    result = check("dtype", Masked(), X, types="float16")
    assert result.status is CheckStatus.PASSED
    assert any("(overflow)" in note for note in result.notes)


class Masked(TwoLayers):
    """Adds the least number of float32 to that of its type, where softmax is to give zeros."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        scores = y.float() @ y.float().T
        scores = scores.masked_fill(later, torch.finfo(scores.dtype).min)
        mask = torch.zeros_like(later, dtype=x.dtype).masked_fill(later, torch.finfo(x.dtype).min)
        weights = (scores + mask).softmax(1)
        return self.last(weights.to(y.dtype) @ y)  # type: ignore[no-any-return]


def test_what_leaves_the_range_of_float32_too_is_not_lost() -> None:
    x = 10 * torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    result = check("dtype", Masked(), x)
    assert result.status is CheckStatus.PASSED, result.failure


class Chosen(TwoLayers):
    """Returns the number of the largest element, of numbers that may leave the range of float16."""

    scale = 1e6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y = y * self.scale  # leaves the range
        return (y - y.amax(1, keepdim=True)).argmax(1)


class ChosenInRange(Chosen):
    scale = 10.0


def test_an_overflow_behind_an_output_of_whole_numbers_is_found() -> None:
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    result = check("dtype", Chosen(), x, types="float16")
    assert cause_of(result).startswith("overflow")
    assert line_of(result).endswith("# leaves the range")
    assert check("dtype", ChosenInRange(), x, types="float16,bfloat16").status is CheckStatus.PASSED


def test_whole_numbers_that_rounding_decides_on_are_noted() -> None:
    class Near(TwoLayers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            return torch.cat([y, y + 1e-4], 1).argmax(1)

    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    result = check("dtype", Near(), x, types="bfloat16")
    assert result.status is CheckStatus.PASSED
    assert result.notes == ("bfloat16: the output has other values, as rounding decides otherwise",)


def test_autocast_that_lowers_nothing_is_not_applicable() -> None:
    class Elementwise(TwoLayers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.first.bias).sin()

    result = check("dtype", Elementwise(), X, types="autocast")
    assert result.status is CheckStatus.NOT_APPLICABLE
    assert result.reason == "autocast: no operation runs in low precision"
    assert check("dtype", Elementwise(), X, types="bfloat16,autocast").status is CheckStatus.PASSED


def test_what_cannot_be_cast_is_not_applicable() -> None:
    class Solved(TwoLayers):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.qr(self.first(x))[1]

    result = check("dtype", Solved(), X, types="float16")
    assert result.status is CheckStatus.NOT_APPLICABLE
    assert "at linalgqr_1_2" in result.reason
    assert "not implemented for 'Half'" in result.reason
    assert "in float32" in check("dtype", Alike().double(), X.double()).reason


def test_a_recurrent_layer_that_is_half_inside_alone_is_not_blamed_under_autocast() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            steps, state = self.rnn(x)
            return self.head(steps), state

    torch.manual_seed(0)
    assert check("dtype", Tagger().eval(), torch.rand(2, 5, 8), types="autocast").status is CheckStatus.PASSED


@pytest.mark.parametrize("is_input", [True, False])
def test_sparse_tensors_are_not_judged(is_input: bool) -> None:
    class Spread(TwoLayers):
        def forward(self, x: torch.Tensor, graph: torch.Tensor | None = None) -> torch.Tensor:
            graph = torch.eye(2, dtype=x.dtype).to_sparse() if graph is None else graph
            return torch.sparse.mm(graph, self.first(x))

    given = [torch.eye(2).to_sparse()] if is_input else []
    assert check("dtype", Spread(), X, *given, types="autocast").status is CheckStatus.PASSED


class Turning(nn.Module):
    """Multiplies by a rotation, and returns the logarithm of its determinant, which is zero."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.matrix = nn.Parameter(torch.linalg.qr(torch.randn(6, 6))[0])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x @ self.matrix, 12 * torch.linalg.slogdet(self.matrix)[1]


def test_a_small_rest_of_large_terms_errs_by_what_moved_inputs_explain() -> None:
    result = check("dtype", Turning(), torch.rand(3, 6), types="autocast")
    assert (result.status, result.compared) == (CheckStatus.PASSED, 4)


@pytest.mark.filterwarnings("ignore")
def test_quantized_modules_are_not_applicable() -> None:
    class Quantized(TwoLayers):
        def __init__(self) -> None:
            super().__init__()
            self.inside = nnqd.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.inside(self.first(x)))  # type: ignore[no-any-return]

    result = check("dtype", Quantized(), torch.rand(2, 8), types="bfloat16")
    assert result.status is CheckStatus.NOT_APPLICABLE
    assert "quantized modules take float32 alone" in result.reason
