"""One replay serves the checks and whoever listens: it gets what a replay of its own would show."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from pytest_torchlens.baseline.take_snapshot import ValueNumbers
from pytest_torchlens.baseline.take_snapshot import take
from pytest_torchlens.replay.calls import Listeners
from pytest_torchlens.run.environment import find_environment
from pytest_torchlens.validate import validate

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Mixed(nn.Module):
    """Views, a write in place, random numbers, a list of results, uninitialised memory."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(x)
        hidden[:, 0].relu_()
        left, right = hidden.chunk(2, dim=1)
        noise = torch.empty(3, 3).copy_(left).mul_(torch.rand(3, 3))
        return torch.cat([noise, right], dim=1)


class Raising:
    """A listener that raises at the first call, or after it."""

    def __init__(self, raises: str) -> None:
        self.raises = raises
        self.calls = 0

    def before(self, *_: object) -> None:
        self.calls += 1
        self._raise("before")

    def after(self, *_: object) -> None:
        self._raise("after")

    def _raise(self, now: str) -> None:
        if now == self.raises:
            raise LookupError(now)


def test_a_snapshot_of_the_replay_that_was_checked_is_that_of_a_replay_of_its_own():
    model = Mixed().eval()
    validation = validate(model, (X,), seed=0, listen=ValueNumbers)
    assert validation
    assert isinstance(validation.listener, ValueNumbers)
    environment = find_environment()
    snapshot = take(validation.history, environment, numbers=validation.listener)
    assert snapshot == take(validation.history, environment)
    assert len({numbers.digest for numbers in snapshot.measured[next(iter(snapshot.measured))].numbers.values()}) > 5


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_a_listener_raises_is_no_failure_of_the_model(when: str):
    raising = Raising(when)
    validation = validate(nn.Linear(4, 2), (X,), listen=lambda _: raising)
    assert validation
    assert validation.listener is None
    assert raising.calls == 1


def test_a_listener_to_a_replay_that_did_not_end_is_let_go(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pytest_torchlens.replay.player.Player.missing_arguments", lambda *_: ["0"])
    validation = validate(nn.Linear(4, 2), (X,), listen=lambda _: Raising(""))
    assert not validation
    assert validation.listener is None


class Pushing(TorchDispatchMode):
    """A listener that enters a mode of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[object] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))

    def before(self, *_: object) -> None:
        self.__enter__()

    def after(self, *_: object) -> None:
        raise AssertionError("notified after it entered a mode")


@pytest.mark.parametrize("among_others", [False, True])
def test_a_mode_that_a_listener_enters_by_itself_is_left_and_the_listener_let_go(among_others: bool):
    pushing, raising = Pushing(), Raising("")
    depth = len(_get_current_dispatch_mode_stack())
    listener = Listeners(pushing, raising) if among_others else pushing
    validation = validate(nn.Linear(4, 2), (X,), listen=lambda _: listener)
    assert validation
    assert len(_get_current_dispatch_mode_stack()) == depth
    assert not is_in_torch_dispatch_mode()
    assert pushing.seen == []
    assert validation.listener is (listener if among_others else None)
    assert not among_others or listener.active == [raising]
