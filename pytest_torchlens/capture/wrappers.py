"""Tensors that wrap others: subclasses without memory of their own, such as `MaskedTensor` and `DTensor`.

PyTorch knows shape and dtype of a wrapper; its values are those of the tensors in its attributes, which only its class
reads.  So wrappers are copied, digested and rebuilt by these parts, and none of the class's operations is called.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from pytest_torchlens.capture.leaves import UnpackedObject
from pytest_torchlens.capture.leaves import attributes
from pytest_torchlens.capture.leaves import children
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.looks import class_attribute
from pytest_torchlens.capture.looks import home_of
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.looks import looked_at
from pytest_torchlens.capture.values import PLAIN
from pytest_torchlens.capture.values import Aliased
from pytest_torchlens.capture.values import Value
from pytest_torchlens.capture.values import strides_of

Tensor = torch.Tensor
OTHER_PART = (
    "it writes through a wrapper to a tensor that is not the first of those it holds: "
    "what reads this tensor itself has no edge to the write"
)
_NO_DISPATCH = (None, torch._C._disabled_torch_dispatch_impl, class_attribute(Tensor, "__torch_dispatch__"))


def is_wrapper(tensor: Tensor) -> bool:
    """Return whether a tensor has no memory of its own, and holds tensors in its attributes."""
    if type(tensor) in PLAIN or class_attribute(type(tensor), "__torch_dispatch__") in _NO_DISPATCH:
        return False
    return not _has_memory(tensor) and bool(parts_of(tensor))


def _has_memory(tensor: Tensor) -> bool:
    with torch._C.DisableTorchFunction():
        if tensor.layout is torch.jagged or is_a(tensor, torch._subclasses.FakeTensor):
            return True  # they are read in another way
        try:
            tensor.untyped_storage().data_ptr()
        except (RuntimeError, NotImplementedError, ValueError):
            return False
    return True


def parts_of(tensor: Tensor) -> dict[str, Any]:
    """Return the attributes of a wrapper that are tensors, or plain containers of tensors.

    A class that PyTorch's compiler can take apart names its tensors: others, such as a cache, are none of them.  What
    leads back to the wrapper is no part either.
    """
    parts = {name: value for name, value in attributes(tensor) if _is_part(value) and not _leads_to(tensor, value)}
    names, _ = _protocol(tensor)
    return {name: parts[name] for name in names} if names and parts.keys() >= set(names) else parts


def _is_part(value: Any) -> bool:
    return is_a(value, Tensor) or (type(value) in (list, tuple, dict) and bool(tensors(value)))


def _leads_to(wrapper: Tensor, value: Any) -> bool:
    """Return whether a wrapper is among the tensors in `value`, or among those that these hold."""
    entered: set[int] = set()
    waiting = list(tensors(value))
    while waiting:
        tensor = waiting.pop()
        if tensor is wrapper:
            return True
        if type(tensor) not in PLAIN and id(tensor) not in entered:
            entered.add(id(tensor))
            waiting += [inner for _, held in attributes(tensor) if _is_part(held) for inner in tensors(held)]
    return False


def _protocol(wrapper: Tensor) -> tuple[tuple[str, ...], Any]:
    """Return the names of its tensors, and the context from which its class makes a wrapper of them; else no names."""
    nothing: tuple[tuple[str, ...], Any] = ((), None)
    with torch._C.DisableTorchFunction():
        return looked_at(_flattened, wrapper, otherwise=nothing)


def _flattened(wrapper: Any) -> tuple[tuple[str, ...], Any]:
    names, context = wrapper.__tensor_flatten__()
    return tuple(names), context


def inner_tensors(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors that a wrapper holds; none for any other tensor."""
    return tensors(parts_of(tensor)) if is_wrapper(tensor) else ()


