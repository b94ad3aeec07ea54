"""A test as autotrace runs it."""

from __future__ import annotations

import torch
from torch import nn

from pytest_torchlens.capture.patches import module_calls_intercepted
from pytest_torchlens.run.module_calls import Autotrace
from pytest_torchlens.run.module_calls import Plan
from pytest_torchlens.validate import PARTS

CALL = nn.Module.__call__
X = torch.linspace(-2.0, 2.0, 12).reshape(3, 4)


def plan(**changes):
    return Plan(**{"every": False, "parts": PARTS, "seconds": 60.0, "nbytes": 1 << 30} | changes)


def traced(test, autotrace=None, name="test", **changes):
    """Return what a test returned or raised, and what was found in it."""
    autotrace = autotrace or Autotrace()
    autotrace.begin(name, plan(**changes))
    with module_calls_intercepted(), autotrace.on():
        try:
            result = test()
        except Exception as error:  # noqa: BLE001 - compared with that of a plain run
            result = error
    assert nn.Module.__call__ is CALL
    return result, autotrace.result()


def assert_equal(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
