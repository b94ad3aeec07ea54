"""Checks the arguments of `forward`, the options of recording, and the layers to save, before anything runs.

The history keeps the options for a rerun.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType
from types import NoneType
from typing import Any

import torch

from pytest_torchlens.capture import Keep
from pytest_torchlens.capture import SaveOptions
from pytest_torchlens.capture import SavingError
from pytest_torchlens.capture import TraceError
from pytest_torchlens.capture import check_model
from pytest_torchlens.history.layers_and_operations import LoggedOperation
from pytest_torchlens.history.lookup import LookupKeyError
from pytest_torchlens.history.lookup import Query
from pytest_torchlens.history.lookup import is_key
from pytest_torchlens.history.lookup import valid_key
from pytest_torchlens.records.options import Option

__tracebackhide__ = True  # pytest leaves our frames out of the traceback of what a model raises

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def arguments_of(model: torch.nn.Module, input_args: Any, input_kwargs: Mapping[str, Any] | None) -> Arguments:
    """Return forward's arguments: a list or tuple holds the positional ones, anything else is the only one.

    Raises
    ------
    TraceError
        If `model` is not a module, or its forward cannot take the arguments.
    """
    check_model(model)
    if not isinstance(input_kwargs, Mapping | None):
        raise TraceError(
            "input_kwargs: expected a dict of forward's keyword arguments such as {'mask': mask}, got "
            f"{type(input_kwargs).__name__}; positional arguments go in one tuple: (model, (a, b))"
        )
    args = tuple(input_args) if isinstance(input_args, list | tuple) else (input_args,)
    kwargs = dict(input_kwargs or {})
    _check_fit(model, args, kwargs, isinstance(input_args, list))
    return args, kwargs


def _check_fit(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], was_list: bool) -> None:
    """Raise `TraceError` if forward cannot take the arguments; hint at a list that was meant as one argument."""
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
    """Whether code of the model that runs before forward may change its arguments."""
    hooks = model._forward_pre_hooks or torch.nn.modules.module._global_forward_pre_hooks
    return bool(hooks) or type(model).__call__ is not torch.nn.Module.__call__


@dataclass(frozen=True)
class TraceOptions:
    """Options of `log_forward_pass`, without those of the drawing.

    Raises
    ------
    LookupKeyError
        If `layers_to_save` cannot select layers of any history.
    """

    layers_to_save: LayersToSave = "all"
    saving: SaveOptions = dataclasses.field(default_factory=SaveOptions)
    random_seed: int | None = None
    exhaust: bool = False

    def __post_init__(self) -> None:
        """Check before anything runs."""
        if not self.saves_none and not self.saves_all:
            keys_and_tests(self.layers_to_save)

    @property
    def saves_all(self) -> bool:
        """Whether every layer is saved."""
        return isinstance(self.layers_to_save, str) and self.layers_to_save == "all"

    @property
    def saves_none(self) -> bool:
        """Whether no layer is saved."""
        wanted = self.layers_to_save
        return wanted is None or (isinstance(wanted, str | list | tuple) and wanted in ("none", [], ()))

    @property
    def keep(self) -> Keep:
        """Which values the recording keeps."""
        if self.saves_none:
            return "none"
        return "all" if self.saving == SaveOptions() else self.saving

    def again(
        self,
        random_seed: int | EllipsisType | None,
        layers_to_save: LayersToSave | EllipsisType,
        save_options: SaveOptions | EllipsisType | None,
        save_gradients: bool | EllipsisType,
    ) -> TraceOptions:
        """Return the options for another pass; ``...`` repeats an option, but streams to a new folder."""
        saving = self._saving_again() if save_options is ... else save_options
        gradients = self.saving.gradients if save_gradients is ... else save_gradients
        return TraceOptions(
            self.layers_to_save if layers_to_save is ... else layers_to_save,
            with_gradients(saving, gradients),
            self.random_seed if random_seed is ... else random_seed,
            self.exhaust,
        )

    def _saving_again(self) -> SaveOptions:
        if self.saving.stream_to is None:
            return self.saving
        return dataclasses.replace(self.saving, stream_to=_free(Path(self.saving.stream_to)))


_SAVING = Option("SaveOptions(detach=True, …) or None", (SaveOptions, NoneType))


def with_gradients(saving: SaveOptions | None, gradients: bool) -> SaveOptions:
    """Return the options, or the default ones, with `gradients` set.

    Raises
    ------
    TypeError
        If `saving` is neither SaveOptions nor None.
    """
    _SAVING.check("save_options", saving)
    return dataclasses.replace(saving or SaveOptions(), gradients=gradients)


def _free(folder: Path) -> Path:
    """Return the first of ``NAME-2``, ``NAME-3``, … that does not exist."""
    return next(path for number in itertools.count(2) if not (path := Path(f"{folder}-{number}")).exists())


Test = Query | Callable[[LoggedOperation], bool]
LayersToSave = str | int | Test | Sequence[str | int | Test] | None


def keys_and_tests(wanted: LayersToSave) -> tuple[list[str | int], list[Test]]:
    """Return the keys in `layers_to_save`, and the queries and functions."""
    items = wanted if isinstance(wanted, Sequence) and not isinstance(wanted, str | bytes) else [wanted]
    if odd := [hint for item in items if (hint := _why_not(item))]:
        raise LookupKeyError(f"layers_to_save cannot have {odd[0]}")
    keys = [valid_key(item) for item in items if is_key(item)]
    return keys, [item for item in items if isinstance(item, Query) or callable(item)]


def _why_not(item: object) -> str:
    """Return why an item of `layers_to_save` is invalid, or an empty string."""
    if isinstance(item, str) and item in ("", "all", "none"):
        return f"{item!r} among others; it stands alone" if item else "'', which is part of every label; say 'all'"
    if isinstance(item, torch.nn.Module):
        return f"the module {type(item).__name__} itself; name it by its address, as in 'features.6'"
    if isinstance(item, type) or not (is_key(item) or isinstance(item, Query) or callable(item)):
        return (
            f"{item!r:.80}: it takes labels, module addresses, places, parts of labels, queries and functions of an "
            "operation"
        )
    return ""


def places_that_pass(operations: list[LoggedOperation], tests: list[Test]) -> set[int]:
    """Return the places of the operations that one of the tests selects.

    Raises
    ------
    LookupKeyError
        If a test selects none.
    SavingError
        If a function raises; the message names the operation.
    """
    by_label = {op.label: op for op in operations}
    chosen: set[int] = set()
    for test in tests:
        found = {place for place, op in enumerate(operations) if _passes(op, test, by_label)}
        if not found:
            raise LookupKeyError(f"layers_to_save: no layer passes {test!r}")
        chosen |= found
    return chosen


def _passes(op: LoggedOperation, test: Test, by_label: dict[str, LoggedOperation]) -> bool:
    if isinstance(test, Query):
        return test.holds(op, by_label)
    try:
        return bool(test(op))
    except Exception as error:
        name = getattr(test, "__name__", repr(test))
        raise SavingError(
            f"layers_to_save: the function {name} raised {type(error).__name__}: {error} (on {op.label})"
        ) from error
