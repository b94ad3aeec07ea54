from __future__ import annotations

import torch

from pytest_torchlens.checks.export import run
from pytest_torchlens.records import CheckStatus
from tests.checks.subjects import Approximate
from tests.checks.subjects import Branching
from tests.checks.subjects import Waves
from tests.checks.subjects import check
from tests.checks.subjects import line_of
from tests.checks.subjects import subject_of

X = torch.rand(2, 8, generator=torch.Generator().manual_seed(0))


class Selecting(Waves):
    """Does the same without a branch, and writes to memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y = torch.where(y.sum() > 0, y * 2, y)
        y.relu_().add_(1)
        return self.last(y.view(-1, 2, 4).flatten(1))  # type: ignore[no-any-return]


class Sized(Waves):
    """Takes each size of batch, with one operation for some and another one for others."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x * 2 if len(x) == 2 else x + x)  # type: ignore[no-any-return]


class Refused(Waves):
    """Raises while it is exported."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if torch.compiler.is_exporting():
            y = y @ x  # wrong shapes
        return y


def test_an_operation_that_is_another_one_when_exported_is_found() -> None:
    result = check("export", Approximate().eval(), X)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# the function")
    assert result.operation.startswith("gelu")


def test_a_factor_that_is_another_one_when_exported_is_found() -> None:
    class Doubling(Waves):
        def forward(self, x: torch.Tensor, *, scale: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
            y = self.first(x).sin() * scale
            y = y * (1 if torch.compiler.is_compiling() else 2)  # the factor
            return self.last(y.relu())  # type: ignore[no-any-return]

    subject = subject_of(Doubling().eval(), X, bias=None, scale=X)
    with torch.no_grad():
        result = run(subject)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# the factor")


def test_a_branch_on_a_value_is_named() -> None:
    result = check("export", Branching().eval(), X)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# the branch")
    assert result.operation.startswith("gt_")
    assert result.failure is not None
    assert "data-dependent" in result.failure.message


def test_a_line_that_raises_when_exported_is_named() -> None:
    result = check("export", Refused().eval(), X)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# wrong shapes")


def test_a_size_that_is_baked_in_fails_on_another_batch() -> None:
    result = check("export", Sized().eval(), X, dynamic=True)
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert "constant (2)" in result.failure.message
    assert check("export", Sized().eval(), X).status is CheckStatus.PASSED


def test_a_model_without_branches_passes_also_on_another_batch() -> None:
    for dynamic in (False, True):
        result = check("export", Selecting().eval(), X, dynamic=dynamic)
        assert result.status is CheckStatus.PASSED
        assert result.compared == 1


def test_exporting_leaves_a_model_that_keeps_values_as_it_was() -> None:
    class Keeping(Waves):
        kept: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kept = self.first(x)
            return self.last(self.kept)  # type: ignore[no-any-return]

    model = Keeping().eval()
    check("export", model, X)
    assert model.kept is None


def test_tensors_in_an_object_that_cannot_be_exported_are_compared() -> None:
    class Kept:
        def __init__(self, value: torch.Tensor) -> None:
            self.value = value

    class Caching(Waves):
        def forward(self, x: torch.Tensor) -> dict[str, object]:  # type: ignore[override]
            return {"output": super().forward(x), "cache": Kept(x.exp())}

    result = check("export", Caching().eval(), X)
    assert result.status is CheckStatus.PASSED
    assert result.compared == 2
    assert result.unseen == ("its output as it is: torch.export does not take Kept, so its tensors were exported",)


def test_a_batch_that_the_model_does_not_take_is_not_applicable() -> None:
    class Fixed(Waves):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.reshape(2, 8))

    result = check("export", Fixed().eval(), X, dynamic=True)
    assert result.status is CheckStatus.NOT_APPLICABLE
    assert "in a batch of 3" in result.reason
