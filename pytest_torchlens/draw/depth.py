"""Down to which module a picture goes."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache

from pytest_torchlens.draw.options import NestingDepth
from pytest_torchlens.draw.options import OptionError
from pytest_torchlens.draw.surroundings import Path
from pytest_torchlens.records import address_of
from pytest_torchlens.records import nearest


class Depths:
    """Says which module calls are drawn as one node.

    Parameters
    ----------
    wanted
        As in `DrawOptions.vis_nesting_depth`.
    addresses
        Of the model's modules.

    Raises
    ------
    OptionError
        If a pattern fits no module.
    """

    def __init__(self, wanted: NestingDepth, addresses: Iterable[str]) -> None:
        self._addresses = frozenset(addresses)
        self._patterns = dict(wanted) if isinstance(wanted, Mapping) else {}
        self._whole = None if isinstance(wanted, Mapping) else wanted
        for pattern in self._patterns:
            if not any(fnmatchcase(address, pattern) for address in self._addresses):
                known = nearest(pattern, self._addresses)
                raise OptionError(f"vis_nesting_depth has {pattern!r}, which fits no module; {known}")
        self._left = cache(self._levels_left)

    def collapsed_at(self, path: Path, start: int) -> int | None:
        """Return the place in `path` of the module call that is drawn as one node; None where none is.

        The first `start` calls are open whatever is wanted: they are what the picture is about.
        """
        left = self._whole
        for place, call in enumerate(path):
            if place >= start:
                left = None if left is None else left - 1
            if (own := self._left(call)) is not None:
                left = own
            if left == 0 and place >= start:
                return place
        return None

    def _levels_left(self, call: str) -> int | None:
        """Return what the last pattern that fits says."""
        address = address_of(call, self._addresses)
        return next((n for pattern, n in reversed(self._patterns.items()) if fnmatchcase(address, pattern)), None)
