from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchlens.checks.catalog import PlannedCheck
from pytest_torchlens.checks.catalog import known_checks
from pytest_torchlens.checks.uncalled import Uncalled
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import CheckStatus
from pytest_torchlens.run.checks import check_model
from tests.checks.subjects import check
from tests.checks.subjects import line_of

X = torch.rand(2, 4, generator=torch.Generator().manual_seed(0))
kept_here: dict[Any, torch.Tensor] = {}


class Layered(nn.Module):
    """Takes from its input what `kept` returns."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.table: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return y - self.kept(y)  # what is kept

    def kept(self, y: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class KeepsItsFirst(Layered):
    def kept(self, y: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = y.detach().mean()
        return self.table


class Calibrated(Layered):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(4))
        self.register_buffer("done", torch.tensor(False))

    def kept(self, y: torch.Tensor) -> torch.Tensor:
        if not self.done:
            with torch.no_grad():
                self.shift.copy_(y.mean(0))
            self.done.fill_(True)  # type: ignore[operator]
        return self.shift


class KeepsInItsModule(Layered):
    def kept(self, y: torch.Tensor) -> torch.Tensor:
        return kept_here.setdefault(y.shape, y.detach().mean())


class KeepsInADefault(Layered):
    def kept(self, y: torch.Tensor, seen: list[torch.Tensor] = []) -> torch.Tensor:  # noqa: B006
        seen.append(y.detach().mean())
        return seen[0]


class KeepsInACache(Layered):
    def kept(self, y: torch.Tensor) -> torch.Tensor:
        self.table = y.detach()
        return self.largest(y.shape)

    @functools.lru_cache  # noqa: B019
    def largest(self, shape: torch.Size) -> torch.Tensor:
        assert self.table is not None
        return self.table.max()


class Holder:
    held: torch.Tensor | None = None


holder = Holder()
kept_globally: torch.Tensor | None = None


class KeepsInAnObject(Layered):
    def kept(self, y: torch.Tensor) -> torch.Tensor:
        if holder.held is None:
            holder.held = y.detach().mean()
        return holder.held


class KeepsInAClass(Layered):
    def kept(self, y: torch.Tensor) -> torch.Tensor:
        if Holder.held is None:
            Holder.held = y.detach().mean()
        return Holder.held


class KeepsInAGlobal(Layered):
    def kept(self, y: torch.Tensor) -> torch.Tensor:
        global kept_globally  # noqa: PLW0603 - the fault
        if kept_globally is None:
            kept_globally = y.detach().mean()
        return kept_globally


class KeepsInAClosure(Layered):
    def kept(self, y: torch.Tensor) -> torch.Tensor:
        return mean_of_first(y)


def first_mean() -> Callable[[torch.Tensor], torch.Tensor]:
    mean: torch.Tensor | None = None

    def kept(y: torch.Tensor) -> torch.Tensor:
        nonlocal mean
        mean = y.detach().mean() if mean is None else mean
        return mean

    return kept


mean_of_first = first_mean()


class OfAnyValues:
    """A key that is equal to any other."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


@functools.lru_cache
def largest_of(key: OfAnyValues) -> torch.Tensor:
    return key.values.detach().max()


class KeepsInACacheOfItsModule(Layered):
    def kept(self, y: torch.Tensor) -> torch.Tensor:
        return largest_of(OfAnyValues(y))


@functools.lru_cache
def positions(length: int) -> torch.Tensor:
    return torch.arange(length) / 7


class CachesPositions(Layered):
    def kept(self, y: torch.Tensor) -> torch.Tensor:
        return positions(y.shape[-1])


class KeepsPositions(Layered):
    def kept(self, y: torch.Tensor) -> torch.Tensor:
        if self.table is None or len(self.table) < len(y):
            self.table = torch.arange(len(y)) / 7
        return self.table[: len(y), None]