def held_tensors(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors that a wrapper holds, each followed by those that it holds itself."""
    if type(tensor) in PLAIN:  # nearly all tensors
        return ()
    return tuple([one for part in inner_tensors(tensor) for one in (part, *held_tensors(part))])


def map_parts(wrapper: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the same wrapper around ``change(tensor)`` for each tensor that it holds."""
    return Wrap(wrapper)(substitute(parts_of(wrapper), lambda leaf: change(leaf) if is_a(leaf, Tensor) else leaf))


_MEMOS = frozenset(f"_sym_{what}_capsule{end}" for what in ("sizes", "strides") for end in ("", "_len"))
"""Attributes in which PyTorch keeps sizes and strides that the class was asked for."""


class Wrap:
    """Makes a wrapper like one that exists, from the parts for its attributes.

    Parameters
    ----------
    wrapper
        The wrapper; it is not kept, unless an object among its attributes that is no tensor leads back to it.
    """

    def __init__(self, wrapper: Tensor) -> None:
        self.__name__ = type(wrapper).__name__
        with torch._C.DisableTorchFunction():
            self._kind, self._shape, self._stride = type(wrapper), wrapper.shape, strides_of(wrapper)
            self._settings = {name: getattr(wrapper, name) for name in ("dtype", "layout", "device", "requires_grad")}
        parts = parts_of(wrapper)
        names, context = _protocol(wrapper)
        self._has_protocol = bool(names) and set(names) == parts.keys()
        self._context = context
        others = {name: value for name, value in attributes(wrapper) if name not in parts and name not in _MEMOS}
        self._to_itself = [name for name, value in others.items() if value is wrapper]
        # no part: its class computed it from the parts, and can do so again, or it leads back to the wrapper
        self._left_out = [type(value) for value in others.values() if _is_part(value) and value is not wrapper]
        self._rest = {name: value for name, value in others.items() if not _is_part(value)}

    def __call__(self, parts: dict[str, Any]) -> Tensor:
        """Return the wrapper around `parts`."""
        with torch._C.DisableTorchFunction():
            wrapper = self._unflattened(parts) if self._has_protocol else self._empty()
            for name, value in (parts | self._rest | dict.fromkeys(self._to_itself, wrapper)).items():
                object.__setattr__(wrapper, name, value)
            return wrapper

    def _empty(self) -> Tensor:
        make: Any = Tensor._make_wrapper_subclass
        made: Tensor = make(self._kind, self._shape, strides=self._stride, **self._settings)
        return made

    def _unflattened(self, parts: dict[str, Any]) -> Tensor:
        kind: Any = self._kind
        made: Tensor = kind.__tensor_unflatten__(parts, self._context, self._shape, self._stride)
        return made

    def besides(self, parts: Any) -> Iterator[type]:
        """Yield the class of what the wrapper holds that no argument shows: neither its tensors nor plain settings.

        `parts` are its recorded tensors; numbers and arrays beside them are arguments as those of any call.
        """
        sizes = {*self._shape, *(self._stride or ()), *range(-len(self._shape), len(self._shape))}
        held = _unsettled([*self._rest.values(), self._context])
        yield from self._left_out
        yield from (type(one) for one in held if type(one) is not int or one not in sizes)
        yield from (type(one) for one in _unsettled(parts) if not is_a(one, (*NUMBERS, *_RECORDED)))


class HeldByWrapper:
    """What a wrapper holds at one time.

    Attributes
    ----------
    tensors
        The tensors that it wraps.
    numbers
        Name and value of each attribute that is a number, truth value or text.
    """

    def __init__(self, wrapper: Tensor) -> None:
        self._attributes = dict(attributes(wrapper))
        self.numbers = numbers_in(wrapper)
        self._parts = parts_of(wrapper)
        self._wrap = Wrap(wrapper)
        self.tensors = tensors(self._parts)

    def in_wrapper(self, wrapper: Tensor) -> Tensor:
        """Return the wrapper if it still holds the same, else one like it that does."""
        now = dict(attributes(wrapper))
        if now.keys() == self._attributes.keys() and all(now[name] is held for name, held in self._attributes.items()):
            return wrapper
        return looked_at(self._wrap, self._parts, otherwise=wrapper)


def with_settings(wrapper: Tensor, settings: dict[str, Any]) -> Tensor:
    """Return a wrapper like this one, also in what its class caches, with other values of these attributes."""
    with torch._C.DisableTorchFunction():
        other = Wrap(wrapper)._empty()
        for name, value in attributes(wrapper):
            object.__setattr__(other, name, other if value is wrapper else value)
        for name, value in settings.items():
            object.__setattr__(other, name, value)
        return other


def settings_of(wrapper: Tensor) -> dict[str, Any]:
    """Return the attributes of a wrapper that are numbers, truth values, texts or None."""
    return {
        name: one
        for name, one in attributes(wrapper)
        if type(one) in (*_PLAIN_SETTINGS, type(None)) and name not in _MEMOS
    }


def numbers_in(wrapper: Tensor) -> tuple[tuple[str, Any], ...]:
    """Return name and value of each attribute of a wrapper that is a number, truth value or text."""
    return tuple([(name, value) for name, value in attributes(wrapper) if type(value) in _PLAIN_SETTINGS])


_PLAIN_SETTINGS = (bool, int, float, complex, str)
NUMBERS = (int, float, complex)
_RECORDED = (np.ndarray, np.generic, Value, Aliased, UnpackedObject)
_SETTINGS = (
    *(type(None), bool, str, bytes, type, enum.Enum),
    *(torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format),
)


def _unsettled(value: Any) -> Iterator[Any]:
    """Yield the objects in plain containers and dataclasses that are no settings; what they hold is not known."""
    entered: dict[int, Any] = {}
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if is_a(one, _SETTINGS) or home_of(type(one)).startswith("torch.distributed.") or id(one) in entered:
            continue
        entered[id(one)] = one
        fields = class_attribute(type(one), "__dataclass_fields__")
        if type(one) in (list, tuple, dict, set, frozenset) or (fields is not None and not is_a(one, _RECORDED)):
            waiting += [inner for _, inner in children(one)]
        else:
            yield one


def unwrap(wrapper: Tensor, place: int) -> Tensor:
    """Return the tensor at a place among those that a wrapper holds."""
    return inner_tensors(wrapper)[place]
