"""Gives a model that runs once more other inputs, parameters and buffers, wherever it holds them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Source
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.capture.memory import duplicate
from pytest_torchlens.capture.memory import with_layout
from pytest_torchlens.capture.storage import Extent
from pytest_torchlens.capture.storage import overlap
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.edit.request import Request
from pytest_torchlens.history.history_options import Arguments
from pytest_torchlens.replay import NotReplayableError


class EditedSources:
    """The tensors that take the place of edited inputs, parameters and buffers.

    The model may hold an edited one elsewhere, too, or a view of its memory (``self.alias = self.weight.data``).  A
    call that reads it there gets the same part of the new tensor, as in the record, where all of it is one source.

    Parameters
    ----------
    recording
        That of the pass without edits.
    requests
        The edits, of which each sees what those before it made.
    """

    def __init__(self, recording: Recording, requests: Iterable[Request]) -> None:
        found: dict[tuple[str, str], tuple[torch.Tensor, torch.Tensor]] = {}
        for request in requests:
            for key, source in request.of_sources().items():
                name = source.kind, source.name
                live, now = found.get(name, (source.live, None))
                former = partial(_former, source) if now is None else now.clone
                found[name] = live, request.swaps[key].tensor(former)
        self._new = {id(live): new for live, new in found.values()}
        self._by_memory = {storage_key(live): (live, new) for live, new in found.values() if storage_key(live)}
        self._separate = {id(source.live): source.live for source in recording.sources}
        """The tensors that are sources by themselves, whatever memory they share."""
        self._views: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def put_into(self, model: torch.nn.Module) -> None:
        """Put the new parameters and buffers into the modules; their former ones are the caller's to put back."""
        for _, module in named_modules(model) if self._new else ():
            for home in (module._parameters, module._buffers):
                home.update({name: self._new[id(each)] for name, each in home.items() if id(each) in self._new})  # type: ignore[misc]

    def in_arguments(self, arguments: Arguments) -> Arguments:
        """Return arguments with the new tensors in the place of those that they replace."""
        if not self._new:
            return arguments
        args, kwargs = (substitute(each, self.in_place_of) for each in arguments)
        return args, kwargs

    def in_place_of(self, leaf: Any) -> Any:
        """Return the new tensor in the place of one that it replaces, or of a part of it; anything else itself."""
        if not is_a(leaf, torch.Tensor):
            return leaf
        if id(leaf) in self._new:
            return self._new[id(leaf)]
        live, new = self._by_memory.get(storage_key(leaf), (None, None))
        if live is None or new is None or id(leaf) in self._separate:
            return leaf
        if id(leaf) not in self._views:
            self._views[id(leaf)] = leaf, _same_part(leaf, live, new)
        return self._views[id(leaf)][1]


def _former(source: Source) -> torch.Tensor:
    """Return a copy of a source as it was before the pass; gradients flow through it, unless the pass overwrote it."""
    if source.written or not source.live.requires_grad:
        return contents_before(source)
    with torch.enable_grad():
        return source.live.clone()


def contents_before(source: Source) -> torch.Tensor:
    """Return a copy of a source as it was before the pass."""
    return duplicate(source.value.tensor if source.value.tensor is not None else source.live)


def _same_part(leaf: torch.Tensor, live: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Return the part of a new tensor that `leaf` is of the one that it replaces; `leaf` itself if it is no part."""
    with torch._C.DisableTorchFunction():
        part, whole = Extent.of(leaf), Extent.of(live)
        if part is None or whole is None or not overlap(part, whole):
            return leaf
        if leaf.dtype != live.dtype or part.start < whole.start or part.stop > whole.stop:
            raise NotReplayableError(
                "edit: in a live run, the model reads memory of an edited tensor with more around it, or as another "
                "dtype: live=False edits the recorded pass"
            )
        new = new.detach() if new.stride() == live.stride() else with_layout(new.detach(), live.stride())
        offset = leaf.storage_offset() - live.storage_offset() + new.storage_offset()
        return new.as_strided(leaf.shape, leaf.stride(), offset)
