"""The tensors among a call's recorded arguments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.leaves import Opened
from pytest_torchlens.capture.leaves import children
from pytest_torchlens.capture.values import Aliased
from pytest_torchlens.capture.values import Value


def edges_in(call: Call) -> Iterator[tuple[str, Value | Aliased]]:
    """Yield path and value of each tensor argument of a call, positional ones first.

    A path is ``"0"`` for the first positional argument, ``"weight"`` for a keyword, ``"0.2"`` for the third tensor of
    a list that is the first argument.
    """
    yield from edges_of(call.args)
    yield from edges_of(call.kwargs)


def edges_of(template: Any, path: str = "", entered: set[int] | None = None) -> Iterator[tuple[str, Value | Aliased]]:
    """Yield path and value of each tensor in recorded arguments; an object is entered by the first path to it."""
    if isinstance(template, Value | Aliased):
        yield path, template
    elif isinstance(template, list | tuple | dict | slice | Opened):
        entered = set() if entered is None else entered
        if type(template) is Opened:
            if id(template) in entered:
                return
            entered.add(id(template))
        for key, item in children(template):
            yield from edges_of(item, f"{path}.{key}" if path else str(key), entered)
