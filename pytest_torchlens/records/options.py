"""Tables of options: an `Option` says what a value must be; a bad value or an unknown name is an `OptionError`."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from types import NoneType
from typing import Any
from typing import NamedTuple

from pytest_torchlens.records.names import close
from pytest_torchlens.records.names import nearest


class OptionError(ValueError):
    """An option has a value that it does not take; the message says which, and what it takes."""


class OptionTypeError(OptionError, TypeError):
    """An option is unknown, or its value has the wrong type."""


def _anything(_: object) -> bool:
    return True


class Option(NamedTuple):
    """What the value of one option must be.

    Attributes
    ----------
    expected
        In words, for the error message.
    kinds
        The types; True and False do not count as numbers.
    fits
        Whether a value of these types is valid; may raise a `ValueError` that says more.
    words
        The valid words, for a hint.
    """

    expected: str
    kinds: tuple[Any, ...]
    fits: Callable[[Any], object] = _anything
    words: tuple[str, ...] = ()

    def check(self, name: str, value: object) -> None:
        """Raise `OptionError` unless `value` is valid; `name` is the option's name in the message."""
        has_type = isinstance(value, self.kinds) and (not isinstance(value, bool) or bool in self.kinds)
        if has_type and self.fits(value):
            return
        hint = close(_first_unknown(value, self.words), self.words)
        error = OptionError if has_type else OptionTypeError
        raise error(f"{name}: expected {self.expected}, got {value!r:.80}{hint and f' ({hint})'}")


def _first_unknown(value: object, words: tuple[str, ...]) -> str:
    """Return the first of some words, joined by commas or in a list, that is not valid; empty without one."""
    given = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
    return next((word.strip() for word in given if isinstance(word, str) and word.strip() not in words), "")


def check_names(given: Iterable[str], known: Collection[str]) -> None:
    """Raise `OptionTypeError` if a name is unknown, with the nearest known one."""
    for name in given:
        if name not in known:
            raise OptionTypeError(f"unknown option {name!r}; {nearest(name, known)}")


def check_options(table: Mapping[str, Option], given: Mapping[str, Any]) -> None:
    """Raise `OptionError` if an option is unknown or its value invalid."""
    check_names(given, table)
    for name, value in given.items():
        table[name].check(name, value)


FLAG = Option("True or False", (bool,))
TEXT = Option("a string", (str,))
POSITIVE = Option("a finite number above 0", (int, float), lambda value: 0 < value < math.inf)


def whole(least: int, most: int | None = None) -> Option:
    """Return an option that takes whole numbers of a range."""
    span = f"of at least {least:,}" if most is None else f"from {least:,} to {most:,}"
    return Option(f"a whole number {span}", (int,), lambda value: value >= least and (most is None or value <= most))


def choice(*words: str) -> Option:
    """Return an option that takes one of these words."""
    return Option(", ".join(map(repr, words)), (str,), words.__contains__, words)


def optional(option: Option) -> Option:
    """Return an option that also takes None."""
    return option._replace(
        expected=f"{option.expected} or None",
        kinds=(*option.kinds, NoneType),
        fits=lambda value: value is None or option.fits(value),
    )
