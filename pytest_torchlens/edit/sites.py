"""Where a call is in the run of a model: the same in another pass, also if that took another way before."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import CodeType
from typing import Any
from typing import NamedTuple

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture.calls import Frames
from pytest_torchlens.capture.calls import ModuleCall
from pytest_torchlens.history.source import position


class Statement(NamedTuple):
    """The place in the model's code from which a call is made.

    Attributes
    ----------
    module
        Address of the innermost module.
    function
        Name of the function that is called.
    places
        Code and place in its source for each frame from the module's forward down to the call.  Places are used rather
        than instructions because Python 3.11 puts a call at another instruction once it has run often.
    """

    module: str
    function: str
    places: tuple[Any, ...]


class Site(NamedTuple):
    """One call among those of a statement.

    Attributes
    ----------
    statement
        The statement.
    number
        Number of the call of its module, from 1.
    ordinal
        Number of the call among those of the statement in this call of the module, from 0.
    """

    statement: Statement
    number: int
    ordinal: int


class Sites:
    """Counts calls, and so finds the site of each."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[Statement, int]] = Counter()

    def next(self, module: ModuleCall | None, function: str, frames: Frames) -> Site:
        """Return the site of a call that is about to be made."""
        address, number = (module.address, module.number) if module is not None else ("", 0)
        statement = Statement(address, function, _places(of_model(frames)))
        return Site(statement, number, self._counts[statement, number])

    def count(self, site: Site) -> None:
        """Note that a call was made."""
        self._counts[site.statement, site.number] += 1


def sites_of(recording: Recording) -> list[Site]:
    """Return the site of each call."""
    sites, found = Sites(), []
    for call in recording.calls:
        found.append(site := sites.next(call.module, call.info.name, call.frames))
        sites.count(site)
    return found


_OURS = str(Path(__file__).parents[1])


def of_model(frames: Frames) -> Frames:
    """Return code positions without those of our own functions, which differ between recording and editing."""
    pairs = zip(frames[::2], frames[1::2], strict=True)
    return tuple(each for pair in pairs if not _is_ours(pair[0]) for each in pair)


def _places(frames: Frames) -> tuple[Any, ...]:
    pairs: Any = zip(frames[::2], frames[1::2], strict=True)
    return tuple([(code, position(code, at) or at) for code, at in pairs])


def _is_ours(code: object) -> bool:
    return isinstance(code, CodeType) and code.co_filename.startswith(_OURS)
