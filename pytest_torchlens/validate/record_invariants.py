"""Compares every public field of the records that users get with what follows from the recording.

The nodes that `history` makes its records from are not asked: `expected_graph` derives the graph afresh, the other
files named ``expected_…`` the fields.  A finding names the operation and the field that is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from operator import itemgetter
from typing import Any

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture.looks import named_buffers
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import Operation
from pytest_torchlens.validate.expected_conditions import escape_faults
from pytest_torchlens.validate.expected_conditions import loop_faults
from pytest_torchlens.validate.expected_conditions import mark_conditions
from pytest_torchlens.validate.expected_fields import ExpectedFields
from pytest_torchlens.validate.expected_graph import ExpectedGraph
from pytest_torchlens.validate.expected_graph import ExpectedOperation
from pytest_torchlens.validate.expected_labels import lookup_keys
from pytest_torchlens.validate.expected_labels import misjoined
from pytest_torchlens.validate.expected_labels import number_operations
from pytest_torchlens.validate.expected_totals import expected_modules
from pytest_torchlens.validate.expected_totals import expected_totals
from pytest_torchlens.validate.expected_totals import model_faults
from pytest_torchlens.validate.expected_totals import module_call_faults
from pytest_torchlens.validate.expected_views import layer_faults
from pytest_torchlens.validate.expected_views import view_faults
from pytest_torchlens.validate.expected_walks import walk_faults

Finding = tuple[str, str]
"""The label of an operation or the name of a module call, and what is wrong with it."""

_STEPS = 50_000
"""Steps through the graph to find ancestors, all operations together."""


class RecordCheck:
    """The comparison of a history's records with its recording.

    Parameters
    ----------
    history
        A history of a pass just recorded.
    restored
        Whether the model has the state that it had before the pass; else it is not checked.

    Attributes
    ----------
    compared
        Fields that were compared.
    """

    def __init__(self, history: ModelHistory, restored: bool) -> None:
        self._history = history
        self._recording = history.recording
        self._restored = restored
        self.compared = 0

    def findings(self) -> Iterator[Finding]:
        """Yield what is wrong, in the order of operations; then what is wrong with the history as a whole.

        A record that cannot be read is wrong too: what it raises is a finding.
        """
        graph = ExpectedGraph(self._recording)
        try:
            for number, problem in graph.faults:
                yield self._name_of(number), problem
            yield from self._recording_faults(graph)
            yield from self._record_faults(graph)
        except Exception as error:  # noqa: BLE001 - a wrong record may make any property of the history raise
            yield self._recording.model_name, f"its records cannot be read: {type(error).__name__}: {error}"
        finally:
            graph.unlink()

    def _record_faults(self, graph: ExpectedGraph) -> Iterator[Finding]:
        record = self._history.record()
        if len(record.operations) != len(graph.operations):
            yield self._first_difference(record.operations, graph.operations)
            return
        number_operations(graph.operations, record.operations)
        mark_conditions(self._recording, graph, record.escapes)
        yield from ((one.label, problem) for one, problem in misjoined(graph.operations))
        listed, saved = self._numbered_and_saved(graph.operations)
        fields = ExpectedFields(self._recording, graph, saved)
        yield from self._operations(record, graph, listed, fields)
        yield from escape_faults(self._recording, graph, record.escapes, fields.lines)
        yield from self._whole(record, graph, saved)
        yield from loop_faults(self._recording, graph, record.loops, record.escapes, fields.lines)
        yield from view_faults(self._history, graph)
        yield from layer_faults(self._history, graph)
        walks = walk_faults(graph.operations, self._history.operations, _STEPS)
        yield from ((one.label, problem) for one, problem in walks)

    def _name_of(self, number: int) -> str:
        return self._history.label(number) if 0 <= number < len(self._recording.calls) else "output"

    def _recording_faults(self, graph: ExpectedGraph) -> Iterator[Finding]:
        """Yield what a recording alone contradicts."""
        recording, model = self._recording, self._recording.model()
        named = set(recording.parameters) if self._restored and model is not None else set()
        if named and model is not None:
            named.update(name for name, _ in named_parameters(model, duplicates=True))
            named.update(name for name, _ in named_buffers(model, duplicates=True))
        faults = _source_faults(recording, graph.first_readers, named)
        yield from ((self._name_of(number), problem) for number, problem in faults)
        yield from ((f"module {name}", problem) for name, problem in module_call_faults(self._recording))
        yield from ((self._name_of(number), problem) for number, problem in _time_faults(self._recording))
        if self._restored:
            yield from ((self._recording.model_name, problem) for problem in model_faults(self._recording))

    def _first_difference(self, given: tuple[Operation, ...], expected: list[ExpectedOperation]) -> Finding:
        for record, one in zip(given, expected, strict=False):
            if (record.call_id, record.layer_type) != (one.number, one.layer_type):
                return record.label, f"in its place the recording has {one.layer_type}, of call {one.number}"
        last = given[min(len(given), len(expected)) - 1].label if given else self._recording.model_name
        return last, f"the history has {len(given)} operations, the recording gives {len(expected)}"

    def _numbered_and_saved(self, operations: list[ExpectedOperation]) -> tuple[list[ExpectedOperation], set[int]]:
        """Return the operations that places count over, and the `id` of each that is saved."""
        options = self._history._options
        numbered = [one for one in operations if one.is_numbered]
        if options.saves_none:
            return numbered, set()
        there = [one for one in operations if self._recording.has_saved(one.value)]
        if options.saves_all:
            return numbered, set(map(id, there))
        chosen = set(self._history.layer_labels)
        listed = [one for one in operations if one.label in chosen]
        return listed, {id(one) for one in there if one.label in chosen}

    def _operations(
        self, record: HistoryRecord, graph: ExpectedGraph, listed: list[ExpectedOperation], fields: ExpectedFields
    ) -> Iterator[Finding]:
        operations, logged = graph.operations, self._history.operations
        if not operations:
            return
        faults: list[tuple[int, str]] = []
        columns = dict(fields.columns(lookup_keys(operations, listed), record.operations))
        self.compared += len(columns) * len(operations)
        forms = [_transposed(records, columns) for records in (record.operations, logged)]
        for name, *given in zip(columns, *forms, strict=True):
            faults += _differences(name, columns[name], operations, *given)
        total = sum(one.is_numbered for one in operations)
        totals = tuple(map(attrgetter("operations_total"), logged))
        faults += _differences("operations_total", [total] * len(operations), operations, totals)
        yield from ((operations[place].label, problem) for place, problem in sorted(faults, key=itemgetter(0)))

    def _whole(self, record: HistoryRecord, graph: ExpectedGraph, saved: set[int]) -> Iterator[Finding]:
        expected = expected_totals(self._recording, graph, saved, record.escapes)
        self.compared += len(expected)
        for name, value in expected.items():
            for given in (getattr(record, name), _as_listed(getattr(self._history, name))):
                if given != value:
                    yield self._recording.model_name, f"{name} is {given!r:.100}, the recording gives {value!r:.100}"
                    break
        for name, value in (("edits", self._history.edits), ("changed_by", self._history.changed_by or None)):
            self.compared += 1
            if getattr(record, name) != value:
                yield self._recording.model_name, f"{name} is {getattr(record, name)!r:.100}, made were {value!r:.100}"
        yield from self._modules(record)

    def _modules(self, record: HistoryRecord) -> Iterator[Finding]:
        expected = expected_modules(self._recording)
        if len(expected) != len(record.modules):
            yield (
                self._recording.model_name,
                f"modules has {len(record.modules)} entries, the model has {len(expected)}",
            )
            return
        for module, fields in zip(record.modules, expected, strict=True):
            self.compared += len(fields)
            for name, value in fields.items():
                if getattr(module, name) != value:
                    label = f"module {fields['address'] or self._recording.model_name}"
                    yield label, f"{name} is {getattr(module, name)!r:.100}, the recording gives {value!r:.100}"


def _as_listed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _transposed(records: Sequence[Operation], names: Iterable[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the values of each field in all records."""
    return zip(*map(itemgetter(*names), map(vars, records)), strict=True)


