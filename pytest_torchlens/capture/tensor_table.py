"""Tracks which value each tensor holds, where the value came from, and what calls wrote to its memory since."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch._C._functorch import is_functorch_wrapped_tensor

from pytest_torchlens.capture.aliases import UNWRAP
from pytest_torchlens.capture.aliases import View
from pytest_torchlens.capture.aliases import in_class_of
from pytest_torchlens.capture.aliases import other_settings_of
from pytest_torchlens.capture.aliases import part_of
from pytest_torchlens.capture.aliases import values_of_sparse
from pytest_torchlens.capture.aliases import wrap_of
from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.calls import Recording
from pytest_torchlens.capture.fingerprint import digest_and_key
from pytest_torchlens.capture.fingerprint import fingerprint
from pytest_torchlens.capture.functions import FunctionInfo
from pytest_torchlens.capture.functions import info_of
from pytest_torchlens.capture.leaves import ATOMS
from pytest_torchlens.capture.leaves import UnpackedObject
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.leaves import unpacked
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.memory import Arrays
from pytest_torchlens.capture.memory import Retention
from pytest_torchlens.capture.memory import copy_of_array
from pytest_torchlens.capture.memory import duplicate
from pytest_torchlens.capture.memory import is_copy
from pytest_torchlens.capture.memory import rekey
from pytest_torchlens.capture.origins import Makers
from pytest_torchlens.capture.origins import is_foreign
from pytest_torchlens.capture.owners import Entry
from pytest_torchlens.capture.owners import Owners
from pytest_torchlens.capture.storage import Extent
from pytest_torchlens.capture.storage import address_of
from pytest_torchlens.capture.storage import is_fake
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.capture.storage import storage_of
from pytest_torchlens.capture.values import PLAIN
from pytest_torchlens.capture.values import Aliased
from pytest_torchlens.capture.values import Source
from pytest_torchlens.capture.values import Value
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.capture.values import version_of
from pytest_torchlens.capture.wrappers import OTHER_PART
from pytest_torchlens.capture.wrappers import HeldByWrapper
from pytest_torchlens.capture.wrappers import held_tensors
from pytest_torchlens.capture.wrappers import inner_tensors
from pytest_torchlens.capture.wrappers import is_wrapper
from pytest_torchlens.capture.wrappers import numbers_in
from pytest_torchlens.capture.wrappers import parts_of
from pytest_torchlens.capture.write_log import WriteLog

ARRAY = "an array, written to by Python"
"""Name of the source for contents that another library wrote to a tensor's memory."""
_DETACH = info_of(torch.Tensor.detach)
Tensor = torch.Tensor
Parameter = torch.nn.Parameter
Named = dict[int, tuple[Tensor, str, str]]

# our own operations on a tensor must not call the ``__torch_function__`` of its class, or of a mode
torch_function_disabled = torch._C.DisableTorchFunction


class UntracedTensorError(Exception):
    """A tensor belongs to a function transform whose start was not recorded: calls with it cannot be recorded."""


