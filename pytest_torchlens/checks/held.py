"""Names the values that a model holds: parameters, buffers, and what its modules keep in other attributes."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.leaves import ATOMS
from pytest_torchlens.capture.leaves import children
from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.looks import instance_dict
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.looks import looked_at
from pytest_torchlens.capture.looks import named_buffers
from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.capture.storage import storage_key

_OF_EVERY_MODULE = frozenset(vars(nn.Module())) | {"_is_hf_initialized", "_is_initializing"}
_NUMBERS = (bool, int, float, complex, str, type(None), torch.dtype, torch.Size)
_DEEPEST = 5
"""Objects inside each other so far are looked into."""


def held_values(model: nn.Module) -> dict[str, str]:
    """Return a digest of each value that a model holds, by kind and name: ``"buffer 'bn.running_mean'"``.

    Tensors and numbers in lists, dicts and objects that a module holds are named by their path; so are the parameters
    of modules that are not registered.  Functions and modes are not among them.
    """
    with torch._C.DisableTorchFunction(), torch.no_grad():
        return dict(_of_modules(model, "", {id(module) for _, module in named_modules(model)}, set()))


def _of_modules(model: nn.Module, prefix: str, known: set[int], seen: set[int]) -> Iterator[tuple[str, str]]:
    for address, module in named_modules(model):
        own = instance_dict(module) or {}
        at = ".".join(filter(None, (prefix, address)))
        passing = own.get("_non_persistent_buffers_set", ())
        for kind, members in (("parameter", own.get("_parameters")), ("buffer", own.get("_buffers"))):
            for name, tensor in (members or {}).items():
                if tensor is not None:
                    words = "non-persistent buffer" if kind == "buffer" and name in passing else kind
                    yield f"{words} {_joined(at, name)!r}", digest_of(tensor)
        for name, value in own.items():
            if name not in _OF_EVERY_MODULE:
                yield from _of_value(value, _joined(at, name), known, seen, 0)


def hidden_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules in lists, dicts and objects that a model holds, which no module has registered, by path."""
    known = {id(module) for _, module in named_modules(model)}
    found: dict[str, nn.Module] = {}
    for address, module in named_modules(model):
        for name, value in (instance_dict(module) or {}).items():
            if name not in _OF_EVERY_MODULE:
                _add_modules(value, _joined(address, name), known, found)
    return found


def _add_modules(value: Any, path: str, known: set[int], found: dict[str, nn.Module], depth: int = 0) -> None:
    if type(value) in ATOMS or is_a(value, torch.Tensor) or id(value) in known or depth > _DEEPEST:
        return
    known.add(id(value))
    if is_a(value, nn.Module):
        found |= {".".join(filter(None, (path, address))): module for address, module in named_modules(value)}
        return
    none: list[tuple[Any, Any]] = []
    for key, item in looked_at(children, value, otherwise=none):
        _add_modules(item, f"{path}.{key}", known, found, depth + 1)


def _joined(address: str, name: str) -> str:
    return f"{address}.{name}" if address else name


def _of_value(value: Any, path: str, known: set[int], seen: set[int], depth: int) -> Iterator[tuple[str, str]]:
    if is_a(value, nn.Module):
        if id(value) not in known:
            known |= {id(module) for _, module in named_modules(value)}
            yield from _of_modules(value, path, known, seen)
    elif is_a(value, (torch.Tensor, np.ndarray, np.generic, set, frozenset, *_NUMBERS)):
        yield f"attribute {path!r}", digest_of(value)
    elif type(value) not in ATOMS and id(value) not in seen and depth < _DEEPEST:
        seen.add(id(value))
        none: list[tuple[Any, Any]] = []
        for key, item in looked_at(children, value, otherwise=none):
            yield from _of_value(item, f"{path}.{key}", known, seen, depth + 1)


def digest_of(value: Any) -> str:
    """Return a text that is the same for the same tensor, array, set or number, in each process."""
    if is_a(value, torch.Tensor):
        lacks = "lazy" if is_lazy(value) else "meta" if value.device.type == "meta" else ""
        return lacks or f"{value.dtype}{tuple(value.shape)}{fingerprint(value.detach())}"
    if is_a(value, (np.ndarray, np.generic)):
        return f"{value.dtype}{value.shape}{zlib.crc32(np.ascontiguousarray(value).tobytes())}"
    return looked_at(lambda: repr(sorted(map(repr, value)) if is_a(value, (set, frozenset)) else value), otherwise="")


def changed_values(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return the names of the values that are other ones, or that only one has: parameters and buffers first."""
    names = [name for name in before | after if before.get(name) != after.get(name)]
    return sorted(names, key=lambda name: name.startswith("attribute"))


def listed(names: list[str], most: int = 3) -> str:
    """Return the first names: ``"'a', 'b' and 7 more"``."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def memory_shared(model: nn.Module) -> frozenset[frozenset[str]]:
    """Return the groups of parameters and buffers that have the same memory."""
    return frozenset(frozenset(names) for names in memory_of(model).values() if len(names) > 1)


def memory_of(model: nn.Module) -> dict[int, set[str]]:
    """Return the names of the parameters and buffers in each memory, by its key."""
    groups = defaultdict(set)
    with torch._C.DisableTorchFunction():
        for name, tensor in (*named_parameters(model, duplicates=True), *named_buffers(model, duplicates=True)):
            if not is_lazy(tensor) and tensor.numel():
                groups[storage_key(tensor)].add(name)
    return {key: names for key, names in groups.items() if key}
