"""A history read from disk; it has what a live history has, except what needs the model."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pytest_torchlens.history.layers_and_operations import Layer
from pytest_torchlens.history.layers_and_operations import LoggedOperation
from pytest_torchlens.history.layers_and_operations import fields_by_name
from pytest_torchlens.history.live import BackwardPass
from pytest_torchlens.history.lookup import Lookup
from pytest_torchlens.history.lookup import LookupEntry
from pytest_torchlens.history.model_history import ModelHistory
from pytest_torchlens.history.source import StackFrame
from pytest_torchlens.history.store import StoredHistory
from pytest_torchlens.history.store import path_of
from pytest_torchlens.history.view import HistoryView
from pytest_torchlens.history.walks import Walks
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import address_of


def load(path: Path | str) -> LoadedHistory:
    """Read a history that was saved with ``history.save(path)``; runs nothing that the files hold.

    Raises
    ------
    HistoryFileError
        If there is no history at `path`, it is damaged, or its version is newer; names the file and the reason.
    """
    return LoadedHistory(StoredHistory(path_of(path)))


class LoadedHistory(HistoryView):
    """The record of one forward pass, read from disk, indexed by label, module address or index.

    The functions, arguments and random states of the calls are not on disk.  Tensors are read when they are used.
    """

    def __init__(self, stored: StoredHistory) -> None:
        self._stored = stored

    @functools.cached_property
    def operations(self) -> list[LoggedOperation]:
        """All layers, buffers and constants included, in execution order."""
        total = len(self._stored.saved.history.layer_list)
        return [
            LoggedOperation(**fields_by_name(op), lazy_fields=LoadedFields(self, op.label), operations_total=total)
            for op in self._stored.saved.history.operations
        ]

    @functools.cached_property
    def walks(self) -> Walks:
        """Walks through the graph, by label."""
        return Walks(self._stored.saved.history.operations)

    @property
    def left_out(self) -> dict[str, str]:
        """Activations (by label) and gradients (``"gradient 1 LABEL"``) not on disk, each with the reason."""
        return dict(self._stored.saved.left_out or {})

    @property
    def backward_passes(self) -> list[BackwardPass]:
        """The backward passes before it was saved, with the layers that each reached."""
        return list(self._stored.saved.backward_passes)

    @property
    def layer_labels(self) -> list[str]:
        """Labels of the layers that an index counts: the saved ones, or all if none are saved."""
        return [label for _, label in sorted(self._label_by_index.items())]

    def record_without_operations(self) -> HistoryRecord:
        """Return the record without its operations."""
        return dataclasses.replace(self._stored.saved.history, operations=())

    @functools.cached_property
    def _label_by_index(self) -> dict[int, str]:
        labels = {key: op.label for op in self.operations for key in op.lookup_keys if isinstance(key, int)}
        return {index: label for index, label in labels.items() if index >= 0}

    @functools.cached_property
    def _lookup(self) -> Lookup[LoggedOperation]:
        by_label = {op.label: op for op in self.operations}
        return Lookup(map(self._entry, self.operations), [by_label[label] for label in self.layer_labels])

    @functools.cached_property
    def _addresses(self) -> set[str]:
        return {module.address for module in self._stored.saved.history.modules}

    def _entry(self, op: LoggedOperation) -> LookupEntry[LoggedOperation]:
        modules = tuple(address_of(call, self._addresses) for call in op.modules_exited)
        calls = [
            call if call != module else f"{call}:1" for call, module in zip(op.modules_exited, modules, strict=True)
        ]
        own_names = (*([op.buffer_address] if op.buffer_address else []), *calls)
        return LookupEntry(op, op.layer_label, op.layer_label_short, op.pass_num, op.label, own_names, modules)

    def __getitem__(self, key: str | int) -> LoggedOperation | Layer:
        """Return what `key` names: a label, a short label, a module address or an index."""
        matches = self._lookup.find(key)
        return matches[0] if len(matches) == 1 else Layer(tuple(matches), lambda: self.rolled_edges)

    def __contains__(self, key: object) -> bool:
        """Return whether `key` names a layer."""
        return key in self._lookup

    def edit(
        self,
        edits: Mapping[Any, Any] | None = None,
        *,
        model: torch.nn.Module | None = None,
        input_args: Any = (),
        input_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> ModelHistory:
        """Run the model again, and return the history of that pass with some activations changed.

        A loaded history has no recorded calls, so the model and its inputs must be given.  Operations are found again
        by the module call in which they ran, their function, and their order there.  A warning says where the pass
        that was run again differs from the loaded one.

        Parameters
        ----------
        edits
            As in `ModelHistory.edit`, with the keys of this history.
        model
            The model.
        input_args, input_kwargs
            Its inputs, as in `log_forward_pass`.  The random seed is that of the loaded pass.
        **options
            The others of `ModelHistory.edit`: ``at``, ``inputs``, ``parameters``, ``live``, ``check_decisions``.

        Raises
        ------
        NotReplayableError
            If the model or its inputs are missing, or this history is of an edited pass.
        LookupKeyError
            If there is no such key, or its operation does not run with this model and inputs.
        """
        from pytest_torchlens.edit.loaded import edit_loaded

        return edit_loaded(self, edits, model, (input_args, input_kwargs), options)

    def _no_attribute(self, name: str) -> AttributeError:
        """Return the error for an unknown name; some names exist only on a live history."""
        if hasattr(ModelHistory, name) or name == "recording":
            return AttributeError(f"a loaded history has no {name!r}: that needs the model, or its recording")
        return super()._no_attribute(name)

    def frames(self, label: str) -> tuple[StackFrame, ...]:
        """Return the code positions that led to an operation."""
        saved = self._stored.saved
        frames = [saved.frames[position] for position in (saved.stacks or {}).get(label, ())]
        return tuple(
            StackFrame(
                call_fname=frame.file,
                call_linenum=frame.line,
                function=frame.function,
                code_context=list(frame.context),
            )
            for frame in frames
        )

    def activation(self, label: str) -> torch.Tensor | None:
        """Return an operation's tensor."""
        return self._stored.activation(label)

    def gradients(self, label: str) -> dict[int, torch.Tensor]:
        """Return an operation's gradients by the number of the backward pass."""
        return self._stored.gradients(label)


class LoadedFields:
    """Reads the fields of one loaded operation that are looked up only when used."""

    def __init__(self, history: LoadedHistory, label: str) -> None:
        self._history = history
        self._label = label

    @property
    def walks(self) -> Walks:
        """The graph."""
        return self._history.walks

    def activation(self) -> torch.Tensor | None:
        """Return the saved tensor."""
        return self._history.activation(self._label)

    def gradients(self) -> dict[int, torch.Tensor]:
        """Return the gradients by the number of the backward pass."""
        return self._history.gradients(self._label)

    def stack(self) -> tuple[StackFrame, ...]:
        """Return the code positions from the model's forward down to the call."""
        return self._history.frames(self._label)
