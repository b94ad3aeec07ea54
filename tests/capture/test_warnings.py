"""Warnings of a recorded model are about the same lines as without recording, for filters too."""

# ruff: noqa: PLW0108 - the lambdas are the lines that the warnings are about
from __future__ import annotations

import functools
import warnings
from unittest import mock

import pytest
import torch
from torch import nn

from pytest_torchlens.capture import record
from pytest_torchlens.capture.guarded import Limits
from pytest_torchlens.capture.guarded import record_guarded
from tests.models import Function

X = torch.ones(3, 3)


def at_level(level):
    def forward(x):
        warnings.warn("of the model", stacklevel=level)
        return x * 2

    return forward


def in_a_custom_function(x):
    class Warns(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, x):
            warnings.warn("of a custom function", stacklevel=2)
            return x.clone()

    return Warns.apply(x)


FORWARDS = {
    "softmax": lambda x: nn.functional.softmax(x),
    "softmax in a module": lambda x: nn.Softmax()(x),
    "loss": lambda x: nn.functional.mse_loss(x, x[:1]),
    "upsample": lambda x: nn.functional.upsample(x[None], scale_factor=2),
    "inside vmap": lambda x: torch.vmap(lambda row: nn.functional.softmax(row))(x),
    "C++": lambda x: x[None].T,
    "C++ of a constructor": lambda x: torch.tensor(x),
    "custom function": in_a_custom_function,
    **{f"level {level}": at_level(level) for level in (1, 2, 3, 4)},
}


def call(model):
    return model(X)


def recorded(model):
    return record(model, (X,)).output


def guarded(model):
    result = record_guarded(nn.Module.__call__, model, (X,), {}, Limits(100, float("inf")))
    assert result.recording is not None, result
    return result.result


def places(how, forward):
    """Return file and line of each warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        how(Function(forward))
    return [(warning.category, warning.filename, warning.lineno) for warning in caught]


@pytest.mark.parametrize("how", [recorded, guarded])
@pytest.mark.parametrize("forward", FORWARDS.values(), ids=FORWARDS)
def test_a_warning_is_about_the_same_line(forward, how):
    torch._C._set_warnAlways(True)
    try:
        expected = places(call, forward)
        assert places(how, forward) == expected
    finally:
        torch._C._set_warnAlways(False)
    assert len(expected) == 1


@pytest.mark.parametrize("how", [recorded, guarded])
def test_filters_see_the_module_that_calls(how):
    model = Function(lambda x: nn.functional.softmax(x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", module=__name__)
        torch.testing.assert_close(how(model), X / 3)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", module=__name__)
        with pytest.raises(UserWarning, match="Implicit dimension"):
            how(model)


@pytest.mark.parametrize("how", [recorded, guarded])
def test_a_replaced_warn_receives_its_arguments_unchanged(how):
    with mock.patch("warnings.warn") as warn:
        how(Function(at_level(2)))
    warn.assert_called_once_with("of the model", stacklevel=2)


def test_warn_is_restored():
    original = warnings.warn, vars(warnings)["_showwarnmsg"]
    seen = []
    record(Function(lambda x: seen.append(warnings.warn) or x + 1), (X,))
    assert seen[0] is not original[0]
    assert (warnings.warn, vars(warnings)["_showwarnmsg"]) == original


@pytest.mark.parametrize("arguments", [(), ("text", "no category"), ("text", UserWarning, "no level")])
def test_wrong_arguments_raise_as_usual(arguments):
    with pytest.raises(TypeError):
        record(Function(lambda x: functools.partial(warnings.warn, *arguments)() or x), (X,))
