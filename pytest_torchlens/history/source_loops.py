"""The loops of the model's code that ran layers several times, and what decides when each ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture.calls import Escape
from pytest_torchlens.history.callees import Callees
from pytest_torchlens.history.endings import is_returned
from pytest_torchlens.history.endings import repeated_by
from pytest_torchlens.history.graph import Node
from pytest_torchlens.history.loops_around import LoopsAround
from pytest_torchlens.history.sizes_of_data import loops_over
from pytest_torchlens.history.sizes_of_data import sized_by_data
from pytest_torchlens.history.source_lines import by_identity
from pytest_torchlens.history.source_lines import describe
from pytest_torchlens.history.source_lines import model_frames
from pytest_torchlens.history.syntax import Repeated
from pytest_torchlens.history.syntax import node_at
from pytest_torchlens.records import EscapeRecord
from pytest_torchlens.records import LoopRecord


def loop_records(recording: Recording, nodes: list[Node], records: Iterable[EscapeRecord]) -> tuple[LoopRecord, ...]:
    """Return the loops of the source that ran layers several times, with what decides when each ends."""
    callees = Callees(recording)
    around = LoopsAround(callees)
    layers: dict[Repeated, dict[str, None]] = defaultdict(dict)
    for node in nodes:
        if len(node.passes) > 1 and node.pass_num == 1 and node.call is not None:
            for loop in around.passes(node):
                layers[loop][node.layer_label] = None
    if not layers:
        return ()
    decided = _decided(recording, nodes, records, callees)
    times = around.times((*recording.calls, *recording.module_calls))
    return tuple(
        LoopRecord(
            source_line=around.lines[loop],
            layers=tuple(found),
            num_passes=times[loop],
            decided_by=tuple(decided.get(loop, ())),
        )
        for loop, found in layers.items()
    )


def _decided(
    recording: Recording, nodes: list[Node], records: Iterable[EscapeRecord], callees: Callees
) -> dict[Repeated, dict[str, None]]:
    """Return by loop the values that decide when it ends."""
    found: dict[Repeated, dict[str, None]] = defaultdict(dict)
    seen: set[object] = set()
    for escape, record in zip(recording.escapes, records, strict=True):
        layer = record.operation.rpartition(":")[0] or record.operation
        said = f"{layer or 'a value'}, asked by {record.statement}: {record.source_line}"
        key = (said, escape.module and escape.module.address, by_identity(escape.frames))
        for loop in () if key in seen else _by_value(escape, callees):
            found[loop][said] = None
        seen.add(key)
    for loop, said in _by_sizes(nodes):
        found[loop][said] = None
    return found


def _by_value(escape: Escape, callees: Callees) -> Iterator[Repeated]:
    """Yield the loops that a value decides; a helper's result counts where its caller uses it."""
    for code, at in model_frames(escape):
        expression = node_at(code, at)
        if expression is None:
            return
        yield from repeated_by(expression, callees)
        if not is_returned(expression, callees):
            return


def _by_sizes(nodes: list[Node]) -> Iterator[tuple[Repeated, str]]:
    """Yield by loop the values whose size decides how often it runs."""
    seen: set[tuple[str, int, int]] = set()
    for node in sized_by_data(nodes):
        code, at = next(model_frames(node.call), (None, 0)) if node.call is not None else (None, 0)
        if code is None or (node.layer_label, id(code), at) in seen:
            continue
        seen.add((node.layer_label, id(code), at))
        expression = node_at(code, at)
        for loop in loops_over(expression) if expression is not None else ():
            yield loop, f"{node.layer_label}, by its size: {describe(code, at)}"
