"""Keeps what is known of the costs of a recording for other passes that make the same calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from typing import Generic
from typing import TypeVar

from pytest_torchlens.capture import Recording

_T = TypeVar("_T")


class Once(Generic[_T]):
    """Finds something of a recording, but only once for passes that make the same calls with outputs of the same kinds.

    Parameters
    ----------
    find
        Returns it; what it raises passes through.
    """

    def __init__(self, find: Callable[[Recording], _T]) -> None:
        self._find = find
        self._known: tuple[list[Any], _T] | None = None

    def __call__(self, recording: Recording) -> _T:
        """Return it for a recording."""
        calls = _calls_of(recording)
        if self._known is None or self._known[0] != calls:
            self._known = calls, self._find(recording)
        return self._known[1]

    def note(self, recording: Recording, found: _T) -> None:
        """Note what was found of a recording."""
        self._known = _calls_of(recording), found


def _calls_of(recording: Recording) -> list[Any]:
    return [(call.info.name, *((one.shape, one.dtype) for one in call.outputs)) for call in recording.calls]
