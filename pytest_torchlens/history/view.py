"""What live and loaded histories have in common: all of it derives from the operations and the model's record."""

from __future__ import annotations

import abc
import dataclasses
import functools
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from typing import Any
from typing import TypeAlias
from typing import overload

from pytest_torchlens.history import printing
from pytest_torchlens.history import tables
from pytest_torchlens.history.control_flow.conditions import lines_by_branch
from pytest_torchlens.history.layers_and_operations import LoggedOperation
from pytest_torchlens.history.live import BackwardPass
from pytest_torchlens.history.lookup import LookupKeyError
from pytest_torchlens.history.lookup import is_key
from pytest_torchlens.history.lookup import query
from pytest_torchlens.history.lookup import valid_key
from pytest_torchlens.history.printing import summary
from pytest_torchlens.history.walks import Walks
from pytest_torchlens.records import EscapeRecord
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import Measurements
from pytest_torchlens.records import MergedGraph
from pytest_torchlens.records import ModuleRecord
from pytest_torchlens.records import RolledEdge
from pytest_torchlens.records import close
from pytest_torchlens.records import count_text
from pytest_torchlens.records import merge
from pytest_torchlens.records import roll_edges

if TYPE_CHECKING:
    import networkx
    import pandas

    from pytest_torchlens.draw import Drawing
    from pytest_torchlens.history.layers_and_operations import Layer

    KeyOrLayer: TypeAlias = str | int | LoggedOperation | Layer


