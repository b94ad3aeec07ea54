"""Options of a table: an error names the option, what it takes and what it got; a misspelled name gets the nearest."""

from __future__ import annotations

import re

import pytest

from pytest_torchlens.records.options import FLAG
from pytest_torchlens.records.options import POSITIVE
from pytest_torchlens.records.options import TEXT
from pytest_torchlens.records.options import Option
from pytest_torchlens.records.options import OptionError
from pytest_torchlens.records.options import check_options
from pytest_torchlens.records.options import choice
from pytest_torchlens.records.options import optional
from pytest_torchlens.records.options import whole

TABLE = {
    "color": choice("red", "green", "blue"),
    "every": whole(1),
    "share": whole(0, 1000),
    "limit": optional(whole(1)),
    "page": FLAG,
    "title": TEXT,
    "timeout": POSITIVE,
    "scaler": Option("an object with get_scale", (object,), lambda value: hasattr(value, "get_scale")),
}


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"colour": "red"}, TypeError, "unknown option 'colour'; did you mean 'color'?"),
        ({"color": "gren"}, OptionError, "color: expected 'red', 'green', 'blue', got 'gren' (did you mean 'green'?)"),
        ({"color": None}, TypeError, "color: expected 'red', 'green', 'blue', got None"),
        ({"color": ["red"]}, TypeError, "color: expected 'red', 'green', 'blue', got ['red']"),
        ({"every": 0}, OptionError, "every: expected a whole number of at least 1, got 0"),
        ({"every": True}, TypeError, "every: expected a whole number of at least 1, got True"),
        ({"every": 2.0}, TypeError, "every: expected a whole number of at least 1, got 2.0"),
        ({"share": 1001}, OptionError, "share: expected a whole number from 0 to 1,000, got 1001"),
        ({"limit": 0}, OptionError, "limit: expected a whole number of at least 1 or None, got 0"),
        ({"page": 1}, TypeError, "page: expected True or False, got 1"),
        ({"title": b"x"}, TypeError, "title: expected a string, got b'x'"),
        ({"timeout": float("nan")}, OptionError, "timeout: expected a finite number above 0, got nan"),
        ({"scaler": 3}, OptionError, "scaler: expected an object with get_scale, got 3"),
    ],
    ids=str,
)
def test_a_wrong_option(given: dict, error: type[Exception], message: str):
    with pytest.raises(error, match=f"^{re.escape(message)}$") as caught:
        check_options(TABLE, given)
    assert isinstance(caught.value, OptionError)
    assert isinstance(caught.value, TypeError) is (error is TypeError)


def test_right_options():
    check_options(TABLE, {"color": "red", "every": 10**30, "share": 0, "limit": None, "page": False, "timeout": 0.5})
    check_options(TABLE, {})


def test_a_long_value_is_cut():
    with pytest.raises(OptionError) as caught:
        check_options(TABLE, {"title": [0] * 1000})
    assert len(str(caught.value)) < 150
