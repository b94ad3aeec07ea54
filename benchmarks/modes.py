"""The modes of a forward pass that are compared."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import nn

Mode = Callable[[nn.Module, torch.Tensor], object]
PLAIN = "plain"


def plain(model: nn.Module, x: torch.Tensor) -> object:
    """Run only the model."""
    return model(x)


def recorded(model: nn.Module, x: torch.Tensor) -> object:
    """Record every operation, with a fingerprint of every activation."""
    from pytest_torchlens.capture import record

    return record(model, (x,), {}, keep="none")


def all_kept(model: nn.Module, x: torch.Tensor) -> object:
    """Record every operation and keep every activation."""
    from pytest_torchlens.capture import record

    return record(model, (x,), {}, keep="all")


def history(model: nn.Module, x: torch.Tensor) -> object:
    """Record as a user does who wants the graph alone."""
    from pytest_torchlens import log_forward_pass

    return log_forward_pass(model, x, layers_to_save=None)


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


OURS: dict[str, Mode] = {
    PLAIN: plain,
    "recorded": recorded,
    "all kept": all_kept,
    "layers_to_save=None": history,
    "validated": validated,
}
PEERS: dict[str, Mode] = {
    "torchlens trace": torchlens_trace,
    "torchlens validate": torchlens_validate,
}
MODES = {**OURS, **PEERS}


def peers() -> list[str]:
    """Return the modes of the package torchlens, if it is installed."""
    return list(PEERS) if find_spec("torchlens") else []