_OF_THE_CALL = ("tensor", "func", "gradfunc", "iterable", "composite", "steps", "source_line", "fingerprint")


def _differences(
    name: str, expected: list[Any], operations: list[ExpectedOperation], *columns: tuple[Any, ...]
) -> Iterator[tuple[int, str]]:
    """Yield the places where a field is not what is expected, in one of the forms of the records that users get."""
    if all(one == other for one, other in pairwise([*columns, tuple(expected)])):
        return
    for place, (one, right, *given) in enumerate(zip(operations, expected, *columns, strict=True)):
        witness = "the recorded call gave" if one.call and name.startswith(_OF_THE_CALL) else "the recording gives"
        wrong = [value for value in given if value != right]
        yield from ((place, f"{name} is {value!r:.100}, {witness} {right!r:.100}") for value in wrong[:1])


_KINDS = ("input", "parameter", "buffer", "constant")


def _source_faults(recording: Recording, first: dict[int, int], named: set[str]) -> Iterator[tuple[int, str]]:
    """Yield the number of the first call that reads a source, and what is wrong with that source.

    `first` has these numbers by the place of the source, `named` the names that parameters and buffers may have.
    """
    slots: dict[int, str] = {}
    for place, source in enumerate(recording.sources):
        value, what = source.value, f"the {source.kind} {source.name!r} that it reads"
        reader = first.get(place, 0)
        if source.kind not in _KINDS:
            yield reader, f"{what} is of no known kind"
        if (value.call, value.position) != (-1, place):
            yield reader, f"{what} is source {place}, and says that it is output {value.position} of call {value.call}"
        if value.slot in slots:
            yield reader, f"{what} is recorded under the number of {slots[value.slot]!r}"
        slots[value.slot] = source.name
        late = place in first and source.since >= reader and not recording.calls[reader].info.opaque
        if late:  # what opaque code reaches is read when it has run
            yield reader, f"{what} is said to be first used after call {source.since}"
        if source.kind in ("parameter", "buffer") and named and source.name not in named:
            yield reader, f"{what} is under a name that the model does not have"


def _time_faults(recording: Recording) -> Iterator[tuple[int, str]]:
    """Yield calls that took longer than the whole pass, or less than no time."""
    for number, call in enumerate(recording.calls):
        if call.elapsed < 0 or (recording.elapsed and call.elapsed > recording.elapsed * 1e9):
            yield number, f"it took {call.elapsed / 1e9:.3g} s of a pass of {recording.elapsed:.3g} s"
