"""Finds the first tensor known over a memory, of which other tensors over it are views."""

from __future__ import annotations

import weakref

import torch

from pytest_torchlens.capture.memory import rekey
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.capture.values import Value
from pytest_torchlens.capture.wrappers import inner_tensors

Entry = tuple["weakref.ref[torch.Tensor]", Value, int, int]
"""Tensor, its current value, its storage key, and the number of the call that made the value."""
Memories = dict[int, "weakref.ref[torch.UntypedStorage]"]
"""The memory that was last seen at each storage key."""


class Owners:
    """The first tensor known over each memory; a later one where it is gone.

    Parameters
    ----------
    live
        The entries of the known tensors by id.  Python reuses ids: the entry of a tensor that is gone is replaced.

    Attributes
    ----------
    are_known
        Whether there is an index.  The first question builds it: most models need none.
    """

    def __init__(self, live: dict[int, Entry]) -> None:
        self._live = live
        self._replaced: dict[int, Entry] = {}
        self._by_memory: dict[int, Entry] = {}
        self.are_known = False

    def forget(self) -> None:
        """Build the index anew at the next question: a known tensor has other memory now, or is let go."""
        self.are_known = False
        self._by_memory = {}

    def follow_move(self, old: int, new: int) -> None:
        """Find at `new` what was over memory `old`."""
        rekey(self._replaced, old, new)
        self.forget()

    def note(self, entry: Entry) -> None:
        """Add a tensor to the index, unless an earlier one is over its memory."""
        if (tensor := entry[0]()) is not None and inner_tensors(tensor):
            return  # what is over a wrapper's memory is no view of it, but of the tensors that it holds
        owner = self._by_memory.get(entry[2])
        if owner is None or owner[0]() is None or owner[0] is entry[0]:
            self._by_memory[entry[2]] = entry

    def note_gone(self, entry: Entry, memories: Memories) -> None:
        """Keep an entry about to be replaced if its memory outlives its tensor, in a storage or an unknown tensor."""
        memory = memories.get(entry[2])
        if memory is not None and memory() is not None:
            self._replaced[entry[2]] = entry

    def over(self, key: int) -> Entry | None:
        """Return the entry of the first tensor known over this memory."""
        if not self.are_known:
            self._build()
        owner = self._by_memory.get(key) if key else None
        tensor = None if owner is None else owner[0]()
        # it may have other memory by now, through code that is not recorded
        return None if tensor is not None and storage_key(tensor) != key else owner

    def _build(self) -> None:
        self.are_known = True
        self._by_memory = dict(self._replaced)
        for entry in sorted(self._live.values(), key=lambda one: one[1].slot):  # their order depends on addresses
            self.note(entry)
