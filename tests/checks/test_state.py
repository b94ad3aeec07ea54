from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchlens.checks.catalog import CheckNameError
from pytest_torchlens.checks.catalog import CheckSetting
from pytest_torchlens.checks.catalog import PlannedCheck
from pytest_torchlens.checks.catalog import known_checks
from pytest_torchlens.checks.catalog import settings_of
from pytest_torchlens.checks.frame import run_checks
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.subject import Tools
from pytest_torchlens.checks.unpickled import answer
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import CheckStatus
from pytest_torchlens.run.checks import check_model
from pytest_torchlens.run.preserved_state import preserved_global_state
from pytest_torchlens.validate.state import ModelState
from tests.checks.subjects import line_of

X = torch.rand(4, 6, generator=torch.Generator().manual_seed(0))
LOADS = "state_dict,safetensors,meta"


def planned(ways: str) -> list[PlannedCheck]:
    options: dict[str, Any] = {"ways": ways} if ways else {}
    return [PlannedCheck(known_checks()["state"], CheckSetting(options=options))]


def state_of(model: nn.Module, ways: str = "", build: Callable[[], nn.Module] | None = None) -> CheckResult:
    """Return the result of the check; what another process does is done in this one, which is fast."""
    tools = Tools(
        snapshot=ModelState,
        preserved=preserved_global_state,
        build=build,
        child=lambda job, seconds: answer(job),
    )
    with torch.no_grad():
        (result,) = run_checks(Subject(model, (X,), tools=tools, seed=0), planned(ways))
    return result


def state_with_processes(model: nn.Module) -> CheckResult:
    """Return the result of sending a model to another process."""
    with torch.no_grad():
        (result,) = check_model(model, ((X,), {}), planned("pickle"), 0)
    return result


class Scaled(nn.Module):
    """Scales by a random tensor that is a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.scale = torch.rand(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return y * self.scale  # plain


class Masked(nn.Module):
    """Masks by a buffer that is not saved, and which each instance draws."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_buffer("mask", torch.rand(6).round(decimals=1), persistent=False)
        self.register_buffer("count", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.mask  # mask


class Calibrated(nn.Module):
    """Divides by a number that was set after it was made."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.steps = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) / self.steps  # number


class Listed(nn.Module):
    """Keeps a layer in a list, which registers nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.others = [nn.Linear(6, 6)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.others[0](self.first(x))  # type: ignore[no-any-return] # listed


class Bound(nn.Module):
    """Computes by a function that holds the weight itself, as wrappers of forward do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        weight = self.layer.weight
        self.apply_weight = lambda x: x @ weight.t()  # bound

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.apply_weight(x)  # type: ignore[no-any-return]


class Stale(nn.Module):
    """Keeps its parameters in a list, too, which assign=True does not follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.all = [self.layer.weight]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.all[0].t() + self.layer.bias  # stale


class Tied(nn.Module):
    def __init__(self, *, ties: bool = True) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)
        if ties:
            self.two.weight = self.one.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x).relu())  # type: ignore[no-any-return]


class Hashing(nn.Module):
    """Chooses by the hash of a text, which each process seeds anew."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + hash("a word")  # hash


class Whole(nn.Module):
    """Has all kinds of state, all carried."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
        self.rnn = nn.LSTM(6, 6)
        self.register_buffer("positions", torch.arange(6.0), persistent=False)
        self.extra = 0

    def get_extra_state(self) -> torch.Tensor:
        return torch.tensor(self.extra)

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.extra = int(state)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.rnn(self.body(x) + self.positions)
        return y * (1 + self.extra)  # type: ignore[no-any-return]


LOST = {
    Scaled: ("# plain", "not carried: attribute 'scale'"),
    Masked: ("# mask", "not carried: non-persistent buffer 'mask'"),
    Calibrated: ("# number", "not carried: attribute 'steps'"),
    Listed: ("# listed", "not carried: parameter 'others.0.weight', parameter 'others.0.bias'"),
}


