"""Saves and restores everything that a forward pass may change: tensors, autograd state, objects, random generators.

`ModelState` is the snapshot of a model and its inputs.  `state_digests` describes the same state in short texts, so
that two runs can be compared.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from itertools import chain
from itertools import starmap
from types import MappingProxyType
from typing import Any

import torch

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.calls import RandomState
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.looks import instance_dict
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.capture.looks import named_tensors
from pytest_torchlens.capture.memory import duplicate
from pytest_torchlens.capture.memory import overwrite
from pytest_torchlens.capture.opaque import is_opaque
from pytest_torchlens.capture.origins import gradient_of
from pytest_torchlens.capture.origins import tensors_used
from pytest_torchlens.capture.process_limits import COLLECTOR
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.capture.storage import storage_of
from pytest_torchlens.capture.values import PLAIN
from pytest_torchlens.capture.values import shape_of
from pytest_torchlens.capture.values import version_of
from pytest_torchlens.capture.wrappers import inner_tensors
from pytest_torchlens.capture.wrappers import is_wrapper
from pytest_torchlens.capture.wrappers import parts_of
from pytest_torchlens.validate.containers import ObjectGraph
from pytest_torchlens.validate.containers import Path
from pytest_torchlens.validate.containers import object_name
from pytest_torchlens.validate.noise import is_dense

Tensor = torch.Tensor


class ModelState:
    """A snapshot of a model and its inputs: everything that a forward pass may change.

    Parameters are large, so they are copied only for opaque modules.  For all others the recorder saves the values of
    a parameter before a write.

    Parameters
    ----------
    model
        The model.
    args, kwargs
        Its arguments.
    """

    def __init__(
        self, model: torch.nn.Module, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> None:
        with torch._C.DisableTorchFunction(), COLLECTOR.raised():
            self._look(model, args, kwargs or {})

    def _look(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._objects = ObjectGraph({"attribute": model, "input": dict(enumerate(args)) | kwargs})
        self.single_use = self._objects.single_use("input")
        """Names of inputs that can be read only once."""
        opaque = [(name, module) for name, module in named_modules(model) if is_opaque(module)]
        used = [((("a tensor of",), name), tensor) for name, module in opaque for tensor in tensors_used(module)]
        tensors: dict[int, tuple[Path, Tensor]] = {id(tensor): (path, tensor) for path, tensor in used}
        tensors |= {id(tensor): (path, tensor) for path, tensor in self._objects.tensors}
        self._lazy = [(tensor, type(tensor)) for _, tensor in tensors.values() if is_lazy(tensor)]
        real = [(path, tensor) for path, tensor in tensors.values() if not is_lazy(tensor)]
        self._wrappers = [(tensor, _attributes(tensor)) for _, tensor in real if is_wrapper(tensor)]
        views_last = sorted(real, key=lambda entry: entry[1]._is_view())  # a view has the autograd history of its base
        self._autograd = [(path, AutogradState(tensor)) for path, tensor in views_last]
        self._plain_leaves = PlainLeaves([one.tensor for _, one in self._autograd if one.is_plain_leaf])
        real = [(path, part) for path, tensor in real for part in inner_tensors(tensor) or (tensor,)]
        self._memory = [(tensor, tensor.detach()) for _, tensor in real]
        self._dense = [(tensor, former) for tensor, former in self._memory if is_dense(tensor)]
        storages = [storage for _, tensor in real if (storage := storage_of(tensor)) is not None]
        self._storages = [storage for storage in storages if storage.device.type != "meta"]
        self._sizes = [storage.nbytes() for storage in self._storages]
        copied = {id(tensor) for _, tensor in used}
        copied |= {id(tensor) for _, tensor in real if not is_a(tensor, torch.nn.Parameter)}
        copies = [(tensor, duplicate(tensor)) for _, tensor in real if id(tensor) in copied]
        self._tensors = [(tensor, contents, fingerprint(contents)) for tensor, contents in copies]
        written = [one for _, tensor in real for one in (tensor, gradient_of(tensor)) if one is not None]
        self._versions = {id(tensor): (tensor, version_of(tensor)) for tensor in written}
        self._unrestored: list[str] = []
        self._overwritten: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._generator_states: dict[int, RandomState] = {}

    def note(self, recording: Recording) -> None:
        """Note the former values of tensors that recorded calls overwrote, and of generators that they drew from."""
        for source in recording.sources:
            if source.written and source.value.tensor is not None and not is_lazy(source.live):
                self._overwritten.setdefault(id(source.live), (source.live, source.value.tensor))
                self._versions.setdefault(id(source.live), (source.live, source.version))
        for call in recording.calls:
            if call.random is not None:
                self._generator_states.setdefault(id(call.random.generator), call.random)

    def restore(self) -> None:
        """Restore everything: by assignment where that is enough, changed tensors by copying.

        Memory with two owners (an array, and a tensor made from it during the pass) ends with its values from before
        the pass.
        """
        with torch._C.DisableTorchFunction():
            self._restore()

    def _restore(self) -> None:
        self._objects.restore()
        for wrapper, attributes in self._wrappers:
            for name, value in attributes.items():
                object.__setattr__(wrapper, name, value)
        for tensor, kind in self._lazy:
            tensor.data = torch.empty(0, device=tensor.device)
            tensor.__class__ = kind
        self._restore_memory()
        are_plain = self._plain_leaves.are_same()
        for _, autograd in self._autograd:
            if not (are_plain and autograd.is_plain_leaf):
                autograd.restore()
        self._restore_values()
        for drawn in self._generator_states.values():
            drawn.generator.set_state(drawn.state)
        self._unrestored = self._objects.restore_states()

    def _restore_memory(self) -> None:
        if [*map(torch.UntypedStorage.nbytes, self._storages)] != self._sizes:
            for storage, size in zip(self._storages, self._sizes, strict=True):
                if storage.nbytes() != size and storage.resizable():
                    storage.resize_(size)
        if len(self._dense) == len(self._memory) and _are_same_memory(self._dense):
            return
        for tensor, former in self._memory:
            if not _same_memory(tensor, former):
                tensor.data = former

    def _restore_values(self) -> None:
        for live, former in self._overwritten.values():
            if not is_lazy(live) and shape_of(former) == shape_of(live):
                _overwrite_changed(live, former)
        for tensor, contents, digest in self._tensors:
            if fingerprint(tensor) != digest:
                overwrite(tensor, contents)

    def restore_versions(self) -> None:
        """Restore the version counters, after all values: a graph that saved a tensor before may still use it."""
        with torch._C.DisableTorchFunction():
            for tensor, version in self._versions.values():
                if not is_lazy(tensor) and version_of(tensor) > version >= 0:
                    _set_version(tensor, version)

    def unrestored(self, maybe: bool = False) -> list[str]:
        """Return the names of changed objects that could not be restored.

        With `maybe`, also iterators that may have been read.
        """
        with torch._C.DisableTorchFunction():
            changed = [entry for entry in self._autograd if not entry[1].is_restored()]
        histories = [f"the history of {object_name(path, autograd.tensor)}" for path, autograd in changed]
        return [*self._unrestored, *self._objects.used_up(maybe), *histories]


def _attributes(wrapper: torch.Tensor) -> dict[str, Any]:
    """Return what a wrapper holds: its tensors, and what its class caches or counts beside them."""
    return (instance_dict(wrapper) or {}) | parts_of(wrapper)


def _overwrite_changed(tensor: torch.Tensor, contents: torch.Tensor) -> None:
    if fingerprint(tensor) != fingerprint(contents):
        overwrite(tensor, contents)


def _set_version(tensor: torch.Tensor, version: int) -> None:
    set_version: Any = getattr(torch._C._autograd, "_unsafe_set_version_counter", None)
    if set_version is None:
        return
    try:
        set_version((tensor,), (version,))
    except TypeError:  # older releases take one tensor
        set_version(tensor, version)


def _are_same_memory(dense: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    """Return whether all tensors have the memory that they had, as nearly always: they are compared at once, in C."""
    try:
        return all(starmap(torch.Tensor.is_set_to, dense))
    except RuntimeError:  # one is not dense any more
        return False


def _same_memory(tensor: torch.Tensor, former: torch.Tensor) -> bool:
    if is_dense(tensor) and is_dense(former) and tensor.is_set_to(former):  # nearly always
        return True
    if shape_of(tensor) != shape_of(former) or storage_key(tensor) != storage_key(former):
        return False
    return tensor.layout is not torch.strided or tensor.is_nested or _place(tensor) == _place(former)


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.storage_offset(), tensor.stride()


class AutogradState:
    """A snapshot of a tensor's autograd state: its history, gradient and hooks."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self._requires_grad = tensor.requires_grad
        self._grad_fn = _grad_fn_of(tensor)
        self._gradient = gradient_of(tensor)
        self._values = None if self._gradient is None else self._gradient.detach().clone()
        tables = [(name, getattr(tensor, name)) for name in _TABLES_OF_HOOKS]
        self._hooks = [(name, table, dict(table or {})) for name, table in tables]
        self.is_plain_leaf = _is_plain_leaf(tensor)

    def restore(self) -> None:
        """Restore what is possible: a new history is detached; a lost history cannot be restored."""
        if self._has_other_history() and self._grad_fn is None and not self.tensor._is_view():
            self.tensor.detach_()
        if self.tensor.requires_grad != self._requires_grad and _grad_fn_of(self.tensor) is None:
            self.tensor.requires_grad_(self._requires_grad)
        if gradient_of(self.tensor) is not self._gradient:
            self.tensor.grad = self._gradient
        if self._gradient is not None and self._values is not None:
            _overwrite_changed(self._gradient, self._values)
        for name, table, hooks in self._hooks:
            if getattr(self.tensor, name) is not table:
                setattr(self.tensor, name, table)
            if table is not None and table != hooks:
                table.clear()
                table.update(hooks)

    def is_restored(self) -> bool:
        """Return whether the history is the former one; reading it may give a view the history of its base."""
        return not self._has_other_history()

    def _has_other_history(self) -> bool:
        return self.tensor.requires_grad and _grad_fn_of(self.tensor) is not self._grad_fn


