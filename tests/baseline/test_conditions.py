"""A condition that is nearly right is an error that shows the right one."""

from __future__ import annotations

import re

import pytest

from pytest_torchlens.baseline.conditions import ConditionError
from pytest_torchlens.baseline.conditions import Conditions


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("output", "'outputs', which fails each output beyond tolerance"),
        ("outputs:1e-4", "'output:1e-4', a limit"),
        ("structur", "'structure'"),
        ("Structure", "'structure'"),
        ("nan_change", "'nan-change'"),
        ("output=1e-4", "'output:1e-4'"),
        ("own<1e-4@layer_norm", "'own:1e-4@layer_norm'"),
        ("own:1e-5@", "'own:1e-5'"),
        ("peak:10", "'peak:+10%'"),
        ("time:20", "'time:+20%'"),
        ("time:1", "'time:+1%'"),
        ("time:2", "'time:+2%'"),
        ("peak=2x", "'peak:+10%'"),
        ("peak=30", "'peak:+30%'"),
        ("peek:+5%", "'peak:+10%'"),
        ("Own", "'own:1e-5'"),
        ("memory", "'peak:+10%'"),
        ("renamed", "'refactor'"),
        ("structure;refactor", "'structure,refactor'"),
        ("regression own:1e-5", "'regression,own:1e-5'"),
    ],
)
def test_what_was_meant_is_shown_and_can_be_used(text: str, meant: str):
    with pytest.raises(ConditionError) as raised:
        Conditions.of([text])
    assert f"did you mean {meant}?" in str(raised.value)
    assert Conditions.of([meant.split("'")[1]]).items


def test_no_hint_is_an_error_itself():
    for text in ("outputs:x", "own=x;structure", "peak:2x"):
        with pytest.raises(ConditionError) as raised:
            Conditions.of([text])
        for meant in re.findall(r"did you mean '([^']*)'", str(raised.value)):
            assert Conditions.of([meant]).items


def test_a_word_like_no_other_is_an_error_with_all():
    with pytest.raises(ConditionError, match=r"got 'xyz'; there are drift, local-change, .*outputs, none$"):
        Conditions.of(["xyz"])


def test_costs_may_double_where_a_sign_of_per_cent_says_so():
    assert Conditions.of(["peak:+1000%"]).cost("peak") == 10
    assert Conditions.of(["peak:0.1"]).cost("peak") == 0.1