class TensorTable:
    """The tensors of a recording and the values they hold.  Python reuses ids, so each entry checks its tensor.

    Parameters
    ----------
    recording
        Receives the sources.
    retention
        Saves the tensors of sources.
    keep
        Whether `retention` saves the tensor of every value too.
    named
        Parameters and buffers by id: the tensor, ``"parameter"`` or ``"buffer"``, its address.
    record_view
        Records a view; called with function, arguments and tensor when no recorded call made a tensor but its memory
        is known.
    record_write
        Records a write; called with tensor and current contents when an array over its memory was written to.
    """

    def __init__(
        self,
        recording: Recording,
        retention: Retention,
        keep: bool,
        named: Named,
        record_view: Callable[[View, Tensor], None],
        record_write: Callable[[Tensor, Tensor], None],
    ) -> None:
        self._recording = recording
        self._keep = retention.keep_output if keep else None
        self._named = dict(named)
        self._set: dict[int, tuple[weakref.ref[Tensor], str]] = {}
        self._let_go: dict[int, tuple[Value, int, int]] = {}
        self.set_callbacks(record_view, record_write)
        self._live: dict[int, Entry] = {}
        self._owners = Owners(self._live)
        self._named_memory: dict[int, Tensor] | None = None
        self._unpacked: dict[int, UnpackedObject] = {}
        self._writes: dict[int, WriteLog] = {}
        self.reads_of_bases: dict[int, Aliased] = {}  # by the number of the call that returned a view
        self._views_of: dict[int, list[int]] = {}  # these calls by the slot of the base
        self._retention = retention
        self._parts: dict[int, tuple[tuple[int, ...], Any]] = {}
        """The tensors that each wrapper holds, and its numbers, by its id."""
        self._held_by: dict[int, set[int]] = {}
        """Storage keys of the wrappers that hold other memory too, by its key."""
        self._wrapped: dict[int, tuple[weakref.ref[Tensor], Entry, int]] = {}
        self._arrays = Arrays(self._array_changed)
        self._memory: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.slots = 0
        self.parameters_too = False
        """Whether parameters get a fingerprint: they are large, and their version counters show most writes."""
        self.knows_fakes = False
        """Whether fake tensors are recorded: the model or its inputs are some, or a mode around the pass makes them."""
        self.makers: Makers | None = None
        """The operations that allocated memory, if the dispatcher is watched."""

    def set_callbacks(
        self, record_view: Callable[[View, Tensor], None], record_write: Callable[[Tensor, Tensor], None]
    ) -> None:
        """Set the functions that record views and writes."""
        # weak references, to avoid a cycle: recorded data must be freed with the recording
        self._record_view = weakref.WeakMethod(record_view)
        self._record_write = weakref.WeakMethod(record_write)

    def template(self, arg: Any) -> Any:
        """Return an argument with its value in place of each tensor."""
        kind = type(arg)
        if kind is Tensor or kind is Parameter:
            return self.read(arg)
        if kind in ATOMS:
            return arg
        if (kind is tuple or kind is list) and ATOMS.issuperset(map(type, arg)):
            return kind(arg)
        return substitute(arg, self._swap)

    def _swap(self, leaf: Any) -> Any:
        if is_a(leaf, Tensor):
            return leaf if is_lazy(leaf) else self.read(leaf)
        if type(leaf) in ATOMS or type(leaf) in (Value, Aliased):
            return leaf
        if is_a(leaf, np.ndarray):
            return copy_of_array(leaf)
        if is_a(leaf, (torch.UntypedStorage, torch.TypedStorage)):
            self._recording.detours.append((len(self._recording.calls), _STORAGE))
            return leaf
        outermost = not self._unpacked
        try:
            return unpacked(leaf, self.template, self._unpacked)
        except RecursionError:  # a chain longer than Python's stack is deep
            if outermost:
                return leaf
            raise
        finally:
            if outermost:
                self._unpacked.clear()

    def read(self, tensor: Tensor) -> Value | Aliased:
        """Return the value that a tensor holds now, with the writes that reached it through other tensors."""
        if self._arrays.over:
            with torch_function_disabled():
                for one in (tensor, *held_tensors(tensor)):
                    self._arrays.check(storage_key(one))
        entry = self._live.get(id(tensor))
        if entry is None or entry[0]() is not tensor:
            with torch_function_disabled():
                entry = self._register(tensor)
        elif self._parts and type(tensor) is not Tensor:
            entry = self._rewrapped(tensor, entry)
        return self._read_of(tensor, entry) if self._writes else entry[1]

    def recorded_values(self, value: Any) -> tuple[Value, ...]:
        """Return the recorded value of each tensor in `value`; skip tensors that were never recorded."""
        live = self._live
        entries = [(tensor, live.get(id(tensor))) for tensor in tensors(value)]
        return tuple([entry[1] for tensor, entry in entries if entry is not None and entry[0]() is tensor])

    def add_output(self, tensor: Tensor, number: int, place: int) -> Value:
        """Add output `place` of call `number`."""
        old = self._live.get(id(tensor))
        if old is not None and old[0]() is tensor:
            ref, slot = old[0], old[1].slot
        else:
            if old is not None:
                self._owners.note_gone(old, self._memory)
            ref, slot = weakref.ref(tensor), self.slots
            self.slots += 1
        value = Value(slot, number, place, tensor)
        value.digest, key = self._retention.digest_and_key(tensor, value)
        entry = self._live[id(tensor)] = (ref, value, key, number)
        if old is not None and ref is old[0] and key != old[2]:  # ``tensor.data = other``
            self._owners.forget()
        if type(tensor) is not Tensor:
            self._note_wrapper(entry, tensor)
        if self._owners.are_known:
            self._owners.note(entry)
        if self._keep is not None:
            self._keep(value, tensor, key)
            if key in self._arrays.over:
                self._retention.before_write(key)
        storage = tensor.untyped_storage() if type(value.digest) is int else storage_of(tensor)
        if storage is not None:
            self._memory[key] = weakref.ref(storage)
        return value

    def follow_move(self, tensor: Tensor) -> None:
        """Update the storage key of a tensor and its aliases after their memory moved."""
        entry = self._live.get(id(tensor))
        if entry is None or entry[2] == (key := storage_key(tensor)):
            return
        moved = {at: (ref, value, key, since) for at, (ref, value, old, since) in self._live.items() if old == entry[2]}
        self._live.update(moved)
        self._owners.follow_move(entry[2], key)
        rekey(self._writes, entry[2], key)
        rekey(self._memory, entry[2], key)
        self._retention.follow_move(entry[2], key)
        self._arrays.follow_move(entry[2], key)

    def expose(self, tensor: Tensor, array: object = None) -> None:
        """Watch an array over a tensor's memory: a write through it calls no torch function."""
        with torch_function_disabled():
            if (key := storage_key(tensor)) and not is_copy(array):
                self._retention.before_write(key)
                self._arrays.add(tensor, key, array)

    def _array_changed(self, tensor: Tensor) -> None:
        self.record_change(tensor, ARRAY)

    def check_for_change(self, tensor: Tensor, origin: str) -> None:
        """If a known tensor changed though no recorded call wrote to it, record the write."""
        if not self.accounts_for(tensor):
            with torch_function_disabled():
                self.record_change(tensor, origin)

    def accounts_for(self, tensor: Tensor) -> bool:
        """Return whether a tensor is known and still has its recorded contents (True where there is no fingerprint)."""
        entry = self._live.get(id(tensor))
        if entry is None or entry[0]() is not tensor:
            return False
        with torch_function_disabled():
            return self.read(tensor) is not entry[1] or entry[1].fingerprint in ("", fingerprint(tensor))

    def record_change(self, tensor: Tensor, origin: str) -> None:
        """Record a write of the contents that a tensor has now."""
        if (record_write := self._record_write()) is not None:
            self.add_source(contents := duplicate(tensor), "constant", origin)
            record_write(tensor, contents)

    def close(self) -> None:
        """Record the writes through arrays since the last reads."""
        with torch_function_disabled():
            self._arrays.check_all()

    def _with_writes(self, tensor: Tensor, entry: Entry, log: WriteLog) -> Value | Aliased:
        with torch_function_disabled():
            return log.read(entry[1], entry[3], Extent.of(tensor))

    def narrow_read(self, call: Call, output: Tensor) -> None:
        """If a call returned a view of its first argument, reduce its reads to the writes that overlap the view."""
        _, _, key, number = self._live[id(output)]
        log, read = self._writes.get(key), call.args[0]
        if log is None or not call.may_be_view or type(read) not in (Value, Aliased):
            return
        part, of_base = log.read_of_part(read, self.reads_of_bases.get(value_of(read).call), Extent.of(output))
        call.args = (part, *call.args[1:])
        if of_base is not None:
            self.reads_of_bases[number] = of_base
            self._views_of.setdefault(of_base.base.slot, []).append(number)

    def forget(self, tensor: Tensor) -> None:
        """Forget a tensor that ``set_`` has put over other memory, which it may share with another tensor."""
        self._live.pop(id(tensor), None)
        self._named.pop(id(tensor), None)
        self._named_memory = None
        self._owners.forget()
        self.note_set(tensor)
        if storage_key(tensor) > 0 and self._is_over_known_memory(tensor):  # later, the tensors over it may be gone
            self.read(tensor)

    def note_set(self, tensor: Tensor, origin: str = "memory from Tensor.set_") -> None:
        """Note that ``set_`` has put a tensor over memory, which no recorded call may have made."""
        self._set[id(tensor)] = weakref.ref(tensor), origin

    def before_resize(self, storage: torch.UntypedStorage) -> tuple[Tensor | None, Value | Aliased | None]:
        """Return a known tensor over a storage, and its read, after copying the saved tensors over it; else None."""
        key = storage.data_ptr() or -storage._cdata
        tensor = self.tensor_over(key)
        if tensor is None:
            return None, None
        read = self.read(tensor)
        self._retention.before_write(key)
        return tensor, read

    def tensor_over(self, key: int) -> Tensor | None:
        """Return a known tensor over the memory of this address; None if there is none."""
        entry = self._owners.over(key) or self._registered_over(key)
        return None if entry is None else entry[0]()

    def over_all_of(self, storage: torch.UntypedStorage) -> Tensor:
        """Return a tensor over all of a storage, of the dtype of a tensor that is known there; else of bytes."""
        is_new, key = torch._C._storage_Use_Count(storage._cdata) == 1, storage.data_ptr()
        known = self.tensor_over(key)
        if known is None:  # ``set_`` may have put a tensor there that no call has read yet
            noted = (ref() for ref, _ in self._set.values())
            known = next((one for one in noted if one is not None and key and storage_key(one) == key), None)
        if known is not None:
            self.read(known)
        fits = known is not None and not known.is_quantized and storage.nbytes() % known.itemsize == 0
        dtype = known.dtype if known is not None and fits else torch.uint8
        over = torch.empty(0, dtype=dtype, device=storage.device).set_(storage)
        if is_new:  # no tensor is over it
            self.note_set(over, "a new storage")
        return over

    def let_go(self, pair: tuple[Tensor, ...]) -> tuple[Value | Aliased, ...]:
        """Return the reads of tensors, and drop the weak references to them until `take_back`."""
        reads = tuple(map(self.read, pair))
        for tensor in pair:
            _, value, key, since = self._live[id(tensor)]
            self._retention.before_write(key)
            self._let_go[id(tensor)] = value, key, since
        self.drop(pair)
        return reads

    def drop(self, objects: tuple[Any, ...]) -> None:
        """Drop the weak references to tensors."""
        for tensor in objects:
            self._live.pop(id(tensor), None)
        self._owners.forget()

    def take_back(self, pair: tuple[Tensor, ...]) -> None:
        """Know tensors again that `let_go` dropped."""
        for tensor in pair:
            self._live[id(tensor)] = (weakref.ref(tensor), *self._let_go.pop(id(tensor)))

    def log_writes(self, call: Call, number: int, written: tuple[Tensor, ...]) -> None:
        """Note that call `number` overwrote these tensors: later reads of the same memory depend on it."""
        by_slot = {value.slot: value for value in call.outputs}
        slots = []
        for target in written:
            entry = self._live[id(target)]
            slots.append(entry[1].slot)
            value = by_slot.get(entry[1].slot, call.outputs[0])
            key = storage_key(target)
            log = self._writes.get(key)
            if log is None:
                log = self._writes[key] = WriteLog()
            log.add(number, value, Extent.of(target))
            if key in self._arrays.over:
                self._retention.before_write(key)
                self._arrays.refresh(key)
        if any(map(self._changes_other_parts, written)):
            self._recording.detours.append((number, OTHER_PART))
        call.writes = tuple(slots)
        for view in [view for slot in slots for view in self._views_of.pop(slot, ())]:
            del self.reads_of_bases[view]

    def _changes_other_parts(self, tensor: Tensor) -> bool:
        """Return whether a known tensor of a wrapper, after the first, has not its recorded contents any more."""
        known = [part for part in held_tensors(tensor)[1:] if self._is_known(part)]
        return any(self._live[id(part)][1].fingerprint not in ("", fingerprint(part)) for part in known)

    def about_to_write(self, info: FunctionInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
        """Return the tensors that the call will overwrite, after copying the saved tensors over the same memory."""
        written = info.writer(args, kwargs) if info.writer is not None else ()
        if "out" in kwargs:
            written += tensors(kwargs["out"])
        written = tuple([target for target in written if not is_lazy(target)])
        self.before_write(written)
        return written

    def before_write(self, tensors: Iterable[Tensor]) -> None:
        """Copy the saved tensors over the memory of `tensors`, which may be overwritten next."""
        with torch_function_disabled():
            for key in [storage_key(part) for tensor in tensors for part in (tensor, *held_tensors(tensor))]:
                for saved in (key, *self._held_by.get(key, ())):
                    self._retention.before_write(saved)

    def tensor_in(self, slot: int) -> Tensor | None:
        """Return the tensor object of this number; None if it is gone."""
        return next((ref() for ref, value, *_ in self._live.values() if value.slot == slot), None)

    def live(self) -> list[Tensor]:
        """Return the tensors that the recording knows and that exist now."""
        return [tensor for ref, *_ in self._live.values() if (tensor := ref()) is not None]

    def _register(self, tensor: Tensor) -> Entry:
        """Find the origin of a tensor that no recorded call made, and add it."""
        named = self._named.get(id(tensor))
        if named is not None and named[0] is tensor:
            return self.add_source(tensor, named[1], named[2])
        if is_functorch_wrapped_tensor(tensor) or (is_fake(tensor) and not self.knows_fakes):
            raise UntracedTensorError
        if is_wrapper(tensor) and any(map(self._is_over_known_memory, inner_tensors(tensor))):
            return self._view_entry(wrap_of(tensor, self.template(parts_of(tensor))), tensor)
        if self._wrapped and (unwrapping := self._unwrapping(tensor)) is not None:
            return self._view_entry(unwrapping, tensor)
        key = storage_key(tensor)
        owner = self._owners.over(key) or self._registered_over(key)
        if owner is None:
            return self.add_source(tensor, "constant", self._origin_of(tensor))
        whole = owner[0]()
        detaches = type(tensor) is not Parameter  # which is made without following gradients
        if detaches and whole is not None and whole.requires_grad and not tensor.requires_grad:
            detached = whole.detach()
            owner = self._view_entry((_DETACH, (self.read(whole),)), detached)
        view = self._as_view(tensor, owner[0], owner[1])
        return self.add_source(tensor, "constant", "") if view is None else self._view_entry(view, tensor)

    def _is_known(self, tensor: Tensor) -> bool:
        return (entry := self._live.get(id(tensor))) is not None and entry[0]() is tensor

    def may_know(self, tensor: Tensor) -> bool:
        """Return whether a tensor is known, or belongs to the model and may be read later."""
        return self._is_known(tensor) or id(tensor) in self._named

    def _is_over_known_memory(self, tensor: Tensor) -> bool:
        return self._is_known(tensor) or self._owners.over(storage_key(tensor)) is not None

    def _note_wrapper(self, entry: Entry, tensor: Tensor) -> None:
        self._parts.pop(id(tensor), None)
        if parts := inner_tensors(tensor):
            held = held_tensors(tensor)
            self._parts[id(tensor)] = tuple(map(id, held)), numbers_in(tensor)
            for key in set(map(storage_key, held)) - {entry[2]}:
                self._held_by.setdefault(key, set()).add(entry[2])
            self._wrapped.update((id(part), (weakref.ref(part), entry, place)) for place, part in enumerate(parts))

    def _rewrapped(self, tensor: Tensor, entry: Entry) -> Entry:
        """Return the entry of a tensor: a new one for a wrapper that has other parts or numbers since, or contents.

        The memory of a wrapper is that of its first part, so only writes to the others are unknown.
        """
        with torch_function_disabled():
            held = held_tensors(tensor)
            others = set(map(storage_key, held)) - {entry[2]} if self._writes else ()
            is_written = any(key in self._writes and self._writes[key].latest > entry[3] for key in others)
            former, numbers = self._parts.get(id(tensor)) or (None, None)
            same = former is not None and self._holds_the_same(held, former)
            if former is None or (same and not is_written and numbers_in(tensor) == numbers):
                return entry
            read = self._read_of(tensor, entry)
            del self._live[id(tensor)]  # what it held before is another value
            if is_written or not same:
                return self._view_entry(wrap_of(tensor, self.template(parts_of(tensor))), tensor)
            new = self._view_entry(other_settings_of(tensor, read), tensor)
            self._parts[id(tensor)] = former, numbers_in(tensor)
            return new

    def _holds_the_same(self, held: tuple[Tensor, ...], former: tuple[int, ...]) -> bool:
        """Return whether a wrapper holds the tensors it held before, and perhaps some that only its class can make.

        They are a cache: a replay with the former parts fails if the class computes them from anything else.
        """
        new = [part for part in held if id(part) not in former]
        if len(held) - len(new) != len(former):
            return False
        return not any(self.may_know(part) or self._is_over_known_memory(part) or is_foreign(part) for part in new)

    def _read_of(self, tensor: Tensor, entry: Entry) -> Value | Aliased:
        """Return the value of an entry, with the writes since; `tensor` is over the same memory."""
        log = self._writes.get(entry[2])
        return entry[1] if log is None or log.latest <= entry[3] else self._with_writes(tensor, entry, log)

    def _unwrapping(self, tensor: Tensor) -> View | None:
        """Return the call that takes a tensor out of the last wrapper that held it, which may be gone; None if none."""
        ref, entry, place = self._wrapped.get(id(tensor), (None, None, 0))
        if ref is None or entry is None or ref() is not tensor:
            return None
        return UNWRAP, (self._read_of(tensor, entry), place)

    def _origin_of(self, tensor: Tensor) -> str:
        ref, origin = self._set.get(id(tensor), (None, ""))
        return origin if ref is not None and ref() is tensor else ""

    def _view_entry(self, view: View, tensor: Tensor) -> Entry:
        record_view = self._record_view()
        if record_view is not None:
            record_view(view, tensor)
        return self._live[id(tensor)]

    def add_source(self, tensor: Tensor, kind: str, name: str) -> Entry:
        """Add a tensor that no recorded call made, with its current value."""
        value = Value(self.slots, -1, len(self._recording.sources), tensor)
        self.slots += 1
        if kind != "parameter" or self.parameters_too:
            value.digest, key = digest_and_key(tensor, value)
        else:
            key = storage_key(tensor)
        self._retention.keep(value, tensor, key)
        if kind != "parameter":
            self._retention.watch(value, tensor)
        since = len(self._recording.calls) - 1
        source = Source(kind, name, value, tensor, version_of(tensor), since=since, memory=key)
        self._recording.sources.append(source)
        if is_wrapper(tensor):
            source.wrapper = HeldByWrapper(tensor)
        if kind == "constant":
            self._note_origin(source)
        entry = self._live[id(tensor)] = (weakref.ref(tensor), value, key, since)
        if self._parts or type(tensor) not in PLAIN:
            self._note_wrapper(entry, tensor)
        if self._owners.are_known:
            self._owners.note(entry)
        return entry

    def _note_origin(self, source: Source) -> None:
        """Note where the memory of a constant comes from; it may have other memory at the end."""
        source.foreign = is_foreign(source.live)
        if self.makers is not None:  # the recorder made those that have a name already
            source.maker, source.made_inside = (source.name, -1) if source.name else self.makers.of(source.live)
        if source.foreign and not source.name:
            self.expose(source.live)

    def _registered_over(self, key: int) -> Entry | None:
        """Add the parameter or buffer over this memory that no call has read yet; None if there is none.

        Of a wrapper, the tensor that it holds is taken out: no other tensor is a view of the wrapper.
        """
        if self._named_memory is None:
            tensors = [tensor for tensor, _, _ in self._named.values() if not is_lazy(tensor)]
            self._named_memory = {storage_key(tensor): tensor for tensor in reversed(tensors)}
        tensor = self._named_memory.get(key) if key else None
        if tensor is None:
            return None
        for one in (tensor, *(part for part in held_tensors(tensor) if storage_key(part) == key)):
            self.read(one)
        return self._live[id(one)]

    def _as_view(self, tensor: Tensor, ref: weakref.ref[Tensor], last: Value) -> View | None:
        """Return the call that makes `tensor` from the tensor that owns its memory; None if that is unknown.

        If the owner was freed, its memory may live on in `tensor`: then the fingerprints agree.
        """
        owner = ref()
        read = self.read(owner) if owner is not None else last if self._survives_in(tensor, last) else None
        is_strided = owner is None or owner.layout is torch.strided
        if read is None or is_fake(tensor) or (is_strided and last.stride is None):  # such as a wrapper
            return None
        whole = last.dtype == tensor.dtype and last.shape == tensor.shape and last.stride == tensor.stride()
        in_other_class = owner is None or type(owner) is not type(tensor)
        if whole and in_other_class and (owner is None or address_of(owner) == address_of(tensor)):
            return in_class_of(tensor, read)
        return None if owner is None else self._as_part(tensor, owner, read)

    def _as_part(self, tensor: Tensor, owner: Tensor, read: Value | Aliased) -> View | None:
        """Return the call that makes `tensor` from the tensor of which it covers a part, or with another shape."""
        if (values := values_of_sparse(owner)) is not None:
            info, owner = values
            read = self._view_entry((info, (read,)), owner)[1]
        view = part_of(tensor, owner, read)
        if view is None or type(tensor) is not Parameter:
            return view
        info, (_, *place) = view
        return in_class_of(tensor, self._view_entry(view, info.func(owner, *place))[1])

    def _survives_in(self, tensor: Tensor, value: Value) -> bool:
        """Return whether a tensor is over the memory of a value, and not over other memory at the same address."""
        memory = self._memory.get(storage_key(tensor))
        if memory is None or memory() is None or not value.digest:
            return False
        return tensor.dtype == value.dtype and fingerprint(tensor) == value.fingerprint


_STORAGE = "it takes the memory of a tensor, a storage, as an argument: which values it holds is not in the graph"
