"""ModelHistory: everything known about one forward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from types import EllipsisType
from typing import TYPE_CHECKING
from typing import Any

import torch

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import SaveOptions
from pytest_torchlens.capture import record
from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.process_limits import COLLECTOR
from pytest_torchlens.history.control_flow.conditions import escape_records
from pytest_torchlens.history.control_flow.conditions import mark_conditions
from pytest_torchlens.history.control_flow.loop_endings import loop_records
from pytest_torchlens.history.graph import Node
from pytest_torchlens.history.graph import build_nodes
from pytest_torchlens.history.history_options import Arguments
from pytest_torchlens.history.history_options import LayersToSave
from pytest_torchlens.history.history_options import TraceOptions
from pytest_torchlens.history.history_options import arguments_of
from pytest_torchlens.history.history_options import keys_and_tests
from pytest_torchlens.history.history_options import places_that_pass
from pytest_torchlens.history.layers.passes import group_passes
from pytest_torchlens.history.layers_and_operations import Layer
from pytest_torchlens.history.layers_and_operations import LoggedOperation
from pytest_torchlens.history.layers_and_operations import of_fields
from pytest_torchlens.history.live import BackwardPass
from pytest_torchlens.history.live import LiveData
from pytest_torchlens.history.live import LiveFields
from pytest_torchlens.history.lookup import Lookup
from pytest_torchlens.history.lookup import LookupEntry
from pytest_torchlens.history.lookup import entry_of_node
from pytest_torchlens.history.modules import Modules
from pytest_torchlens.history.operation_records import arguments_with_labels
from pytest_torchlens.history.operation_records import assign_labels
from pytest_torchlens.history.operation_records import fields_of
from pytest_torchlens.history.rerun import graph_differences
from pytest_torchlens.history.source import source_place
from pytest_torchlens.history.view import HistoryView
from pytest_torchlens.history.walks import Walks
from pytest_torchlens.records import AppliedEdit
from pytest_torchlens.records import EscapeRecord
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import LoopRecord
from pytest_torchlens.records import SourcePlace

if TYPE_CHECKING:
    from pytest_torchlens.edit import Sweep
    from pytest_torchlens.edit.request import Request
    from pytest_torchlens.replay import Subgraph

__tracebackhide__ = True  # pytest leaves our frames out of the traceback of what a model raises


class ModelHistory(HistoryView):
    """The record of one forward pass, indexed by label, module address or index.

    `pytest_torchlens.log_forward_pass` makes it.  The graph is built at first use.

    Parameters
    ----------
    recording
        What ``pytest_torchlens.capture.record`` returned.
    options
        How the pass was recorded, and which layers are saved.

    Examples
    --------
    >>> history["conv2d_3_7"].tensor_contents  # doctest: +SKIP
    >>> history["features.6"].parent_layers  # doctest: +SKIP
    """

    def __init__(self, recording: Recording, options: TraceOptions | None = None) -> None:
        if not isinstance(recording, Recording):
            raise TypeError(
                f"expected a Recording, got {type(recording).__name__}; log_forward_pass(model, x) makes a ModelHistory"
            )
        self.recording = recording
        self._options = options or TraceOptions()
        self._escapes: tuple[EscapeRecord, ...] = ()
        self.graph_differences: tuple[str, ...] = ()
        """The differences from the graph of the pass that `rerun` ran again, one sentence each."""
        self.arguments: Arguments | None = None
        """Forward's arguments; None if they are not known."""
        self.edits: tuple[AppliedEdit, ...] = ()
        """The edits that `edit` made in this pass."""
        self.expansions: dict[str, str] = {}
        """What `edit` ran as its steps, and by how much the outputs then differ."""
        self.original: ModelHistory | None = None
        """The pass without any of the edits; None for a pass without edits."""
        self.requests: tuple[Request, ...] = ()
        """The edits as they were asked for, one request for each call of `edit`."""

    @property
    def options(self) -> TraceOptions:
        """How the pass was recorded, and which layers are saved."""
        return self._options

    @classmethod
    def of(cls, model: torch.nn.Module, arguments: Arguments, options: TraceOptions) -> ModelHistory:
        """Run a forward pass and return its history."""
        args, kwargs = arguments
        recording = record(model, args, kwargs, keep=options.keep, seed=options.random_seed, exhaust=options.exhaust)
        history = cls(recording, options)
        history.arguments = arguments
        if not (options.saves_all or options.saves_none):
            _ = history._saved_nodes  # frees the tensors that are not to be saved
        return history

    def rerun(
        self,
        input_args: Any = (),
        input_kwargs: Mapping[str, Any] | None = None,
        *,
        random_seed: int | EllipsisType | None = ...,
        layers_to_save: LayersToSave | EllipsisType = ...,
        save_options: SaveOptions | EllipsisType | None = ...,
        save_gradients: bool | EllipsisType = ...,
    ) -> ModelHistory:
        """Run the model again and return the new history; options that are not given here are those of this pass.

        Its ``graph_differences`` say where its graph differs from this one.  If this pass streamed to a folder
        ``NAME``, the new one streams to the first of ``NAME-2``, ``NAME-3``, … that does not exist.

        Parameters
        ----------
        input_args, input_kwargs, random_seed, layers_to_save, save_options, save_gradients
            As in `log_forward_pass`; ``...`` (default) means the value of this pass.

        Raises
        ------
        ReferenceError
            If the model no longer exists: a history does not keep it.
        """
        model = self.recording.model()
        if model is None:
            raise ReferenceError(
                f"{self.model_name} no longer exists: a history does not keep its model; keep it yourself to rerun it"
            )
        options = self._options.again(
            random_seed=random_seed,
            layers_to_save=layers_to_save,
            save_options=save_options,
            save_gradients=save_gradients,
        )
        history = ModelHistory.of(model, arguments_of(model, input_args, input_kwargs), options)
        history.graph_differences = graph_differences(self.operations, history.operations, self.recording.modules)
        return history

    def subgraph(
        self,
        start: str | int | Iterable[str | int] | None = None,
        end: str | int | Iterable[str | int] | None = None,
        *,
        operations: Iterable[str | int] | None = None,
    ) -> Subgraph:
        """Return a part of the graph, which can be run again with other values, or exported.

        It runs on the saved activations, and on the model's parameters and the inputs as they are now: these must not
        have changed.  What was not saved is computed from the inputs.

        Parameters
        ----------
        start
            Keys of the values with which it begins; None (default) for all that the model began with.
        end
            Keys of the values that it returns; None (default) for the model's outputs.
        operations
            Keys of exactly the operations that it has, in place of `start`; it returns what others read of them, or
            `end`.

        Raises
        ------
        LookupKeyError
            If there is no such key; the message has the nearest one.
        ValueError
            If `end` does not depend on `start`.

        Examples
        --------
        >>> part = history.subgraph("relu_1", "linear_1")  # doctest: +SKIP
        >>> part.run({"relu_1": 0.0})["linear_1_5"]  # doctest: +SKIP
        """
        from pytest_torchlens.replay import Subgraph

        return Subgraph(self, start, end, operations)

    def edit(  # noqa: PLR0913 - options by name
        self,
        edits: Mapping[Any, Any] | None = None,
        *,
        at: Any = None,
        inputs: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
        gradients: Mapping[Any, Any] | None = None,
        expand: Iterable[str] = (),
        live: bool = False,
        check_decisions: bool = True,
    ) -> ModelHistory:
        """Return the history of this pass with some activations changed, and all behind them computed anew.

        What is not behind an edit is shared with this history.  The model and this history stay as they are.

        Parameters
        ----------
        edits
            What to put where.  A key is one that the history can be asked by (``"relu_3_8"``, ``"blocks.4.attn"``; a
            layer of several passes is edited in each); ``(key, operation)`` changes only what that operation reads;
            ``Part(key)[:, 3]`` or ``(key, (0, 3))`` only a part of the tensor.  A change is a number for each element,
            a tensor of the same shape and dtype, a function of the tensor, or an activation of another history
            (``other["relu_3_8"]``).
        at
            The index of all keys that have none: as in ``tensor[index]``, or by name: ``{"position": 3}``, with
            ``example`` (dimension 0), ``channel`` (1), ``position`` (-2), ``feature`` (-1), ``head`` (-3, or
            ``(number, of)`` for a part of the features), ``mask`` (a boolean tensor).
        inputs, parameters
            Changes of inputs, by the name of forward's parameter (``"x"``, ``"batch.pixels"`` for ``batch["pixels"]``),
            and of parameters and buffers, by any of their addresses.
        gradients
            Changes of the gradients of activations, by key: a later backward pass from what the edited pass returns
            goes on with them.
        expand
            ``{"sdpa"}``: the model runs again with `scaled_dot_product_attention` as its steps, so that keys name its
            scores (``matmul``) and patterns (``softmax``); ``expansions`` says by how much the outputs then differ.
        live
            Whether the model itself runs again, so that Python decides anew on what it reads of the edited values.
            By default (False) the recorded operations are replayed, and the model is not called.
        check_decisions
            Whether a replay raises if an edit changes what Python read, or a size; False goes on with the recorded
            operations.

        Raises
        ------
        LookupKeyError, ValueError, TypeError
            If a key or a change does not fit.
        DecisionChangedError
            See `check_decisions`.
        NotReplayableError
            If an operation cannot be run again, or with `live` did not run.

        Examples
        --------
        >>> edited = history.edit({"relu_1": 0.0, "layer4.1": lambda t: t.roll(1, 0)})  # doctest: +SKIP
        >>> edited["output_1"].tensor_contents  # doctest: +SKIP
        """
        from pytest_torchlens.edit import edit

        return edit(
            self,
            edits,
            at=at,
            inputs=inputs,
            parameters=parameters,
            gradients=gradients,
            expand=expand,
            live=live,
            check_decisions=check_decisions,
        )

    @functools.cached_property
    def changed_by(self) -> dict[str, float]:
        """How much each tensor behind an edit differs from the pass without edits, by label; empty without edits.

        It is the norm of the difference, relative to the norm; infinite if the change cannot be measured.
        """
        from pytest_torchlens.edit.differences import changed_by

        return {} if self.original is None else changed_by(self, self.original)

    def sweep(  # noqa: PLR0913 - options by name
        self,
        edits: Mapping[Any, Any] | Iterable[Any],
        *,
        metric: Callable[[Any], Any] | Mapping[str, Callable[[Any], Any]],
        clean: ModelHistory | None = None,
        corrupted: ModelHistory | None = None,
        direction: str | None = None,
        at: Any = None,
        batch: int = 32,
        memory: int = 2**30,
        check_decisions: bool = True,
        keep_graph: bool = False,
        progress: bool | None = None,
        **others: Any,
    ) -> Sweep:
        """Make many edits, each by itself, and measure what the model returns: of this pass, or of the corrupted one.

        Alone, this pass is edited; of two passes that which `direction` says, also if it is not this one.
        Only what is behind an edit runs.  Edits of the same values run together, stacked by `torch.vmap`; their
        results may differ from those of one edit alone by rounding.  A stack is checked against one edit that runs
        alone; where they differ by more, or an operation cannot be mapped, edits run one by one.

        Parameters
        ----------
        edits
            A list of edits, or a mapping of edits by name (``(row, column)`` for a heat map).  An edit is a mapping as
            `edit` takes it.  With `clean` or `corrupted` it may be a key alone (``"relu_1"``, ``Part("relu_1")[:, 3]``,
            ``("relu_1", "add_2")``), which takes the activation of the other pass.  Inputs and parameters are named by
            keys: ``"input_1"``, ``"fc.weight"``.
        metric
            A function of the model's output, or several by name.  It returns a number, or a tensor of one number for
            each example, from which intervals are made.
        clean, corrupted
            The other pass: this history takes the role that is not given.
        direction
            ``"denoising"`` (default): the corrupted pass is edited, and keys take activations of the clean one.
            ``"noising"``: the reverse.
        at
            As of `edit`.
        batch
            How many edits run together at most (default 32); with 1 each is bit for bit what `edit` gives.
        memory
            Bytes that the values that they change may take together (default 1 GiB); so may activations kept for all.
        check_decisions
            As of `edit` (default True).
        keep_graph
            Whether ``measured`` can be differentiated by what edits put there, such as a vector that a function adds;
            the graphs of all edits stay in memory.  By default (False) they are let go.
        progress
            Whether to print the number of edits made; by default (None) if standard error is a terminal.
        **others
            None: ``inputs``, ``parameters``, ``gradients``, ``expand`` and ``live`` raise, and say what to do instead.

        Raises
        ------
        LookupKeyError, ValueError, TypeError
            If an edit or an option does not fit, or a metric returns something else than numbers.
        NotReplayableError
            If the activations of the other pass cannot be computed.  An edit for which `edit` would raise this or a
            `DecisionChangedError` is NaN in the results, and `Sweep.refused` has the reason.

        Examples
        --------
        >>> results = history.sweep([{f"relu_{n}": 0.0} for n in range(1, 9)], metric=loss)  # doctest: +SKIP
        >>> results.effects()  # doctest: +SKIP
        """
        from pytest_torchlens.edit import sweep

        return sweep(
            self,
            edits,
            metric=metric,
            clean=clean,
            corrupted=corrupted,
            direction=direction,
            at=at,
            batch=batch,
            memory=memory,
            check_decisions=check_decisions,
            keep_graph=keep_graph,
            progress=progress,
            **others,
        )

    # -- the graph ---------------------------------------------------------------------------------------------

    @functools.cached_property
    def nodes(self) -> list[Node]:
        """Inputs, operations and outputs in execution order, with the buffers and constants that they read."""
        with COLLECTOR.raised():
            nodes = build_nodes(self.recording)
            assign_labels(nodes, group_passes(nodes))
            self._escapes = escape_records(self.recording, nodes)
            mark_conditions(self.recording, nodes, self._escapes)
        return nodes

    @functools.cached_property
    def _modules(self) -> Modules:
        return Modules(self.recording, self.nodes)

    @functools.cached_property
    def _layers(self) -> list[Node]:
        return [node for node in self.nodes if node.layer_total_num >= 0]

    @functools.cached_property
    def _saved_nodes(self) -> list[Node]:
        if self._options.saves_all:
            return self._layers
        if self._options.saves_none:
            return []
        nodes = self._select(self._options.layers_to_save)
        self._live.forget_others(nodes)
        return nodes

    def _select(self, wanted: LayersToSave) -> list[Node]:
        lookup = Lookup(self._entries.values(), self._layers)
        keys, tests = keys_and_tests(wanted)
        ids = {id(node) for key in keys for node in lookup.matching(key)}
        if tests:
            drafts = [self._make_operation(node, ()) for node in self.nodes]
            ids |= {id(self.nodes[index]) for index in places_that_pass(drafts, tests)}
        return [node for node in self.nodes if id(node) in ids]

    @functools.cached_property
    def _live(self) -> LiveData:
        live = LiveData(self.recording, self.nodes, self._options.saving)
        if self._options.saves_none:
            live.forget_others([])
        return live

    @functools.cached_property
    def _lookup(self) -> Lookup[Node]:
        return Lookup(self._entries.values(), self._saved_nodes or self._layers)

    @functools.cached_property
    def _entries(self) -> dict[int, LookupEntry[Node]]:
        return {id(node): entry_of_node(node) for node in self.nodes}

    # -- layers ------------------------------------------------------------------------------------------------

    def __getitem__(self, key: str | int) -> LoggedOperation | Layer:
        """Return what `key` names: a label, a short label, a module address or an index.

        A key that names all passes of a layer (``"linear_1_1"``) gives a `Layer`, one that names a single operation
        (``"linear_1_1:2"``, or any key of a layer with one pass) the operation.
        """
        matches = self._lookup.find(key)
        if len(matches) == 1:
            return self._operation(matches[0])
        return Layer(tuple(map(self._operation, matches)), lambda: self.rolled_edges)

    def __contains__(self, key: object) -> bool:
        """Return whether `key` names a layer."""
        return key in self._lookup

    @functools.cached_property
    def operations(self) -> list[LoggedOperation]:
        """All layers, buffers and constants included, in execution order."""
        return [self._operation(node) for node in self.nodes]

    @functools.cached_property
    def _index_by_node(self) -> dict[int, int]:
        return {id(node): index for index, node in enumerate(self._saved_nodes or self._layers)}

    def _operation(self, node: Node) -> LoggedOperation:
        operation = self._operation_by_node.get(id(node))
        if operation is None:
            keys = self._lookup.keys_of(self._entries[id(node)], self._index_by_node.get(id(node)))
            operation = self._operation_by_node[id(node)] = self._make_operation(node, keys)
        return operation

    @functools.cached_property
    def _operation_by_node(self) -> dict[int, LoggedOperation]:
        return {}

    def _make_operation(self, node: Node, keys: tuple[str | int, ...]) -> LoggedOperation:
        args, kwargs = arguments_with_labels(node)
        live = {
            "has_saved_activations": self._live.is_saved(node),
            "lazy_fields": LiveFields(self._live, node),
            "func_applied": node.call.info.func if node.call is not None else None,
            "creation_args": args,
            "creation_kwargs": kwargs,
            "func_rng_states": node.call.random.state if node.call is not None and node.call.random else None,
            "operations_total": len(self._layers),
        }
        fields = fields_of(node, self._modules, keys)
        fields.update(live)
        return of_fields(LoggedOperation, fields)

    # -- the model ---------------------------------------------------------------------------------------------

    @property
    def model_name(self) -> str:
        """Class name of the model."""
        return self.recording.model_name

    @property
    def random_seed_used(self) -> int | None:
        """The seed that was set before the pass; None if none was."""
        return self.recording.seed

    @property
    def layer_list(self) -> list[str]:
        """Labels of inputs, operations and outputs in execution order, with their pass if their layer has several."""
        return [node.label for node in self._layers]

    @property
    def layer_labels(self) -> list[str]:
        """Labels of the saved layers in execution order; of all layers if none are saved."""
        return [node.label for node in self._saved_nodes or self._layers]

    @property
    def walks(self) -> Walks:
        """Walks through the graph, by label."""
        return self._live.walks

    @property
    def backward_passes(self) -> list[BackwardPass]:
        """The backward passes so far, with the layers that each reached; needs ``save_gradients=True``."""
        return self._live.backward_passes()

    @property
    def model_is_branching(self) -> bool:
        """Whether some operation has more than one child."""
        return any(len(node.children) > 1 for node in self.nodes)

    @property
    def model_is_recurrent(self) -> bool:
        """Whether some layer has several passes, not counting layers that serve only conditions."""
        return self.model_max_recurrent_loops > 1

    @property
    def model_max_recurrent_loops(self) -> int:
        """The largest number of passes of any layer, not counting layers that serve only conditions.

        The condition of a ``while`` runs once more than its body.
        """
        return max((len(node.passes) for node in self.nodes if not node.in_cond_branch), default=1)

    @property
    def model_has_conditional_branching(self) -> bool:
        """Whether a condition of the model's code depends on a tensor's value; assertions do not count."""
        return any(escape.is_branching for escape in self.escapes)

    @property
    def escapes(self) -> tuple[EscapeRecord, ...]:
        """Values that Python read, in order, with the statement that read each and the branch taken."""
        _ = self.nodes  # building the graph finds them
        return self._escapes

    @functools.cached_property
    def loops(self) -> tuple[LoopRecord, ...]:
        """Loops of the source that ran layers several times, and the values that decide when each ends."""
        return loop_records(self.recording, self.nodes, self.escapes)

    def label(self, number: int) -> str:
        """Return the label of call `number`, or the name of its function if the result does not depend on it."""
        call = self._call(number)
        labels = self._labels_by_call
        return labels.get(number) or f"{call.info.name} (call {number}, without part in the result)"

    @functools.cached_property
    def _labels_by_call(self) -> dict[int, str]:
        return {node.number: node.label for node in reversed(self.nodes) if node.number >= 0}

    def source_place(self, number: int) -> SourcePlace | None:
        """Return the model's line that made call `number`; as text ``file:line, in function``."""
        return source_place(self._call(number))

    def source_line(self, number: int) -> str:
        """Return ``file:line, in function`` of the model's line that made call `number`."""
        return str(self.source_place(number) or "")

    def _call(self, number: int) -> Call:
        calls = self.recording.calls
        if number not in range(len(calls)):
            raise IndexError(f"expected the number of a call of this pass, 0 to {len(calls) - 1}, got {number!r}")
        return calls[number]

    @functools.cached_property
    def _record_fields(self) -> dict[str, Any]:
        recording, nodes = self.recording, self.nodes
        _ = self._saved_nodes
        saved = [node for node in nodes if self._live.is_saved(node)]
        layers_with_params = {id(node.passes) for node in nodes if node.parameters}
        seconds = sum(call.elapsed for call in recording.calls) / 1e9
        return {
            "model_name": self.model_name,
            "random_seed_used": self.random_seed_used,
            "model_is_branching": self.model_is_branching,
            "model_has_conditional_branching": self.model_has_conditional_branching,
            "model_is_recurrent": self.model_is_recurrent,
            "model_max_recurrent_loops": self.model_max_recurrent_loops,
            "num_operations": len(recording.calls),
            "num_layers": sum(node.pass_num == 1 for node in self._layers),
            "num_tensors_total": len(nodes),
            "tensor_fsize_total": sum(node.value.nbytes for node in nodes),
            "num_tensors_saved": len(saved),
            "tensor_fsize_saved": sum(node.value.nbytes for node in saved),
            "total_param_tensors": len(recording.parameters),
            "total_param_layers": len(layers_with_params),
            "total_params": sum(shape.numel() for shape in recording.parameters.values()),
            "total_params_trainable": sum(recording.parameters[name].numel() for name in recording.trainable),
            "total_params_fsize": recording.parameter_bytes,
            "pass_start_time": recording.started,
            "pass_end_time": recording.started + recording.elapsed,
            "elapsed_time_total": recording.elapsed,
            "elapsed_time_function_calls": seconds,
            "elapsed_time_torchlens_logging": max(0.0, recording.elapsed - seconds),
            "layer_list": tuple(self.layer_list),
            "top_level_module_passes": self._modules.top_level_passes(),
            "modules": self._modules.records(),
            "escapes": self.escapes,
            "loops": self.loops,
            "edits": self.edits,
            "changed_by": self.changed_by or None,
        }

    def record_without_operations(self) -> HistoryRecord:
        """Return the record without its operations."""
        return HistoryRecord(**self._record_fields)