class HistoryView(abc.ABC):
    """The record of one forward pass, indexed by label, module address or index."""

    measurements: Measurements | None = None
    """Time, memory and FLOPs, after ``measure_forward_pass(model, x, history=history)``; None before."""

    # -- what a subclass has to define ---------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def operations(self) -> list[LoggedOperation]:
        """All layers, buffers and constants included, in execution order."""

    @property
    @abc.abstractmethod
    def walks(self) -> Walks:
        """Walks through the graph, by label."""

    @property
    @abc.abstractmethod
    def backward_passes(self) -> list[BackwardPass]:
        """The backward passes so far, with the layers that each reached; needs ``save_gradients=True``."""

    @abc.abstractmethod
    def record_without_operations(self) -> HistoryRecord:
        """Return the record without its operations."""

    @abc.abstractmethod
    def __getitem__(self, key: str | int) -> LoggedOperation | Layer:
        """Return what `key` names."""

    @property
    def changed_by(self) -> dict[str, float]:
        """How much each tensor behind an edit differs from the pass without edits, by label; empty without edits."""
        return dict(self.record_without_operations().changed_by or {})

    # -- the model -----------------------------------------------------------------------------------------------

    @property
    def input_layers(self) -> list[str]:
        """Labels of the model's input tensors."""
        return self._labels("is_input_layer")

    @property
    def output_layers(self) -> list[str]:
        """Labels of the model's output tensors."""
        return self._labels("is_output_layer")

    @property
    def buffer_layers(self) -> list[str]:
        """Labels of the buffers that operations read."""
        return self._labels("is_buffer_layer")

    @property
    def constant_layers(self) -> list[str]:
        """Labels of tensors of unknown origin."""
        return self._labels("is_constant")

    @property
    def internally_initialized_layers(self) -> list[str]:
        """Labels of the operations that make a tensor from no other tensor, as `torch.rand` does."""
        return self._labels("initialized_inside_model")

    @property
    def internally_terminated_bool_layers(self) -> list[str]:
        """Labels of the operations that give a single truth value which no operation reads."""
        return self._labels("is_terminal_bool_layer")

    @property
    def layers_computed_with_params(self) -> list[str]:
        """Labels of the operations with parameters among their arguments."""
        return self._labels("computed_with_params")

    def _labels(self, flag: str) -> list[str]:
        return [op.label for op in filter(operator.attrgetter(flag), self.operations)]

    @property
    def module_addresses(self) -> list[str]:
        """Addresses of the model's submodules in the order of their first calls."""
        return [module.address for module in self._submodules()]

    @property
    def module_types(self) -> dict[str, str]:
        """Class name of each submodule, by address."""
        return {module.address: module.module_type for module in self._submodules()}

    @property
    def module_num_passes(self) -> dict[str, int]:
        """How often each submodule was called, by address."""
        return {module.address: module.num_passes for module in self._submodules()}

    @property
    def module_pass_children(self) -> dict[str, list[str]]:
        """For each call of a submodule (``address:pass``) the calls of submodules that it made."""
        return {
            f"{module.address}:{number}": list(children)
            for module in self._submodules()
            for number, children in enumerate(module.pass_children, 1)
        }

    def _submodules(self) -> list[ModuleRecord]:
        return [module for module in self.record_without_operations().modules if module.address]

    @functools.cached_property
    def rolled_edges(self) -> tuple[RolledEdge, ...]:
        """Edges between layers, with the passes in which each carries data."""
        return roll_edges(self.operations)

    @property
    def truth_tests(self) -> tuple[EscapeRecord, ...]:
        """The `escapes` where Python tested a tensor itself for truth."""
        return tuple(escape for escape in self.record_without_operations().escapes if escape.is_truth_test)

    @property
    def lines_taken(self) -> dict[str, list[int]]:
        """Lines by file in branches that truth tests took."""
        return lines_by_branch(self.record_without_operations().escapes)[0]

    @property
    def lines_not_taken(self) -> dict[str, list[int]]:
        """Lines by file in branches that truth tests never took."""
        return lines_by_branch(self.record_without_operations().escapes)[1]

    def merge(self, other: HistoryView) -> MergedGraph:
        """Return this pass and another of the same model as one graph, in which each took its own branches.

        Two operations are merged if the same line of code ran them in the same pass of a loop.  `draw_difference` also
        takes a changed model: it compares what ran in which module, and may pair different passes of a loop.

        Parameters
        ----------
        other
            A history of the same model, usually with an input that takes another branch.

        Raises
        ------
        TypeError
            If `other` is not a history.
        ValueError
            If it is a history of another model.
        """
        if not isinstance(other, HistoryView):
            raise TypeError(f"merge: expected another history of {self.model_name}, got {type(other).__name__}")
        return merge(self.record(), other.record())

    # -- queries -------------------------------------------------------------------------------------------------

    def find(self, func: str | None = None, **wanted: Any) -> list[LoggedOperation]:
        """Return the operations that match all given attributes, in execution order.

        Parameters
        ----------
        func
            Layer type (``"conv2d"``, ``"*pool*"``) or the function's name.
        **wanted
            The other attributes of `Query`: ``module``, ``label``, ``followed_by``, ``preceded_by``, ``dtype``,
            ``shape``, ``with_params``.

        Examples
        --------
        >>> history.find("*pool*", preceded_by="relu")  # doctest: +SKIP
        """
        return query(func, wanted).select(self.operations)

    def ancestors(self, of: KeyOrLayer) -> tuple[str, ...]:
        """Return the labels of all that an operation, or any pass of a layer, is computed from, in execution order.

        Parameters
        ----------
        of
            A key, as in ``history[key]``, or an operation or a layer itself.
        """
        return self.walks.ancestors(self._labels_of(of))

    def descendants(self, of: KeyOrLayer) -> tuple[str, ...]:
        """Return the labels of all that is computed from an operation, or any pass of a layer, in execution order."""
        return self.walks.descendants(self._labels_of(of))

    def path(self, start: KeyOrLayer, end: KeyOrLayer) -> tuple[str, ...]:
        """Return the labels on a shortest path from one operation or layer to another, both ends included.

        If a layer has several passes, the path may begin or end at any of them.

        Raises
        ------
        NoPathError
            If there is no path; the message says whether data flow the other way.
        """
        return self.walks.path(self._labels_of(start), self._labels_of(end))

    def _labels_of(self, which: KeyOrLayer) -> tuple[str, ...]:
        operation: Any = self[valid_key(which)] if is_key(which) else which
        passes = getattr(operation, "passes", (operation,))
        if not all(isinstance(op, LoggedOperation) for op in passes):
            raise LookupKeyError(f"expected a key, an operation or a layer, got {which!r:.80}")
        labels = tuple(op.label for op in passes)
        if unknown := [label for label in labels if label not in self.walks]:
            raise LookupKeyError(f"{unknown[0]!r} is not an operation of this history of {self.model_name}")
        return labels

    def to_pandas(self, *, rolled: bool = False) -> pandas.DataFrame:
        """Return a table with a row for each operation and a column for each field, indexed by label; needs pandas.

        Parameters
        ----------
        rolled
            Whether all passes of a layer share one row; a value that differs between them is then a tuple.
        """
        return tables.to_pandas(self.operations, rolled)

    def to_networkx(self, *, rolled: bool = False) -> networkx.MultiDiGraph:
        """Return the graph with the fields as attributes of nodes and edges; needs networkx.

        Parameters
        ----------
        rolled
            Whether all passes of a layer share one node, as they share one row in `to_pandas`.  Edges have the passes
            in which they carry data; the graph may have cycles.
        """
        if rolled:
            return tables.rolled_to_networkx(self.operations, self.rolled_edges)
        return tables.to_networkx(self.operations)

    def to_text(self, *, rolled: bool = False) -> str:
        """Return the graph as text for a terminal: a line for each operation, inside the modules that it runs in.

        A line has the label, the shape, and after ``<-`` what the operation reads, where that is not the line above.

        Parameters
        ----------
        rolled
            Whether all passes of a layer share one line.  Default: False.

        Examples
        --------
        >>> print(history.to_text())  # doctest: +SKIP
        """
        from pytest_torchlens import draw

        return draw.graph_text(self, rolled)

    @overload
    def draw(self, path: None = None, **options: Any) -> Drawing: ...
    @overload
    def draw(self, path: Path | str, **options: Any) -> Path: ...
    def draw(self, path: Path | str | None = None, **options: Any) -> Drawing | Path:
        """Draw the graph, for a notebook to show, or into a file.

        Parameters
        ----------
        path
            Its ending is the format: ``.svg``, ``.pdf``, ``.png`` or ``.dot``.  Default: None, no file.
        **options
            Those of `DrawOptions`: ``vis_opt``, ``vis_nesting_depth``, ``direction``, ``focus``, ``color_by``,
            ``node_text``, ``theme``, ``legend``, ``gradients``, ``repeats``, ``max_nodes``.

        Returns
        -------
        Drawing | Path
            Without `path` the drawing, which a notebook shows and ``drawing.save(path)`` writes; else the path.

        Raises
        ------
        OptionError
            If an option is not valid, or does not fit this model.
        DrawingUnavailable
            If Graphviz is not installed, or cannot draw this graph.

        Examples
        --------
        >>> history.draw(vis_opt="rolled")  # doctest: +SKIP
        >>> history.draw("inside.pdf", focus="layer3.0", color_by="time", theme="print")  # doctest: +SKIP
        """
        from pytest_torchlens import draw

        drawing = draw.DrawOptions.of(**options)
        return draw.show(self, drawing) if path is None else draw.draw(self, path, drawing)

    @overload
    def draw_difference(self, before: HistoryView | HistoryRecord, path: None = None, **options: Any) -> Drawing: ...
    @overload
    def draw_difference(self, before: HistoryView | HistoryRecord, path: Path | str, **options: Any) -> Path: ...
    def draw_difference(
        self, before: HistoryView | HistoryRecord, path: Path | str | None = None, **options: Any
    ) -> Drawing | Path:
        """Draw this forward pass and an earlier one as one graph.

        Added operations have a ``+``, removed ones a ``−``, changed ones a ``~`` and a line that says what changed.
        A module that is equal, added or removed as a whole is drawn as one node, unless a depth is given.

        Parameters
        ----------
        before
            The history, or its record, of an earlier pass of this model or of a former version of it.
        path, **options
            As in `draw`, and so is what is returned.

        Raises
        ------
        OptionError, DrawingUnavailable
            As `draw` does.

        Examples
        --------
        >>> after.draw_difference(before, "what_changed.svg")  # doctest: +SKIP
        """
        from pytest_torchlens import draw

        drawing = draw.DrawOptions.of(**options)
        if path is None:
            return draw.show_difference(before, self, drawing)
        return draw.draw_difference(before, self, path, drawing)

    # -- to text and to disk -------------------------------------------------------------------------------------

    def save(self, path: Path | str) -> None:
        """Write the history with its activations and gradients into a folder, as JSON and safetensors.

        `pytest_torchlens.load` reads it again.  Tensors that safetensors cannot store (sparse, nested, quantized) are
        left out, with a warning.

        Raises
        ------
        HistoryFileError
            If the folder is not empty, or cannot be written.
        """
        from pytest_torchlens.history.store import save

        save(self, path)

    def record(self) -> HistoryRecord:
        """Return the whole record of this pass, ready for JSON."""
        return dataclasses.replace(
            self.record_without_operations(), operations=tuple(op.plain() for op in self.operations)
        )

    def __reduce__(self) -> Any:
        """Refuse to be pickled or copied; `save` writes a history."""
        raise TypeError("a history cannot be pickled or copied: history.save(folder) writes it, load(folder) reads it")

    def __iter__(self) -> Iterator[LoggedOperation]:
        """Yield the layers in execution order."""
        return (op for op in self.operations if op.operation_num >= 0)

    def __len__(self) -> int:
        """Return the number of inputs, operations and outputs."""
        return len(self.layer_list)

    def __getattr__(self, name: str) -> Any:
        """Return the model's other metadata: totals, times and modules, as in `records.HistoryRecord`."""
        if hasattr(type(self), name):  # a property raised AttributeError: raise it again
            return getattr(type(self), name).__get__(self)
        if name in HistoryRecord.__dataclass_fields__:
            return getattr(self.record_without_operations(), name)
        raise self._no_attribute(name)

    def _no_attribute(self, name: str) -> AttributeError:
        """Return the error for an unknown name, with the nearest valid names."""
        hint = close(name, [public for public in dir(self) if not public.startswith("_")])
        return AttributeError(f"{type(self).__name__} has no attribute {name!r}{hint and '; '}{hint}")

    def __dir__(self) -> list[str]:
        """Return the names of all attributes, for completion in notebooks."""
        return sorted({*super().__dir__(), *HistoryRecord.__dataclass_fields__})

    def __str__(self) -> str:
        """Return the summary: structure, tensors, parameters, seed, time, modules, layers."""
        return summary(self.record_without_operations())

    def __repr__(self) -> str:
        """Return one line."""
        edits = f", {count_text(len(self.edits), 'edit')}" if self.edits else ""
        return f"<ModelHistory of {self.model_name}: {len(self)} layers{edits}>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """Return for notebooks the summary, the rolled graph if it is not too large, and a table of the layers."""
        from pytest_torchlens.draw import picture_of

        svg = picture_of(self)
        html = printing.of_history(self.record_without_operations(), self.operations, svg or "")
        return {"text/plain": repr(self), "text/html": html} | ({"image/svg+xml": svg} if svg else {})

    def _repr_html_(self) -> str:
        """Return the summary and a table of the layers, for consoles that show no pictures."""
        return printing.of_history(self.record_without_operations(), self.operations)

    def _ipython_key_completions_(self) -> list[str]:
        """Return the keys that a notebook completes: labels, layers and addresses of modules."""
        layers = dict.fromkeys(op.layer_label for op in self)
        return list(dict.fromkeys([*(op.label for op in self.operations), *layers, *self.module_addresses]))
