"""Finds the tensors that a thread outside the recording made or wrote, by one more run of the model.

The recorder sees the thread that runs the model, and the threads that it starts.  In this run all tensors that
functions of the model return are of a subclass that sees each function called on them, and on what comes of them, in
any thread.  Tensors from before the run keep their class, for other threads may be using them: what a thread does with
a parameter, a buffer or an input itself is not seen, only what it does with a view of it that the model gave to it.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import weakref
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pytest_torchlens.capture.dispatch_watch import frames_from
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.history.source import first_model_place
from pytest_torchlens.records import Failure
from pytest_torchlens.records import SourcePlace
from pytest_torchlens.validate.causes import ARGUMENT

Tensors = tuple[torch.Tensor, ...]


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
    """Makes the tensors of a run members of a subclass that reports each function called on them.

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
        self._before = {id(thing) for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)}
        self._done: dict[int, tuple[torch.Tensor, str]] = {}
        """By memory: a tensor over it that such a thread made or wrote, and in words what it did."""
        self._changed: list[weakref.ref[torch.Tensor]] = []
        self._over = False
        self._lock = threading.RLock()
        """Held while a tensor's class changes: a call of another thread may end after the run."""
        self._class = type("Tensor", (torch.Tensor,), {"__torch_function__": classmethod(self._see_call)})

    def _see_call(self, cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        mixed = any(kind not in (torch.Tensor, self._class) for kind in types)
        plain = mixed or self._over or getattr(func, "__name__", "") in _LOOK_AT_CLASS
        if plain:
            self._release(tensors((args, kwargs)))
        if mixed:
            return func(*args, **kwargs)  # by the rules of the other class
        with torch._C.DisableTorchFunctionSubclass():
            if plain or threading.get_ident() == self._model_thread:
                return func(*args, **kwargs)
            return self.call(func, args, kwargs)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """See all functions that this thread calls inside the block, and those called on what they return."""
        try:
            with _ModelThread(self):
                yield
        finally:
            with self._lock:
                self._over = True
                self._release([changed for ref in self._changed if (changed := ref()) is not None])

    def _release(self, seen: Iterable[torch.Tensor]) -> None:
        for tensor in seen:
            if type(tensor) is self._class:
                tensor.__class__ = torch.Tensor

    def _see(self, given: Tensors, returned: Tensors) -> None:
        """See the functions that will be called on new tensors."""
        known = set(map(id, given))
        for tensor in returned:
            is_new = id(tensor) not in self._before and id(tensor) not in known
            if is_new and type(tensor) in (torch.Tensor, self._class):
                self._changed.append(weakref.ref(tensor))
                tensor.__class__ = self._class

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a function; note what it read and wrote, and see what it returns."""
        with torch._C.DisableTorchFunctionSubclass():
            given = tensors((args, kwargs))
            if threading.get_ident() == self._model_thread:
                self._note_reads(given)
            versions = list(map(_version, given))
        result = func(*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            written = [one for one, version in zip(given, versions, strict=True) if _version(one) != version]
            self._note_result(func, given, tensors(result), written)
        return result

    def _note_result(self, func: Any, given: Tensors, returned: Tensors, written: list[torch.Tensor]) -> None:
        with self._lock:
            if self._over:
                self._release(returned)
                return
            if threading.get_ident() in self._outside:
                self._note_done(func, given, returned, written)
            else:
                for tensor in written:
                    self._done.pop(storage_key(tensor), None)
            if getattr(func, "__name__", "") != "__get__":  # an attribute, as the gradient, may be from before
                self._see(given, returned)

    def _note_done(self, func: Any, given: Tensors, returned: Tensors, written: list[torch.Tensor]) -> None:
        name, thread = getattr(func, "__name__", str(func)), threading.current_thread().name
        known = set(map(storage_key, given))
        made = [tensor for tensor in returned if storage_key(tensor) not in known]
        by_memory = {storage_key(tensor): label for label, tensor in self._members.items()}
        for word, done in (("made", made), ("wrote to", written)):
            for tensor in done:
                if key := storage_key(tensor):  # tensors without memory share no other key
                    self._done[key] = tensor, f"the thread {thread!r} {word} it, by {name}"
        for key in map(storage_key, written):
            if key and (label := by_memory.get(key)):
                self.findings.members[label] = self._done[key][1]

    def _note_reads(self, given: Tensors) -> None:
        done = next((entry[1] for tensor in given if (entry := self._done.get(storage_key(tensor)))), "")
        place = first_model_place(frames_from(sys._getframe(3))) if done else None
        if place is not None:
            self.findings.reads.setdefault(place, done)


class _ModelThread(TorchFunctionMode):
    """Sees the functions that the model's thread calls."""

    def __init__(self, seen: TensorsSeen) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():  # the compiler reads this method too
            return func(*args, **kwargs)
        return self._seen.call(func, args, kwargs)


_LOOK_AT_CLASS = frozenset(["__deepcopy__", "__format__", "__reduce_ex__", "__repr__"])
"""Methods of tensors whose result depends on the tensor's class."""


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version