@pytest.mark.parametrize("kind", LOST)
def test_a_value_that_a_state_dict_does_not_carry_is_named(kind: type[nn.Module]) -> None:
    line, cause = LOST[kind]
    model = kind().eval()
    if isinstance(model, Calibrated):
        model.steps = 7
    result = state_of(model, "state_dict", build=kind)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith(line)
    assert result.failure is not None
    assert result.failure.cause == cause
    assert state_of(model, "deepcopy,pickle").status is CheckStatus.PASSED


def test_a_copy_that_computes_with_the_original_is_found() -> None:
    result = state_of(Bound(), "deepcopy")
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# bound")
    assert result.failure is not None
    assert "computes with 'layer.weight' of the model that it was copied from" in result.failure.message


def test_what_cannot_be_pickled_is_named() -> None:
    result = state_of(Bound(), "pickle")
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert "attribute 'apply_weight' of Bound" in result.failure.message


def test_a_list_of_former_parameters_is_found_on_the_meta_device() -> None:
    assert state_of(Stale(), "state_dict,safetensors", build=Stale).status is CheckStatus.PASSED
    result = state_of(Stale(), "meta", build=Stale)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# stale")
    assert result.failure is not None
    assert "attribute 'all.0'" in result.failure.cause


def test_ties_that_a_fresh_instance_lacks_are_named() -> None:
    result = state_of(Tied(), "state_dict", build=partial(Tied, ties=False))
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert "'one.weight' and 'two.weight' are tied" in result.failure.message


def test_another_process_runs_the_pickled_model() -> None:
    assert state_with_processes(Scaled()).status is CheckStatus.PASSED


@pytest.mark.slow
def test_what_another_process_computes_otherwise_is_found() -> None:
    result = state_with_processes(Hashing())
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# hash")
    assert result.failure is not None
    assert "something outside the model differs" in result.failure.cause


@pytest.mark.parametrize("kind", [Whole, Tied])
def test_what_is_carried_in_all_ways_passes(kind: type[nn.Module]) -> None:
    model = kind().eval()
    if isinstance(model, Whole):
        model.extra = 3
    result = state_of(model, build=kind)
    assert (result.status, result.compared, result.unseen) == (CheckStatus.PASSED, 5, ())


def test_without_a_factory_a_changed_copy_is_loaded_and_the_result_says_so() -> None:
    result = state_of(Scaled(), LOADS)
    assert (result.status, result.compared) == (CheckStatus.PASSED, 3)
    assert "a changed copy stood for a fresh instance" in result.notes[0]


