"""A verdict that could not judge a second run names what the pass changes outside the model."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pytest_torchlens.records import Status
from pytest_torchlens.validate import validate
from pytest_torchlens.validate.outside import Outside

X = torch.ones(3)
COUNT = 0
SEEN: list[int] = []
NAMED: dict[str, int] = {}
SPACE = SimpleNamespace(count=0)


class Elsewhere:
    count = 0


def scaled(x, by=1):
    return x * by


class Uses(nn.Module):
    def __init__(self, use):
        super().__init__()
        self.use = [use.__name__]

    def forward(self, x):
        return getattr(sys.modules[__name__], self.use[0])(x)


def a_global(x):
    global COUNT  # noqa: PLW0603 - as found in the wild
    COUNT += 1
    return x + COUNT


def a_list(x):
    SEEN.append(1)
    return x + len(SEEN)


def an_item(x):
    NAMED["count"] = NAMED.get("count", 0) + 1
    return x + NAMED["count"]


def an_attribute(x):
    SPACE.count += 1
    return x + SPACE.count


def a_class(x):
    Elsewhere.count += 1
    return x + Elsewhere.count


def defaults(x):
    scaled.__defaults__ = (scaled.__defaults__[0] + 1,)
    return scaled(x)


def environment(x):
    os.environ["LENS_TEST_COUNT"] = str(int(os.environ.get("LENS_TEST_COUNT", "0")) + 1)
    return x + int(os.environ["LENS_TEST_COUNT"])


HERE = __name__
CHANGES = {
    a_global: f"{HERE}.COUNT",
    a_list: f"{HERE}.SEEN",
    an_item: f"{HERE}.NAMED",
    an_attribute: f"{HERE}.SPACE.count",
    a_class: f"{HERE}.Elsewhere.count",
    defaults: f"{HERE}.scaled",
    environment: "os.environ['LENS_TEST_COUNT']",
}


@pytest.mark.parametrize(("use", "name"), CHANGES.items(), ids=[use.__name__ for use in CHANGES])
def test_what_changes_outside_is_named(use, name, monkeypatch):
    monkeypatch.setenv("LENS_TEST_COUNT", "0")
    verdict = validate(Uses(use), (X,)).verdict
    assert verdict.status is Status.UNPROVEN, verdict.words
    part = verdict.part("observer")
    assert part.status is Status.NOT_APPLICABLE
    assert f"in a row differ: the pass changes {name}, which is not put back" in part.reason


def test_what_stays_is_not_named():
    outside = Outside(Uses(scaled))
    assert outside.changed() == ""
    NAMED["one"] = 1
    assert outside.changed() == f"the pass changes {HERE}.NAMED, which is not put back"
    del NAMED["one"]
    assert outside.changed() == ""
    for number in range(5):
        NAMED[number] = number
        setattr(Elsewhere, f"made_{number}", number)
    names = f"{HERE}.NAMED, {HERE}.Elsewhere.made_0, {HERE}.Elsewhere.made_1"
    assert outside.changed() == f"the pass changes {names} and 3 more, which is not put back"
    for number in range(5):
        delattr(Elsewhere, f"made_{number}")
