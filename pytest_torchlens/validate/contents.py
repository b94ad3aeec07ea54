"""What can be reached from a model and its inputs: noted as it is, and put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_torchlens.capture.leaves import ATOMS
from pytest_torchlens.validate import holders
from pytest_torchlens.validate import stateful

_ATOMS = ATOMS - {type, type(lambda: None), torch.Generator}
_OF_TORCH = ("", "_parameters", "_buffers", "_modules")

Path = tuple[Any, ...]
"""The path of what holds a thing, and the name that it has there; of a root, the name alone."""


class Contents:
    """What can be reached from some roots, as it is now.

    Parameters
    ----------
    roots
        Where to begin, by names for people: ``{"attribute": model, "input": {0: x}}``.

    Attributes
    ----------
    tensors
        The tensors that were reached, by names for people; what is in them is not noted.
    """

    def __init__(self, roots: dict[str, Any]) -> None:
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self._holders: list[Callable[[], None]] = []
        self._stateful: list[tuple[Path, Any, stateful.PutBack]] = []
        self._used_up: list[tuple[Path, Any, Any]] = []
        self._kinds: dict[type, tuple[Any, Any]] = {}
        seen: dict[int, Any] = {}
        ahead: list[tuple[Path, Any]] = [((name,), root) for name, root in roots.items()]
        while ahead:  # no recursion: what users hold may be linked for long
            path, value = ahead.pop()
            if type(value) not in _ATOMS and id(value) not in seen:
                seen[id(value)] = value
                ahead += [((path, name), part) for name, part in self._note(path, value)]

    def _note(self, path: Path, value: Any) -> holders.Parts:
        """Note a value, and return what it holds."""
        if isinstance(value, torch.Tensor):
            self.tensors.append((said(path, value), value))
            return [("", vars(value))]
        if stateful.is_used_up(value):
            self._used_up.append((path, value, stateful.progress(value)))
            return []
        kind = type(value)
        if kind not in self._kinds:
            self._kinds[kind] = stateful.kinds_of(kind), holders.kinds_of(kind)
        states, holds = self._kinds[kind]
        own = (note(value) for note in states)
        self._stateful += [(path, value, put_back) for put_back in own if put_back is not None]
        held = [note(value) for note in holds]
        self._holders += [each.restore for each in held if each.restore is not None]
        return [part for each in held for part in each.parts]

    def restore(self) -> None:
        """Make all that holds others hold what it held."""
        for restore in self._holders:
            restore()

    def restore_states(self) -> list[str]:
        """Put back what has a state of its own; return what could not be."""
        lost = [(path, value) for path, value, put_back in self._stateful if not put_back()]
        return [said(path, value) for path, value in lost]

    def once(self, root: str) -> list[str]:
        """Return what was reached from a root and can be read only once."""
        return [said(path, value) for path, value, _ in self._used_up if _root(path) == root]

    def used_up(self, maybe: bool = False) -> list[str]:
        """Return what can be read only once and has been read since; with `maybe`, also what may have been."""
        read = [(path, value, (at, stateful.progress(value))) for path, value, at in self._used_up]
        return [said(path, value) for path, value, (at, now) in read if at != now or (maybe and at is None)]


def _root(path: Path) -> Any:
    while len(path) > 1:
        path = path[0]
    return path[0]


def said(path: Path, value: Any) -> str:
    """Return a name for people: ``"attribute 'head.cache'"``, and of what kind it is."""
    names = []
    root = path
    while len(root) > 1:
        root, name = root
        name = str(name) if isinstance(name, str | int) else type(name).__name__
        names += [] if name in _OF_TORCH else [name]
    return f"{root[0]} {'.'.join(reversed(names))!r} ({type(value).__name__})"
