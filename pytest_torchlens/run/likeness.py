"""Which module calls are alike: one structure, one kind of input, one way to run."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from pytest_torchlens.capture.leaves import everything
from pytest_torchlens.capture.leaves import is_lazy

_MOST = 10_000
"""Parts of the inputs that are looked at."""
_BY_VALUE = (bool, str, type(None))
_PLAIN = (*_BY_VALUE, int, float, tuple)


def likeness(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return a digest that module calls have in common if one is much like the other.

    It is one of the classes, addresses, modes and constants of all modules, the code of their forwards, the shapes,
    types and devices of parameters, buffers and input tensors, the truth values and texts among the inputs, and whether
    autograd is on.  Numbers among the inputs are not in it: they change from step to step.
    """
    lines = itertools.chain(
        (repr((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch._C._is_any_autocast_enabled())),),
        *(_of_module(address, part) for address, part in module.named_modules()),
        _of_inputs((args, kwargs)),
    )
    return hashlib.blake2b("\n".join(lines).encode(errors="replace"), digest_size=16).hexdigest()


def _of_module(address: str, module: torch.nn.Module) -> Iterator[str]:
    kind = type(module)
    yield f"{address} {kind.__module__}.{kind.__qualname__} {getattr(module, 'training', None)} {_code_of(module)}"
    for name in getattr(kind, "__constants__", ()):
        if isinstance(value := module.__dict__.get(name), _PLAIN):
            yield f"{name} {value}"
    for members in (module._parameters, module._buffers):
        for name, tensor in members.items():
            yield f"{name} {_of_tensor(tensor)}"


def _code_of(module: torch.nn.Module) -> str:
    if isinstance(module, torch.jit.ScriptModule):
        return str(module._c._type().qualified_name())  # one name, one code
    forward = vars(module).get("forward", type(module).forward)  # tests replace it
    code = getattr(forward, "__code__", None)
    return str(code and hash(code))


def _of_inputs(inputs: Any) -> Iterator[str]:
    for path, thing in itertools.islice(everything(inputs), _MOST):
        if isinstance(thing, torch.Tensor):
            yield f"{path} {_of_tensor(thing)}"
        else:
            yield f"{path} {type(thing).__qualname__} {thing if isinstance(thing, _BY_VALUE) else ''}"


def _of_tensor(tensor: torch.Tensor | None) -> str:
    if tensor is None or is_lazy(tensor):
        return str(type(tensor))
    shape = "nested" if tensor.is_nested else tuple(tensor.shape)
    return f"{type(tensor).__qualname__} {shape} {tensor.dtype} {tensor.device} {tensor.layout} {tensor.requires_grad}"
