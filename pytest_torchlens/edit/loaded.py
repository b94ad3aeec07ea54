"""Edits a history that was read from disk: records its pass once more, and edits that."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any

import torch

from pytest_torchlens.edit.module_state import ModuleState
from pytest_torchlens.edit.places import Part
from pytest_torchlens.edit.unwritten import on_unwritten_memory
from pytest_torchlens.history import LookupKeyError
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.history.history_options import TraceOptions
from pytest_torchlens.history.history_options import arguments_of
from pytest_torchlens.history.layers_and_operations import LoggedOperation
from pytest_torchlens.history.loaded import LoadedHistory
from pytest_torchlens.records import address_of
from pytest_torchlens.records import pass_of
from pytest_torchlens.replay import NotReplayableError


def edit_loaded(
    loaded: LoadedHistory,
    edits: Mapping[Any, Any] | None,
    model: torch.nn.Module | None,
    arguments: tuple[Any, Mapping[str, Any] | None],
    options: dict[str, Any],
) -> ModelHistory:
    """Return the history of the edited pass; `LoadedHistory.edit` has the parameters.

    Raises
    ------
    NotReplayableError
        If the model or its inputs are not given, or the history is itself of an edited pass.
    LookupKeyError
        If an operation that a key names does not run with them.
    """
    _check_complete(loaded, model, arguments)
    assert model is not None  # noqa: S101 - for the type checker
    seed = loaded.random_seed_used
    given = arguments_of(model, *arguments)
    state = ModuleState(model, given)
    try:
        again = ModelHistory.of(model, given, TraceOptions(random_seed=seed))
    finally:
        state.restore()
    names = _Names(loaded, again)
    if difference := names.first_difference():
        warnings.warn(
            f"edit: the pass that was run again differs from the loaded one, first at {difference}: the edit is of the "
            "pass that was run again; give the model and the inputs of the loaded one",
            stacklevel=3,
        )
    if expand := options.pop("expand", ()):
        again = again.edit(expand=expand)
        names = _Names(loaded, again)
    if "gradients" in options:
        options["gradients"] = names.of_keys(options["gradients"])
    return again.edit(names.of_keys(edits), **options)


def _check_complete(loaded: LoadedHistory, model: object, arguments: tuple[Any, Mapping[str, Any] | None]) -> None:
    args, kwargs = arguments
    has_inputs = not (isinstance(args, tuple) and not args) or bool(kwargs) or not loaded.input_layers
    missing = [*([] if model is not None else ["its model"]), *([] if has_inputs else ["its inputs"])]
    if missing:
        raise NotReplayableError(
            f"edit: a history loaded from disk has no recorded calls, and {' and '.join(missing)} must be given to run "
            f"{loaded.model_name} again: loaded.edit(edits, model=model, input_args=x)"
        )
    if loaded.edits:
        edits = "; ".join(map(str, loaded.edits))
        raise NotReplayableError(
            f"edit: this history is of an edited pass ({edits:.200}), and what was put there is not on disk: load the "
            "pass without edits, and make all edits at once"
        )


class _Names:
    """Knows under which labels the operations of a loaded pass ran again."""

    def __init__(self, loaded: LoadedHistory, again: ModelHistory) -> None:
        self._loaded = loaded
        self._again: dict[Any, LoggedOperation] = dict(_places(again))
        self._unwritten = on_unwritten_memory(again.recording)
        self._place_of = {op.label: place for place, op in _places(loaded)}

    def first_difference(self) -> str:
        """Return the label of the first operation that has other values now, or does not run; ``""`` for none."""
        for op in self._loaded.operations:
            now = self._again.get(self._place_of[op.label])
            if now is None:
                return f"{op.label}, which did not run"
            if now.call_id in self._unwritten or not (op.fingerprint and now.fingerprint):
                continue
            if op.fingerprint != now.fingerprint:
                return f"{op.label}, which has other values"
        return ""

    def of_keys(self, edits: Any) -> Any:
        """Return edits with the labels of now; what is no mapping is returned as it is, for `edit` to refuse."""
        return {self.of_key(key): change for key, change in edits.items()} if isinstance(edits, Mapping) else edits

    def of_key(self, key: Any) -> Any:
        """Return a key of an edit, as `places_of` takes it, with the labels of now."""
        if isinstance(key, Part):
            operation = None if key.operation is None else self._name(key.operation)
            return Part.of(self._name(key.key), operation, key.index)
        if isinstance(key, tuple) and key:
            name, *others = key
            return (self._name(name), *(self._name(other) if isinstance(other, str) else other for other in others))
        return self._name(key)

    def _name(self, key: Any) -> Any:
        if key not in self._loaded:
            return key  # a parameter, or an error, which the history of now tells
        found: Any = self._loaded[key]
        passes = getattr(found, "passes", (found,))
        now = [self._counterpart(op) for op in passes]
        if len({op.layer_label for op in now}) > 1:
            raise LookupKeyError(
                f"{key!r}: its passes are not one layer in the pass that was run again: name one of them"
            )
        return now[0].layer_label if len(passes) > 1 or now[0].layer_passes_total == 1 else now[0].label

    def _counterpart(self, op: LoggedOperation) -> LoggedOperation:
        now = self._again.get(self._place_of[op.label])
        if now is None:
            where = f" in {op.containing_module_origin}" if op.containing_module_origin else ""
            what = op.func_applied_name or op.layer_type
            raise LookupKeyError(f"{op.label} ({what}{where}) did not run again: is it the model of the loaded pass?")
        return now


def _places(history: LoadedHistory | ModelHistory) -> Iterator[tuple[Any, LoggedOperation]]:
    """Yield where each tensor was made: call of a module, function, number of the call of it there, output."""
    addresses = {module.address for module in history.record_without_operations().modules}
    seen: Counter[Any] = Counter()
    numbers: dict[int, int] = {}
    for op in history.operations:
        call = op.containing_module_origin or ""
        name = op.buffer_address or op.func_applied_name or op.layer_type
        site = (address_of(call, addresses), pass_of(call, addresses), name)
        if op.call_id < 0 or op.call_id not in numbers:
            numbers[op.call_id] = seen[site]
            seen[site] += 1
        yield (*site, numbers[op.call_id], op.iterable_output_index), op
