"""Merges two forward passes into one scene to draw."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator

from pytest_torchlens.draw.scene import Flow
from pytest_torchlens.draw.scene import Mark
from pytest_torchlens.draw.scene import Scene
from pytest_torchlens.records import AlignedEdge
from pytest_torchlens.records import EscapeRecord
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import ModuleRecord
from pytest_torchlens.records import Operation
from pytest_torchlens.records import Pair
from pytest_torchlens.records import align
from pytest_torchlens.records import edits_lines

_Answers = dict[str, tuple[EscapeRecord, ...]]
"""By label: the reads of a value by Python."""


def difference(before: HistoryRecord, after: HistoryRecord) -> Scene:
    """Return a scene of both passes, with marks on what differs or only one has."""
    alignment = align(before.operations, after.operations)
    pairs, was, now = alignment.pairs, _answers(before), _answers(after)
    operations = tuple(_rename(pair.operation) if pair.second is None else pair.second for pair in pairs)
    labels = [op.label for op in operations]
    by_label = dict(zip(labels, pairs, strict=True))
    marks = {label: _mark(pair, was, now) for label, pair in by_label.items()}
    edited, note = _with_edits_of_first(before, after, by_label)
    return Scene(
        dataclasses.replace(
            edited,
            operations=operations,
            modules=_modules(before, after),
            escapes=(*after.escapes, *_of_removed(by_label, was)),
        ),
        operations,
        tuple(
            Flow(labels[edge.parent], labels[edge.child], edge.argument, edge.through_write, _mark_of_edge(edge))
            for edge in alignment.edges
        ),
        marks,
        {label: pair.changes for label, pair in by_label.items()},
        {label: was.get(pair.first.label, ()) for label, pair in by_label.items() if pair.first and pair.second},
        (_summary(before, after, marks.values()), *note),
    ).with_edits()


def _with_edits_of_first(
    before: HistoryRecord, after: HistoryRecord, pairs: dict[str, Pair]
) -> tuple[HistoryRecord, tuple[str, ...]]:
    """Return the second pass, with the first one's edits if it has none of its own, and lines for the title."""
    if not before.edits:
        return after, ()
    if after.edits:
        return after, tuple(f"in the first, {line}" for line in edits_lines(before.edits))
    labels = {pair.first.label: label for label, pair in pairs.items() if pair.first is not None}
    edits = tuple(edit.renamed(labels) for edit in before.edits)
    changed_by = {labels[label]: change for label, change in (before.changed_by or {}).items() if label in labels}
    return dataclasses.replace(after, edits=edits, changed_by=changed_by), ("the first pass is the edited one",)


def _answers(history: HistoryRecord) -> _Answers:
    found: dict[str, list[EscapeRecord]] = defaultdict(list)
    for escape in history.escapes:
        found[escape.operation].append(escape)
    return {label: tuple(escapes) for label, escapes in found.items()}


def _of_removed(pairs: dict[str, Pair], was: _Answers) -> Iterator[EscapeRecord]:
    """Yield the reads of removed operations by Python, under the labels in the drawing."""
    for label, pair in pairs.items():
        if pair.first is not None and pair.second is None:
            yield from (dataclasses.replace(escape, operation=label) for escape in was.get(pair.first.label, ()))


def _rename(op: Operation) -> Operation:
    """Return a removed operation under unique labels."""
    return dataclasses.replace(
        op, layer_label=f"old {op.layer_label}", layer_label_w_pass=f"old {op.layer_label_w_pass}"
    )


def _modules(before: HistoryRecord, after: HistoryRecord) -> tuple[ModuleRecord, ...]:
    """Return the modules of both passes, each with the larger number of calls."""
    known = {module.address for module in after.modules}
    calls = {module.address: module.num_passes for module in before.modules}
    most = (
        dataclasses.replace(module, num_passes=max(module.num_passes, calls.get(module.address, 0)))
        for module in after.modules
    )
    return (*most, *(module for module in before.modules if module.address not in known))


def _mark(pair: Pair, was: _Answers, now: _Answers) -> Mark:
    if pair.second is None:
        return "removed"
    if pair.first is None:
        return "added"
    has_other_answers = _truth_answers(was.get(pair.first.label, ())) != _truth_answers(now.get(pair.second.label, ()))
    return "changed" if pair.changes or has_other_answers else ""


def _truth_answers(answers: tuple[EscapeRecord, ...]) -> list[tuple[str, object, str]]:
    """Return the results of truth tests; numbers that Python read are values, which are not compared."""
    return [(answer.statement, answer.value, answer.branch) for answer in answers if answer.is_truth_test]


def _mark_of_edge(edge: AlignedEdge) -> Mark:
    if edge.in_first and edge.in_second:
        return ""
    return "added" if edge.in_second else "removed"


def _summary(before: HistoryRecord, after: HistoryRecord, marks: Iterable[Mark]) -> str:
    counts = Counter(mark or "same" for mark in marks)
    said = (
        f"+ {counts['added']:,} added, − {counts['removed']:,} removed, ~ {counts['changed']:,} changed, "
        f"{counts['same']:,} the same"
    )
    return said if before.model_name == after.model_name else f"compared with {before.model_name}: {said}"
