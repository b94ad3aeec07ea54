"""Settings of the process are recorded for each call, shown in the verdict, and restored when the call is replayed."""

from __future__ import annotations

import contextlib

import pytest
import torch

from pytest_torchlens.capture import record
from pytest_torchlens.replay import Player
from pytest_torchlens.validate import validate
from tests.models import Function
from tests.models import failures


@contextlib.contextmanager
def threads(number):
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def deterministic(warn_only):
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def default_device(name):
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


SETTINGS = {
    "default device": (lambda: default_device("meta"), torch.get_default_device, torch.device("meta")),
    "threads": (lambda: threads(3), torch.get_num_threads, 3),
    "oneDNN": (lambda: torch.backends.mkldnn.flags(enabled=False), lambda: torch.backends.mkldnn.enabled, False),
    "cuDNN": (lambda: torch.backends.cudnn.flags(enabled=False), lambda: torch.backends.cudnn.enabled, False),
    "cuDNN benchmark": (
        lambda: torch.backends.cudnn.flags(enabled=True, benchmark=True),
        lambda: torch.backends.cudnn.benchmark,
        True,
    ),
    "deterministic": (lambda: deterministic(False), torch.are_deterministic_algorithms_enabled, True),
    "only warns": (
        lambda: deterministic(True),
        torch.is_deterministic_algorithms_warn_only_enabled,
        True,
    ),
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), lambda: torch.is_autocast_enabled("cpu"), True),
}


@pytest.mark.parametrize(("setting", "get", "inside"), SETTINGS.values(), ids=SETTINGS)
def test_a_setting_inside_forward_is_in_force_again_in_the_replay_and_no_longer(setting, get, inside):
    def forward(x):
        with setting():
            y = x @ x
        return y, x @ x

    model, x = Function(forward), torch.rand(3, 3)
    before = get()
    assert before != inside
    assert failures(validate(model, (x,)).verdict) == []
    seen = []
    recording = record(model, (x,))
    with Player(recording) as player:
        for number, call in enumerate(recording.calls):
            returned = player.run(call, player.arguments(call))
            seen.append(get())
            player.store(number, call, returned)
    assert seen == [inside, before]
    assert get() == before


def test_the_verdict_names_its_settings():
    model, x = torch.nn.Linear(2, 2), torch.rand(1, 2)
    with threads(3), torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        settings = validate(model, (x,)).verdict.settings
    assert settings["threads"] == "3"
    assert settings["autocast"] == "cpu bfloat16"
    assert settings["gradients"] == "off"
    assert settings["default dtype"] == "float32"
    assert settings["deterministic algorithms"] == "off"
    assert settings["float32 matmul precision"] == "highest"
    assert settings["cuDNN TF32"] in {"on", "off"}
