"""The functions of the public interface, under the paper's names."""

from __future__ import annotations

import inspect
from typing import Any
from typing import Literal

import torch

from pytest_torchlens.capture import TraceError
from pytest_torchlens.capture import record
from pytest_torchlens.history import LayersToSave
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.validate import Validation
from pytest_torchlens.validate import validate

Inputs = torch.Tensor | list[Any] | tuple[Any, ...]


def log_forward_pass(
    model: torch.nn.Module,
    input_args: Any = (),
    input_kwargs: dict[str, Any] | None = None,
    layers_to_save: LayersToSave = "all",
    random_seed: int | None = None,
    *,
    exhaust: bool = False,
) -> ModelHistory:
    """Run a forward pass and return everything about it.

    Parameters
    ----------
    model
        Any `torch.nn.Module`; called once, as it stands, in the present gradient mode.
    input_args
        A tensor, or a list or tuple of the positional arguments.  A list that is the one argument goes in as
        ``[[...]]``.
    input_kwargs
        Keyword arguments.
    layers_to_save
        ``"all"`` (default), None or ``"none"``, or keys: labels, short labels, module addresses, places (negative
        ones too), or parts of labels.
    random_seed
        Seed for the generators of torch, NumPy and Python; None (default) leaves them alone.
    exhaust
        Whether to run a generator that the model returns to its end and record that too; by default (False) it is
        handed on as it is and ``history.recording.unseen`` says so.

    Returns
    -------
    ModelHistory
        Indexed by label (``"conv2d_3_7"``), short label, module address (``"features.6"``) or place.

    Raises
    ------
    TraceError
        If the arguments do not fit the model's forward, or this thread is already recording.
    LookupKeyError
        If `layers_to_save` has a key that names no layer.

    Examples
    --------
    >>> import torch, pytest_torchlens as tl
    >>> history = tl.log_forward_pass(torch.nn.Linear(2, 3), torch.ones(1, 2))
    >>> history.layer_list
    ['input_1_0', 'linear_1_1', 'output_1_2']
    """
    args, kwargs = _arguments(model, input_args, input_kwargs)
    layers_to_save = None if layers_to_save in ("none", []) else layers_to_save
    keep: Literal["none", "all"] = "none" if layers_to_save is None else "all"
    recording = record(model, args, kwargs, keep=keep, seed=random_seed, exhaust=exhaust)
    history = ModelHistory(recording, layers_to_save)
    if layers_to_save not in (None, "all"):
        history.select()
    return history


def get_model_metadata(
    model: torch.nn.Module,
    input_args: Any = (),
    input_kwargs: dict[str, Any] | None = None,
    random_seed: int | None = None,
) -> ModelHistory:
    """Return the history of a forward pass with no activation saved.

    Parameters are those of `log_forward_pass`.
    """
    return log_forward_pass(model, input_args, input_kwargs, None, random_seed)


def validate_model_activations(
    model: torch.nn.Module,
    input_args: Any = (),
    input_kwargs: dict[str, Any] | None = None,
    random_seed: int | None = None,
    *,
    exhaust: bool = False,
) -> Validation:
    """Record a forward pass, prove the record right, and return the verdict, which is true when it passed.

    The graph is run again from its inputs and must reproduce every activation bit for bit; other values in place of
    each parent must change each result; and recording must have changed nothing.  The model is left as it was found.
    Parameters are those of `log_forward_pass`.
    """
    args, kwargs = _arguments(model, input_args, input_kwargs)
    return validate(model, args, kwargs, seed=random_seed, exhaust=exhaust)


get_model_activations = log_forward_pass
get_model_structure = get_model_metadata
validate_saved_activations = validate_model_activations


def _arguments(
    model: torch.nn.Module, input_args: Any, input_kwargs: dict[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args = tuple(input_args) if isinstance(input_args, list | tuple) else (input_args,)
    kwargs = dict(input_kwargs or {})
    if isinstance(model, torch.nn.Module):
        _check_fit(model, args, kwargs, isinstance(input_args, list))
    return args, kwargs


def _check_fit(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], was_list: bool) -> None:
    """Say so where forward cannot take the arguments and a list was probably meant as one of them."""
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        hint = " A list that is the one argument goes in as [[...]]." if was_list and len(args) > 1 else ""
        name = type(model).__name__
        raise TraceError(f"{name}.forward{signature} cannot take the inputs given: {error}.{hint}") from None
