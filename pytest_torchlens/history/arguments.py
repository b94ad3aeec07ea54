"""What forward is called with, checked before anything runs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from pytest_torchlens.capture import TraceError
from pytest_torchlens.capture import check_model

__tracebackhide__ = True  # pytest leaves our frames out of the traceback of what a model raises

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def arguments_of(model: torch.nn.Module, input_args: Any, input_kwargs: Mapping[str, Any] | None) -> Arguments:
    """Return forward's arguments: a list or tuple has the positional ones, anything else is the only one.

    Raises
    ------
    TraceError
        If `model` is no module, or its forward cannot take them.
    """
    check_model(model)
    if not isinstance(input_kwargs, Mapping | None):
        raise TraceError(
            f"input_kwargs is a {type(input_kwargs).__name__}; it takes a dict of forward's keyword arguments, "
            "{'mask': mask}; positional arguments go in one tuple: (model, (a, b))"
        )
    args = tuple(input_args) if isinstance(input_args, list | tuple) else (input_args,)
    kwargs = dict(input_kwargs or {})
    _check_fit(model, args, kwargs, isinstance(input_args, list))
    return args, kwargs


def _check_fit(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], was_list: bool) -> None:
    """Say so where forward cannot take the arguments and a list was probably meant as one of them."""
    if _may_change_them(model):
        return
    try:
        signature = inspect.signature(model.forward, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        hint = " A list that is the one argument goes in as [[...]]." if was_list and len(args) > 1 else ""
        name = type(model).__name__
        raise TraceError(f"{name}.forward{signature} cannot take the inputs given: {error}.{hint}") from None


def _may_change_them(model: torch.nn.Module) -> bool:
    """Return whether code of the model's runs before forward and may give it other arguments."""
    hooks = model._forward_pre_hooks or torch.nn.modules.module._global_forward_pre_hooks
    return bool(hooks) or type(model).__call__ is not torch.nn.Module.__call__