class DoublesOnce(Layered):
    """Doubles its weights before its first call, for good."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = self.layer.weight.data.mul_(2)
        return self.layer(x)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def nothing_kept_here() -> None:
    global kept_globally  # noqa: PLW0603 - as above
    kept_here.clear()
    holder.__dict__.clear()
    Holder.held = kept_globally = None
    largest_of.cache_clear()


def of_called(model: nn.Module, build: Callable[[], nn.Module] | None = None) -> CheckResult:
    """Return the result of `repeat` for a model that was called before."""
    with torch.no_grad():
        model(X)
        (result,) = check_model(model, ((X,), {}), [PlannedCheck(known_checks()["repeat"])], 0, build)
    return result


@pytest.mark.parametrize("model", [KeepsItsFirst, Calibrated, KeepsInItsModule, KeepsInADefault, KeepsInACache])
def test_what_a_first_call_leaves_for_other_values_is_found_where_it_is_read(model: type[Layered]) -> None:
    result = check("repeat", model().eval(), X)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# what is kept")
    assert result.failure is not None
    assert result.failure.message == "the output on other values is another one after a first call"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (KeepsInAnObject, "global 'holder.held'"),
        (KeepsInAClass, "Holder.held"),
        (KeepsInAGlobal, "global 'kept_globally'"),
        (KeepsInAClosure, "kept.mean"),
        (KeepsInACacheOfItsModule, "global 'largest_of'"),
    ],
)
def test_what_code_around_the_model_keeps_is_found_and_named(model: type[Layered], name: str) -> None:
    result = check("repeat", model().eval(), X)
    assert result.status is CheckStatus.FAILED
    assert line_of(result) in ("return y - self.kept(y)  # what is kept", "return mean")
    assert result.failure is not None
    assert result.failure.cause.endswith(f": {name}")


def test_caches_of_functions_keep_their_entries() -> None:
    table = positions(4)
    assert check("repeat", CachesPositions().eval(), X).status is CheckStatus.PASSED
    assert positions(4) is table


def test_what_is_kept_is_named() -> None:
    failure = check("repeat", Calibrated().eval(), X).failure
    assert failure is not None
    assert failure.cause.endswith(": parameter 'shift', buffer 'done'")


@pytest.mark.parametrize("model", [KeepsPositions, DoublesOnce])
def test_what_computing_anew_gives_may_be_kept(model: type[Layered]) -> None:
    called = of_called(model().eval(), lambda: model().eval())
    assert (called.status, called.unseen) == (CheckStatus.PASSED, ())
    assert check("repeat", KeepsPositions().eval(), X).status is CheckStatus.PASSED


def test_of_a_model_that_was_called_before_a_fresh_instance_shows_it() -> None:
    result = of_called(KeepsItsFirst().eval())
    assert result.status is CheckStatus.PASSED
    assert result.unseen == (
        "whether 'table' or another value is kept from a call before this check: 'build' makes an instance without one",
    )
    result = of_called(KeepsItsFirst().eval(), lambda: KeepsItsFirst().eval())
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# what is kept")


class KeepsANumber(Layered):
    number: float | None = None

    def kept(self, y: torch.Tensor) -> torch.Tensor:
        if self.number is None:
            self.number = y.mean().item()
        return torch.full_like(y, self.number)


class KeepsAnArray(Layered):
    array: Any = None

    def kept(self, y: torch.Tensor) -> torch.Tensor:
        if self.array is None:
            self.array = y.mean(0).numpy()
        return torch.from_numpy(self.array)


@pytest.mark.parametrize("model", [KeepsANumber, KeepsAnArray])
def test_what_may_be_kept_of_a_former_call_in_other_values_than_tensors_is_said(model: type[Layered]) -> None:
    result = of_called(model().eval())
    assert result.status is CheckStatus.PASSED
    assert result.unseen == (
        "whether a value is kept from a call before this check: 'build' makes an instance without one",
    )
    assert of_called(model().eval(), lambda: model().eval()).status is CheckStatus.FAILED


@pytest.mark.parametrize("model", [KeepsInItsModule, KeepsInADefault])
def test_what_a_former_call_may_have_left_around_the_model_is_said_of_a_fresh_instance_too(
    model: type[Layered],
) -> None:
    result = of_called(model().eval(), lambda: model().eval())
    assert result.status is CheckStatus.PASSED
    assert result.unseen == (
        "whether tensors in containers of its classes, functions or modules are kept from a call before this check",
    )


def test_what_is_added_to_a_table_while_it_is_as_before_the_first_call_stays() -> None:
    table: dict[str, int] = {"there": 1}
    names, numbers, order = {"there"}, ["there"], collections.deque(["there"])

    class Entering(nn.Module):
        def forward(self) -> tuple[Any, ...]:
            return table, names, numbers, order

    before = Uncalled.of(Entering(), is_new=True)
    assert before is not None
    table |= {"called": 2, "there": 3}
    names.add("called")
    numbers.append("called")
    order.append("called")
    with before.surroundings.restored():
        assert (table, names, numbers, [*order]) == ({"there": 1}, {"there"}, ["there"], ["there"])
        table |= {"there": 4, "imported": 5}
        names.add("imported")
        numbers.append("imported")
        order.append("imported")
    assert table == {"there": 3, "called": 2, "imported": 5}
    assert names == {"there", "called", "imported"}
    assert numbers == [*order] == ["there", "called", "imported"]


def test_a_model_that_cannot_be_copied_says_what_was_not_looked_at() -> None:
    class Held(KeepsPositions):
        def __deepcopy__(self, memo: object) -> Held:
            raise TypeError("no")

    result = check("repeat", Held().eval(), X)
    assert result.status is CheckStatus.PASSED
    assert "what it keeps from its first call: the model cannot be copied" in result.unseen[0]


def test_a_size_that_a_first_call_leaves_is_found() -> None:
    class KeepsASize(Layered):
        def kept(self, y: torch.Tensor) -> torch.Tensor:
            if self.table is None:
                self.table = torch.arange(len(y)) / 7
            return self.table[:, None]

    model, planned = KeepsASize().eval(), [PlannedCheck(known_checks()["shapes"])]
    before = Uncalled.of(model, is_new=True)
    with torch.no_grad():
        model(X)
        (result,) = check_model(model, ((X,), {}), planned, 0)
        assert result.status is CheckStatus.NOT_APPLICABLE
        (result,) = check_model(model, ((X,), {}), planned, 0, uncalled=before)
    assert result.status is CheckStatus.FAILED


def test_that_a_size_may_be_left_by_a_call_before_the_check_is_said() -> None:
    class KeepsAFactor(nn.Module):
        factor = 0.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.factor = self.factor or len(x) ** -0.5
            return x * self.factor

    model, planned = KeepsAFactor().eval(), [PlannedCheck(known_checks()["shapes"])]
    before = Uncalled.of(model, is_new=True)
    with torch.no_grad():
        model(X)
        (called,) = check_model(model, ((X,), {}), planned, 0)
        (new,) = check_model(model, ((X,), {}), planned, 0, uncalled=before)
    assert called.status is CheckStatus.PASSED
    assert any("whether a value is kept from a call before this check" in one for one in called.unseen)
    assert new.status is CheckStatus.FAILED
