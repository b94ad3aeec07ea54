"""Finds the tensors that a thread outside the recording made or wrote, by one more run of the model.

The recorder sees the thread that runs the model, and the threads that it starts.  In this run all tensors of the model
and its inputs are of a subclass that sees each function called on them, and on what comes of them, in any thread.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import Any

import torch

from pytest_torchlens.capture.dispatch_watch import frames_from
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.history.source import first_model_place
from pytest_torchlens.records import Failure
from pytest_torchlens.records import SourcePlace
from pytest_torchlens.validate.causes import ARGUMENT


@dataclass
class ThreadFindings:
    """What threads outside the recording made or wrote that the model's thread read."""

    reads: dict[SourcePlace, str] = field(default_factory=dict)
    """Lines at which the model's thread reads such a tensor, and in words what was done to it."""
    members: dict[str, str] = field(default_factory=dict)
    """The same for parameters, buffers and inputs that were written, by kind and name."""

    def explain(self, failure: Failure) -> Failure:
        """Return a failure with the thread as its cause, if it is about a tensor that a thread made or wrote."""
        done = self.reads.get(failure.source_place) if failure.source_place is not None else self._of_member(failure)
        if not done or not (failure.cause == "" or failure.cause.startswith(ARGUMENT)):
            return failure
        return replace(failure, cause=f"{failure.cause}: {done}" if failure.cause else done)

    def _of_member(self, failure: Failure) -> str:
        return next((done for label, done in self.members.items() if failure.message.startswith(f"{label} ")), "")


class TensorsSeen:
    """Makes tensors members of subclasses that report each function called on them.

    Parameters
    ----------
    members
        Parameters, buffers and inputs by kind and name.
    """

    def __init__(self, members: dict[str, torch.Tensor]) -> None:
        self.findings = ThreadFindings()
        self._members = members
        self._model_thread = threading.get_ident()
        self._outside = {thread.ident for thread in threading.enumerate()} - {self._model_thread}
        """Threads that ran before; those that the model starts are recorded."""
        self._done: dict[int, tuple[torch.Tensor, str]] = {}
        """By memory: a tensor over it that such a thread made or wrote, and in words what it did."""
        self._changed: list[tuple[weakref.ref[torch.Tensor], type]] = []
        self._classes = {kind: self._subclass(kind) for kind in (torch.Tensor, torch.nn.Parameter)}

    def _subclass(self, kind: type[torch.Tensor]) -> type[torch.Tensor]:
        def see(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with torch._C.DisableTorchFunctionSubclass():
                return self._call(func, args, kwargs or {})

        return type(kind.__name__, (kind,), {"__torch_function__": classmethod(see)})

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """See all functions that are called on these tensors inside the block."""
        for tensor in self._members.values():
            self._see(tensor)
        try:
            yield
        finally:
            for ref, kind in self._changed:
                if (changed := ref()) is not None:
                    changed.__class__ = kind

    def _see(self, tensor: torch.Tensor) -> None:
        kind = type(tensor)
        if kind in self._classes:
            self._changed.append((weakref.ref(tensor), kind))
            tensor.__class__ = self._classes[kind]

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        given = [tensor for _, tensor in [*walk(args), *walk(kwargs)]]
        thread = threading.get_ident()
        if thread == self._model_thread:
            self._note_reads(given)
        versions = list(map(_version, given))
        result = func(*args, **kwargs)
        returned = [tensor for _, tensor in walk(result)]
        written = [one for one, version in zip(given, versions, strict=True) if _version(one) != version]
        if thread in self._outside:
            self._note_done(func, given, returned, written)
        else:
            for tensor in written:
                self._done.pop(storage_key(tensor), None)
        for tensor in returned:
            self._see(tensor)
        return result

    def _note_done(
        self, func: Any, given: list[torch.Tensor], returned: list[torch.Tensor], written: list[torch.Tensor]
    ) -> None:
        name, thread = getattr(func, "__name__", str(func)), threading.current_thread().name
        known = set(map(storage_key, given))
        made = [tensor for tensor in returned if storage_key(tensor) not in known]
        for word, tensors in (("made", made), ("wrote to", written)):
            for tensor in tensors:
                self._done[storage_key(tensor)] = tensor, f"the thread {thread!r} {word} it, by {name}"
        by_memory = {storage_key(tensor): label for label, tensor in self._members.items()}
        for tensor in written:
            if label := by_memory.get(storage_key(tensor)):
                self.findings.members[label] = self._done[storage_key(tensor)][1]

    def _note_reads(self, given: list[torch.Tensor]) -> None:
        done = next((entry[1] for tensor in given if (entry := self._done.get(storage_key(tensor)))), "")
        place = first_model_place(frames_from(sys._getframe(3))) if done else None
        if place is not None:
            self.findings.reads.setdefault(place, done)


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version
