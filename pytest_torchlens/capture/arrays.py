"""Memory that arrays of Python's stand on: what is written through them calls no function of torch."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable

import numpy as np
import torch

from pytest_torchlens.capture.fingerprint import fingerprint


@dataclasses.dataclass
class _Exposure:
    """A tensor that somebody has an array over, the tensor's digest, and the array, if it is known when it goes."""

    tensor: torch.Tensor
    digest: str
    array: weakref.ref[np.ndarray] | None


class Arrays:
    """Tensors with an array over their memory, looked at for changes until the array is gone.

    Parameters
    ----------
    changed
        Called with a tensor that was written to.
    """

    def __init__(self, changed: Callable[[torch.Tensor], None]) -> None:
        self._changed = weakref.WeakMethod(changed)
        self._over: dict[int, list[_Exposure]] = {}
        self._gone: list[weakref.ref[np.ndarray]] = []

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._over)

    def __contains__(self, key: int) -> bool:
        """Whether there are any over some memory."""
        return key in self._over

    def add(self, tensor: torch.Tensor, key: int, array: object) -> None:
        """Note that there is an array over a tensor's memory; for good, if `array` is none of NumPy's."""
        # views of an array hold it
        ref = weakref.ref(array, self._gone.append) if isinstance(array, np.ndarray) else None
        self._over.setdefault(key, []).append(_Exposure(tensor, fingerprint(tensor), ref))

    def look(self, key: int) -> None:
        """Tell of writes to some memory since the last look, and to the memory of arrays that are gone."""
        if self._gone:
            self._forget()
        for exposure in self._over.get(key, ()):
            self._compare(exposure)

    def look_at_all(self) -> None:
        """Tell of all writes since the last looks."""
        for exposures in list(self._over.values()):
            for exposure in exposures:
                self._compare(exposure)

    def refresh(self, key: int) -> None:
        """Take the present contents of some memory for known: a recorded call wrote them."""
        for exposure in self._over.get(key, ()):
            exposure.digest = fingerprint(exposure.tensor)

    def _compare(self, exposure: _Exposure) -> None:
        now = fingerprint(exposure.tensor)
        if now != exposure.digest and (changed := self._changed()) is not None:
            exposure.digest = now
            changed(exposure.tensor)

    def _forget(self) -> None:
        """Look a last time at what arrays that are gone stood on."""
        gone, self._gone[:] = list(self._gone), []
        for key, exposures in list(self._over.items()):
            for exposure in [exposure for exposure in exposures if exposure.array in gone]:
                self._compare(exposure)
                exposures.remove(exposure)
            if not exposures:
                del self._over[key]


def is_copy(array: object) -> bool:
    """Return whether an array has memory of its own, as one that was converted to another type."""
    return isinstance(array, np.ndarray) and array.flags.owndata
