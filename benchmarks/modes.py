"""The modes of a forward pass that are compared."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


class EmptyMode(TorchFunctionMode):
    """A mode that does nothing: the cost of any tool that uses PyTorch's function modes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function."""
        return func(*args, **(kwargs or {}))


def plain(model: nn.Module, x: torch.Tensor) -> object:
    """Run only the model."""
    return model(x)


def empty_mode(model: nn.Module, x: torch.Tensor) -> object:
    """Run under an empty function mode: the minimum cost."""
    with EmptyMode():
        return model(x)


def fingerprints(model: nn.Module, x: torch.Tensor) -> object:
    """Record every operation, with a fingerprint of every activation."""
    from pytest_torchlens.capture import record

    return record(model, (x,), {}, keep="none")


def all_kept(model: nn.Module, x: torch.Tensor) -> object:
    """Record every operation and keep every activation."""
    from pytest_torchlens.capture import record

    return record(model, (x,), {}, keep="all")


class UnusedError(RuntimeError):
    """A mode left out something that the recording does not use: it measured nothing."""


@contextmanager
def left_out(owner: Any, name: str, instead: Callable[..., Any]) -> Iterator[None]:
    """Replace an attribute of a module or class, and check that it was called.

    Parameters
    ----------
    owner, name
        The module or class, and the name of the attribute.
    instead
        The replacement.

    Raises
    ------
    UnusedError
        If nothing called it.
    """
    called: list[bool] = []

    def once(*args: Any, **kwargs: Any) -> Any:
        called.append(True)
        setattr(owner, name, instead)  # later calls pay for no check
        return instead(*args, **kwargs)

    with patch.object(owner, name, once):
        yield
    if not called:
        raise UnusedError(f"nothing called {owner.__name__}.{name}")


def without_stacks(model: nn.Module, x: torch.Tensor) -> object:
    """Record fingerprints but no call stacks: the difference to `fingerprints` is the cost of stacks."""
    from pytest_torchlens.capture.tracer import Tracer

    with left_out(Tracer, "_frames", lambda *_: ()):
        return fingerprints(model, x)


def without_random_states(model: nn.Module, x: torch.Tensor) -> object:
    """Record fingerprints but no generator states: the difference to `fingerprints` is their cost."""
    from pytest_torchlens.capture import function_tracer

    with left_out(function_tracer, "state_before", lambda *_: None):
        return fingerprints(model, x)


def without_fingerprints(model: nn.Module, x: torch.Tensor) -> object:
    """Record without fingerprints: the difference to `fingerprints` is their cost."""
    from pytest_torchlens.capture import tensor_table
    from pytest_torchlens.capture.storage import storage_key

    with left_out(tensor_table, "dense_digest", lambda tensor, _: (0, storage_key(tensor))):
        return fingerprints(model, x)


def without_settings(model: nn.Module, x: torch.Tensor) -> object:
    """Record fingerprints but not the settings of each call: the difference to `fingerprints` is their cost."""
    from pytest_torchlens.capture.ambient import AmbientTable

    with left_out(AmbientTable, "number", lambda *_: 0):
        return fingerprints(model, x)


def without_modules(model: nn.Module, x: torch.Tensor) -> object:
    """Record fingerprints but no module calls: the difference to `fingerprints` is their cost."""
    from pytest_torchlens.capture.tracer import Tracer

    def call(_: Any, func: Any, args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs)

    with left_out(Tracer, "call_module", call):
        return fingerprints(model, x)


def validated(model: nn.Module, x: torch.Tensor) -> object:
    """Validate; a verdict other than passed is an error."""
    from pytest_torchlens.validate import validate

    validation = validate(model, (x,), {})
    if not validation.verdict:
        raise RuntimeError(f"the verdict is {validation.verdict}")
    return validation


def torchlens_trace(model: nn.Module, x: torch.Tensor) -> object:
    """Trace with the package torchlens."""
    import torchlens

    return torchlens.trace(model, [x])


def torchlens_validate(model: nn.Module, x: torch.Tensor) -> object:
    """Validate with the package torchlens."""
    import torchlens

    if not torchlens.validate(model, [x], scope="forward"):
        raise RuntimeError("torchlens does not validate this model")
    return None


OURS: dict[str, Callable[[nn.Module, torch.Tensor], object]] = {
    "plain": plain,
    "empty mode": empty_mode,
    "fingerprints": fingerprints,
    "all kept": all_kept,
    "validated": validated,
}
WITHOUT: dict[str, Callable[[nn.Module, torch.Tensor], object]] = {
    "no fingerprints": without_fingerprints,
    "no call stacks": without_stacks,
    "no settings": without_settings,
    "no module calls": without_modules,
    "no random states": without_random_states,
}
"""Recording with one thing left out; the difference is its cost."""
PEERS: dict[str, Callable[[nn.Module, torch.Tensor], object]] = {
    "torchlens trace": torchlens_trace,
    "torchlens validate": torchlens_validate,
}
MODES = {**OURS, **WITHOUT, **PEERS}


def peers() -> list[str]:
    """Return the modes of the installed peers."""
    return list(PEERS) if find_spec("torchlens") else []