def test_an_output_that_does_not_depend_on_the_weights_is_not_applicable() -> None:
    class Constant(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    result = state_of(Constant(6, 6), "state_dict")
    assert result.status is CheckStatus.NOT_APPLICABLE
    assert "does not depend on what the state_dict holds" in result.reason
    assert "cannot import" in state_of(Constant(6, 6), "pickle").reason


def test_a_factory_that_returns_the_model_itself_changes_nothing() -> None:
    model = nn.Linear(6, 6)
    before = model.weight.detach().clone()
    result = state_of(model, "state_dict", build=lambda: model)
    assert "shares memory with the model" in result.reason
    assert torch.equal(model.weight, before)


def test_a_wrong_way_is_named() -> None:
    with pytest.raises(CheckNameError, match="expected some of state_dict, safetensors, meta, deepcopy, pickle"):
        settings_of({"state": {"ways": "picle"}}, known_checks())


class Raising(nn.Module):
    """Raises when it is saved, in one of the places that may."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.where = where
        if where == "hook":
            self._register_state_dict_hook(self.refuse)
        if where == "load hook":
            self.register_load_state_dict_pre_hook(self.refuse)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # type: ignore[no-any-return]

    @staticmethod
    def refuse(*args: Any) -> None:
        raise NotImplementedError("use export_weights()")  # refuses

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        if self.where == "state_dict":
            self.refuse()
        return [] if self.where == "list" else super().state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        if self.where == "load_state_dict":
            self.refuse()
        found = super().load_state_dict(*args, **kwargs)
        return None if self.where == "none" else found


@pytest.mark.parametrize("where", ["state_dict", "hook", "load_state_dict", "load hook"])
def test_what_a_state_dict_raises_is_the_failure_of_the_model_at_its_line(where: str) -> None:
    result = state_of(Raising(where), LOADS, partial(Raising, where))
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert "state_dict raised NotImplementedError: use export_weights()" in result.failure.message
    assert line_of(result).endswith("# refuses")


def test_a_state_dict_that_is_no_mapping_fails_and_loading_may_return_nothing() -> None:
    result = state_of(Raising("list"), LOADS, partial(Raising, "list"))
    assert result.failure is not None
    assert result.failure.message == "state_dict returned list, expected a mapping of names to tensors"
    assert state_of(Raising("none"), LOADS, partial(Raising, "none")).status is CheckStatus.PASSED


def test_weights_that_autocast_keeps_are_not_those_that_are_loaded() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert state_of(nn.Linear(6, 3), f"{LOADS},deepcopy").status is CheckStatus.PASSED


def test_modules_with_parametrizations_are_judged_but_for_pickle() -> None:
    result = state_of(nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)))
    assert (result.status, result.compared) == (CheckStatus.PASSED, 4)
    assert result.unseen == (
        "pickle: PyTorch pickles no module with parametrizations; their state_dict is what to save",
    )


class Fusing(nn.Module):
    """Keeps what its first call makes of its weights; a hook may drop it where others are loaded."""

    def __init__(self, *, drops: bool = False) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.fused: torch.Tensor | None = None
        if drops:
            self.register_load_state_dict_post_hook(lambda module, _: setattr(module, "fused", None))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fused is None:
            self.fused = torch.cat([self.one.weight, self.two.weight]).detach()  # made of weights
        return x @ self.fused.T


@pytest.mark.parametrize("build", [Fusing, None])
def test_what_a_call_made_of_weights_that_are_loaded_over_is_found(build: Callable[[], nn.Module] | None) -> None:
    result = state_of(Fusing(), LOADS, build)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# made of weights")
    assert result.failure is not None
    assert result.failure.cause == "made of the former weights: attribute 'fused'"
    assert state_of(Fusing(drops=True), LOADS, build and partial(Fusing, drops=True)).status is CheckStatus.PASSED


def test_what_safetensors_cannot_hold_is_said() -> None:
    class Noted(Fusing):
        def __init__(self) -> None:
            super().__init__(drops=True)

        def get_extra_state(self) -> torch.dtype:
            return torch.float32

        def set_extra_state(self, state: torch.dtype) -> None:
            pass

    result = state_of(Noted(), LOADS)
    assert result.status is CheckStatus.PASSED
    assert result.unseen == (
        "safetensors: it holds tensors alone, and '_extra_state' in the state_dict is dtype, not a tensor",
    )


class Copying(nn.Module):
    """Computes with a copy of its weight, or with another view of it."""

    def __init__(self, *, copies: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.weight = self.layer.weight.detach().clone() if copies else self.layer.weight.data
        self.zero = torch.zeros(6)
        nn.init.zeros_(self.layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.T + self.layer.bias + self.zero  # the copy


def test_without_a_factory_a_copy_of_a_weight_is_found() -> None:
    result = state_of(Copying(copies=True), LOADS)
    assert result.status is CheckStatus.FAILED
    assert line_of(result).endswith("# the copy")
    assert result.failure is not None
    assert result.failure.message.startswith(
        "attribute 'weight' is a copy of 'layer.weight' that load_state_dict leaves"
    )
    assert state_of(Copying(copies=False), "state_dict").status is CheckStatus.PASSED


class SharingCopy(nn.Module):
    """Is copied without its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def __deepcopy__(self, memo: dict[int, Any]) -> SharingCopy:
        made = SharingCopy.__new__(SharingCopy)
        made.__dict__.update(self.__dict__)
        return made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


def test_a_copy_that_shares_its_parameters_is_found() -> None:
    result = state_of(SharingCopy(), "deepcopy")
    assert result.status is CheckStatus.FAILED
    assert result.failure is not None
    assert "computes with 'layer.weight' of the model that it was copied from" in result.failure.message
