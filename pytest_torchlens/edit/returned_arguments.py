"""Warns where an edit names the result of a module or operation that returned its own argument.

The record has one tensor there, and does not know which later operations the model gave the argument to, and which the
result.  A hook on the module would change the result alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.edit.places import Part
from pytest_torchlens.edit.places import Place
from pytest_torchlens.edit.request import Request
from pytest_torchlens.history.graph import Node


def warn_of_returned_arguments(request: Request, live: bool, stacklevel: int) -> None:
    """Warn of each edit that several operations see, of which some may have read the argument alone."""
    for key, places in request.places_by_key.items():
        for place in places:
            for text in _texts(request, key, place, live):
                warnings.warn(f"edit: {text}", stacklevel=stacklevel)


def _texts(request: Request, key: Any, place: Place, live: bool) -> Iterator[str]:
    nodes = [node for node in request.whole.history.nodes if node.value is place.value and node.kind != "output"]
    if place.consumer is not None or not nodes or len(nodes[0].children) < 2:  # noqa: PLR2004 - one reads the result
        return
    label, readers = place.label, ", ".join(child.label for child in nodes[0].children)
    name = key.key if isinstance(key, Part) else key[0] if isinstance(key, tuple) else key
    if _is_identity(request, name, place):
        yield (
            f"{name} returned its argument, {label}: the edit is of {label}, for all that read it ({readers}); "
            f"({label!r}, operation) edits it for one of them, and {label!r} is the same without this warning"
        )
    elif not live and _is_argument(nodes[0]):
        yield (
            f"{label} returned its argument: a replay edits it for all that read it later ({readers}); live=True for "
            "those that read the result"
        )


def _is_identity(request: Request, name: Any, place: Place) -> bool:
    """Return whether a key is the address of a module that returned a tensor that it was given."""
    calls = [
        call for call in request.whole.recording.module_calls if name in (call.address, f"{call.address}:{call.number}")
    ]
    return any(
        _has(call.inputs, place) and _has(call.outputs, place) and place.value.call < call.first for call in calls
    )


def _has(values: Iterable[Any], place: Place) -> bool:
    return any(value is place.value for value in values)


def _is_argument(node: Node) -> bool:
    """Return whether an operation returned its argument, and did not write to it."""
    call = node.call
    if call is None or not call.returned or node.value.slot in call.writes:
        return False
    return any(value_of(read).slot == node.value.slot for _, read in edges_in(call))
