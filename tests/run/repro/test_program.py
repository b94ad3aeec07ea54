from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchlens import log_forward_pass
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.replay.calls import replay_calls
from pytest_torchlens.run.repro.program import Program
from pytest_torchlens.run.repro.program import program_of
from pytest_torchlens.run.repro.program import why_unprintable
from pytest_torchlens.run.repro.runner import run
from pytest_torchlens.run.repro.script import program_text
from pytest_torchlens.run.repro.script import stored
from tests.run.repro.programs import Everything
from tests.run.repro.programs import history_of


def nothing_stored(*_: object) -> None:
    """No pass is saved: all tensors come from the replay."""


def results(program: Program) -> list[torch.Tensor]:
    found = run(program_text(program), {name: stored(tensor) for name, tensor in program.inputs.items()})
    assert not isinstance(found, str), f"{found}\n{program_text(program)}"
    return found


@pytest.fixture(scope="module")
def everything():
    model = Everything()
    history = history_of(model, torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0)))
    expected = [tuple(out.clone() for out in one.outputs) for one in replay_calls(history.recording)]
    return model, history, expected


def test_each_call_alone_computes_what_was_recorded(everything):
    _, history, expected = everything
    recording = history.recording
    printable = [n for n, call in enumerate(recording.calls) if not why_unprintable(recording, n)]
    assert [recording.calls[n].info.name for n in range(len(recording.calls)) if n not in printable] == []
    for number in printable:
        found = results(program_of(recording, [number], nothing_stored))
        assert [*map(fingerprint, found)] == [*map(fingerprint, expected[number])], recording.calls[number].info.name


def test_all_calls_together_compute_what_was_recorded(everything):
    _, history, expected = everything
    numbers = [*range(len(history.recording.calls))]
    for last in (5, 12, 20, 28, len(numbers)):
        found = results(program_of(history.recording, numbers[:last], nothing_stored))
        assert [*map(fingerprint, found)] == [*map(fingerprint, expected[last - 1])]


def test_the_code_is_what_a_person_would_write(everything):
    _, history, _ = everything
    program = program_of(history.recording, [*range(len(history.recording.calls))], nothing_stored)
    text = program_text(program)
    for line in (
        "    y.mul_(1.5)",
        "    y[:, 1:3] = y2",
        "    y.add_(0.25)",
        "torch.cat([y, y3], dim=1)",
        'approximate="tanh")',
        'float("-inf"))',
        'norm="ortho")',
        ".to(torch.bfloat16)",
        "memory_format=torch.channels_last)",
        "torch.set_rng_state(rng_state)",
        "torch.ops.aten.amax.default(",
        " = 2 - y",
        "y18 ** 2",
        "[..., None, 0]",
        " = ~mask",
        "y24 = y23.topk(3, dim=-1)",
        "(y27, y28),",
        "return y23.real",
        "@torch.no_grad()",
    ):
        assert line in text
    assert "pytest_torchlens" not in text


class Odd(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (torch.jit.script(nn.Softplus()), "its inside was not recorded"),
        (torch.vmap(torch.sin), "its inside was not recorded"),
        (lambda x: torch.randn(3, generator=torch.Generator()) + x, "an argument is of class Generator"),
    ],
)
def test_what_has_no_form_of_torch_alone_says_why(function, reason):
    recording = history_of(Odd(function), torch.ones(3)).recording
    assert any(reason in why_unprintable(recording, number) for number in range(len(recording.calls)))


def test_strides_gradients_and_settings_are_kept():
    weight = nn.Parameter(torch.randn(6, 4).t())
    model = Odd(lambda x: torch.nn.functional.linear(x, weight))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        history = log_forward_pass(model, (torch.randn(1, 6).expand(5, 6),))
    program = program_of(history.recording, [0], nothing_stored)
    text = program_text(program)
    assert '@torch.autocast("cpu", dtype=torch.bfloat16)' in text
    assert "x = x.expand((5, 6))" in text
    assert "torch.empty_strided((4, 6), (1, 4), dtype=x1.dtype).copy_(x1)" in text
    assert "x1.requires_grad_()" in text
    assert "no_grad" not in text
    (found,) = results(program)
    (recorded,) = [one.outputs[0] for one in replay_calls(history.recording)]
    assert fingerprint(found) == fingerprint(recorded.detach())
    assert found.dtype is torch.bfloat16