class PlainLeaves:
    """Tensors without history, gradient or hooks, as most parameters in a forward pass: compared at once, in C."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors
        self._former = self._now()

    def are_same(self) -> bool:
        """Return whether all still are such tensors, and require gradients as before."""
        facts = map(operator.is_, chain.from_iterable(self._now()), chain.from_iterable(self._former))
        return all(facts) and not any(map(_has_gradient, self._tensors))  # which only a leaf may be asked for

    def _now(self) -> list[tuple[Any, ...]]:
        return [*map(_FACTS_OF_LEAF, self._tensors)]


_TABLES_OF_HOOKS = tuple([name for name in ("_backward_hooks", "_post_accumulate_grad_hooks") if hasattr(Tensor, name)])
_FACTS_OF_LEAF = operator.attrgetter("__class__", "is_leaf", "requires_grad", *_TABLES_OF_HOOKS)


def _has_gradient(leaf: Tensor) -> bool:
    return leaf.grad is not None


def _is_plain_leaf(tensor: Tensor) -> bool:
    """Return whether a tensor has no history, gradient or hooks, as most parameters in a forward pass."""
    try:
        is_plain = type(tensor) in PLAIN and tensor.is_leaf and tensor.grad is None
    except RuntimeError:  # as in `gradient_of`
        return False
    return is_plain and all(getattr(tensor, name) is None for name in _TABLES_OF_HOOKS)


def _grad_fn_of(tensor: Tensor) -> Any:
    try:
        return tensor.grad_fn
    except RuntimeError:  # a view made without gradients, whose base was written to with gradients
        return None


def state_digests(
    model: torch.nn.Module, inputs: dict[str, torch.Tensor], known: Mapping[int, str] = MappingProxyType({})
) -> dict[str, str]:
    """Return the fingerprint of every parameter, buffer and input, by a readable name; `known` has some by id."""
    modules = list(named_modules(model))
    tensors = {
        **{f"parameter {name}": parameter for name, parameter in named_tensors(modules, "_parameters")},
        **{f"buffer {name}": buffer for name, buffer in named_tensors(modules, "_buffers")},
        **{f"input {path}": tensor for path, tensor in inputs.items()},
    }
    digests = {
        name: known.get(id(tensor)) or fingerprint(tensor) for name, tensor in tensors.items() if not is_lazy(tensor)
    }
    modes = {name or "the model": (instance_dict(module) or {}).get("training", "none") for name, module in modules}
    return digests | {f"mode of {name}": str(mode) for name, mode in modes.items()}
