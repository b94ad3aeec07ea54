"""Tensors that wrap others: subclasses without memory of their own, such as `MaskedTensor` and `DTensor`.

PyTorch knows shape and dtype of a wrapper; its values are those of the tensors in its attributes, which only its class
reads.  So wrappers are copied, digested and rebuilt by these parts, and none of the class's operations is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_torchlens.capture.leaves import attributes
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.looks import class_attribute
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.looks import looked_at
from pytest_torchlens.capture.values import PLAIN
from pytest_torchlens.capture.values import strides_of

Tensor = torch.Tensor
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
    """Return the attributes of a wrapper that are tensors, or plain containers of tensors."""
    return {name: value for name, value in attributes(tensor) if _is_part(value)}


def _is_part(value: Any) -> bool:
    return is_a(value, Tensor) or (type(value) in (list, tuple, dict) and bool(tensors(value)))


def inner_tensors(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors that a wrapper holds; none for any other tensor."""
    return tensors(parts_of(tensor)) if is_wrapper(tensor) else ()


def map_parts(wrapper: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the same wrapper around ``change(tensor)`` for each tensor that it holds."""
    return Wrap(wrapper)(substitute(parts_of(wrapper), lambda leaf: change(leaf) if is_a(leaf, Tensor) else leaf))


class Wrap:
    """Makes a wrapper like one that exists, from the parts for its attributes.

    Parameters
    ----------
    wrapper
        The wrapper; it is not kept.
    """

    def __init__(self, wrapper: Tensor) -> None:
        self.__name__ = type(wrapper).__name__
        with torch._C.DisableTorchFunction():
            self._kind, self._shape, self._stride = type(wrapper), wrapper.shape, strides_of(wrapper)
            self._settings = {name: getattr(wrapper, name) for name in ("dtype", "layout", "device", "requires_grad")}
            self._context = looked_at(_flattened, wrapper, otherwise=None)
        self._rest = {name: value for name, value in attributes(wrapper) if not _is_part(value)}

    def __call__(self, parts: dict[str, Any]) -> Tensor:
        """Return the wrapper around `parts`."""
        with torch._C.DisableTorchFunction():
            wrapper = self._empty() if self._context is None else self._unflattened(parts)
            for name, value in (parts | self._rest).items():
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


def _flattened(wrapper: Any) -> Any:
    """Return the context from which its class makes a wrapper; None if it has no such protocol for these parts."""
    names, context = wrapper.__tensor_flatten__()
    return context if set(names) == set(parts_of(wrapper)) else None


def unwrap(wrapper: Tensor, place: int) -> Tensor:
    """Return the tensor at a place among those that a wrapper holds."""
    return inner_tensors(wrapper)[place]
