"""Names of outputs, addresses in the names of module calls, and hints for misspelled words."""

from __future__ import annotations

import difflib
from collections.abc import Container
from collections.abc import Iterable


def output_name(path: str) -> str:
    """Return how a message names the tensor at a path in what a model returns; ``""`` is the path of a lone one."""
    return f"output {path!r}" if path else "the output"


def address_of(call: str, known: Container[str]) -> str:
    """Return the address in a module call's name, ``"cell"`` or ``"cell:2"``; an address may hold a colon."""
    return call if call in known else call.rpartition(":")[0] or call


def pass_of(call: str, known: Container[str]) -> int:
    """Return which call of its module a module call is, from 1."""
    number = call.removeprefix(address_of(call, known)).removeprefix(":")
    return int(number) if number.isdecimal() else 1


_FEW = 6
"""Up to this many names are all listed."""


def close(word: str, known: Iterable[str]) -> str:
    """Return a hint with the known words most like `word`, in any case; ``""`` if none is similar.

    Examples
    --------
    >>> close("Conv2d_11", ["conv2d_1", "relu_1"])
    "did you mean 'conv2d_1'?"
    """
    by_lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), by_lower, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(repr(by_lower[name]) for name in found)}?" if found else ""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint with the known words most like `word`, or with all if they are few.

    Examples
    --------
    >>> nearest("resnet81", ["resnet18", "resnet34", "vgg11", "vgg13", "vgg16", "vgg19", "alexnet"])
    "did you mean 'resnet18' or 'resnet34'?"
    """
    words = sorted(known)
    if hint := close(word, words):
        return hint
    if len(words) <= _FEW:
        return f"known are {', '.join(words)}" if words else "there is none"
    return f"{len(words)} are known, for example {', '.join(words[:3])}"
