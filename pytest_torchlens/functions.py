"""The public functions, named as in the TorchLens paper."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any

import torch

from pytest_torchlens.capture import SaveOptions
from pytest_torchlens.history import LayersToSave
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.history_options import TraceOptions
from pytest_torchlens.history.history_options import arguments_of
from pytest_torchlens.history.history_options import with_gradients
from pytest_torchlens.validate import Validation
from pytest_torchlens.validate import validate

if TYPE_CHECKING:
    from pytest_torchlens.draw import Drawing
    from pytest_torchlens.draw import NestingDepth
    from pytest_torchlens.draw import VisOpt

__tracebackhide__ = True  # pytest leaves our frames out of the traceback of what a model raises

Inputs = torch.Tensor | list[Any] | tuple[Any, ...]


def log_forward_pass(  # noqa: PLR0913 - the paper's signature, and options by name
    model: torch.nn.Module,
    input_args: Any = (),
    input_kwargs: dict[str, Any] | None = None,
    layers_to_save: LayersToSave = "all",
    random_seed: int | None = None,
    vis_opt: VisOpt = "none",
    *,
    save_options: SaveOptions | None = None,
    save_gradients: bool = False,
    vis_nesting_depth: NestingDepth = None,
    vis_outpath: Path | str = "model_graph.svg",
    exhaust: bool = False,
) -> ModelHistory:
    """Run a forward pass and return its history: graph, activations and metadata.

    Parameters
    ----------
    model
        Any `torch.nn.Module`; called once, unchanged, in the current gradient mode.
    input_args
        A tensor, or a list or tuple of the positional arguments.  Pass a single list argument as
        ``[[...]]``.
    input_kwargs
        Keyword arguments.
    layers_to_save
        ``"all"`` (default), None or ``"none"``, or one or several keys: labels, short labels, module
        addresses, indices (also negative), parts of labels, a `Query`, or a function of a `LoggedOperation`.
    random_seed
        Seed for the generators of torch, NumPy and Python; None (default) leaves them alone.
    vis_opt
        ``"none"`` (default), ``"unrolled"`` to draw every operation, ``"rolled"`` to draw all passes of a layer as one.
    save_options
        How activations are processed before they are saved: detach, transform, dtype, device, streaming to disk.
    save_gradients
        Whether later backward passes store the gradient of each saved activation in ``grad_contents``.
    vis_nesting_depth
        Module depth from which each module is drawn as one node, or depths by address (``{"layer*": 0}``); None
        (default) draws every operation.
    vis_outpath
        Path of the drawing; its suffix is the format.  Without Graphviz a warning is issued.  `ModelHistory.draw` has
        more options.
    exhaust
        Whether to run a generator that the model returns to its end and record that too; by default (False) it is
        returned unchanged and ``history.recording.untraced`` reports it.

    Returns
    -------
    ModelHistory
        Indexed by label (``"conv2d_3_7"``), short label, module address (``"features.6"``) or index.

    Raises
    ------
    TraceError
        If the arguments do not fit the model's forward, or this thread is already recording.
    LookupKeyError
        If a key in `layers_to_save` does not match a layer.
    SavingError
        If a function in `layers_to_save`, or the transform, raises.
    TypeError, ValueError
        If another option is invalid, or the streaming folder cannot be created; raised before the model runs.

    Examples
    --------
    >>> import torch, pytest_torchlens as tl
    >>> history = tl.log_forward_pass(torch.nn.Linear(2, 3), torch.ones(1, 2))
    >>> history.layer_list
    ['input_1_0', 'linear_1_1', 'output_1_2']
    """
    draws = vis_opt != "none"
    if draws or vis_nesting_depth is not None:
        from pytest_torchlens import draw  # most passes are not drawn

        drawing = draw.DrawOptions(vis_opt=vis_opt, vis_nesting_depth=vis_nesting_depth)
    path = draw.check_path(vis_outpath, "vis_outpath") if draws else None
    saving = with_gradients(save_options, save_gradients or getattr(save_options, "gradients", False))
    options = TraceOptions(layers_to_save, saving, random_seed, exhaust)
    history = ModelHistory.of(model, arguments_of(model, input_args, input_kwargs), options)
    if saving.gradients and not _has_gradients(history):
        warnings.warn(
            "save_gradients: nothing in this pass requires a gradient, so none will come: record outside of "
            "torch.no_grad() a model with parameters, or inputs, that require gradients",
            stacklevel=2,
        )
    if path is not None:
        try:
            draw.draw(history, path, drawing)
        except draw.DrawingUnavailable as error:
            warnings.warn(str(error), stacklevel=2)
    return history


def _has_gradients(history: ModelHistory) -> bool:
    return any(value.requires_grad for call in history.recording.calls for value in call.outputs)


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


def show_model_graph(  # noqa: PLR0913 - the paper's signature
    model: torch.nn.Module,
    input_args: Any = (),
    input_kwargs: dict[str, Any] | None = None,
    vis_opt: VisOpt = "unrolled",
    vis_nesting_depth: NestingDepth = None,
    vis_outpath: Path | str | None = None,
    random_seed: int | None = None,
    **options: Any,
) -> Drawing | Path | None:
    """Draw a model's graph without saving any activation.

    Parameters
    ----------
    model, input_args, input_kwargs, random_seed
        As in `log_forward_pass`.
    vis_opt, vis_nesting_depth, **options
        Options of `DrawOptions` such as ``direction``, ``focus``, ``color_by``, ``node_text``, ``theme``, ``legend``.
    vis_outpath
        Path of the drawing; its suffix is the format: ``.svg``, ``.pdf``, ``.png`` or ``.dot``.  Default: no file.

    Returns
    -------
    Drawing | Path | None
        Without `vis_outpath` the drawing, which a notebook shows and ``drawing.save(path)`` writes; else the path; None
        for ``vis_opt="none"``.

    Raises
    ------
    OptionError
        If an option is invalid; raised before the model runs where possible.
    DrawingUnavailable
        If Graphviz is missing or cannot draw the graph.

    Examples
    --------
    >>> show_model_graph(model, x, direction="right", focus="layer3.0", color_by="time")  # doctest: +SKIP
    """
    from pytest_torchlens import draw  # most passes are not drawn

    drawing = draw.DrawOptions.of(vis_opt=vis_opt, vis_nesting_depth=vis_nesting_depth, **options)
    path = None if vis_outpath is None else draw.check_path(vis_outpath, "vis_outpath")
    history = log_forward_pass(model, input_args, input_kwargs, None, random_seed)
    if vis_opt == "none":
        return None
    return draw.show(history, drawing) if path is None else draw.draw(history, path, drawing)


def validate_model_activations(
    model: torch.nn.Module,
    input_args: Any = (),
    input_kwargs: dict[str, Any] | None = None,
    random_seed: int | None = None,
    *,
    exhaust: bool = False,
) -> Validation:
    """Record a forward pass, validate the record, and return the verdict, which is true if validation passed.

    Replaying the graph from its inputs must reproduce every activation bit for bit.  Changing the values of each parent
    must change each result.  Recording must not change the result or the model.
    Parameters are those of `log_forward_pass`.
    """
    args, kwargs = arguments_of(model, input_args, input_kwargs)
    return validate(model, args, kwargs, seed=random_seed, exhaust=exhaust)


get_model_activations = log_forward_pass
get_model_structure = get_model_metadata
validate_saved_activations = validate_model_activations
