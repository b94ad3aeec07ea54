"""Compares the escapes and loops of a history with the recorded escapes, the frames of the calls, and the source.

Operation, function, value, place and order of an escape follow from the recording.  What is read off the source has no
second witness of the same kind; it is compared with the text of the source, and with the answer that Python got.
"""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from itertools import zip_longest
from types import CodeType
from typing import Any

import torch

from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.calls import Call
from pytest_torchlens.capture.calls import Escape
from pytest_torchlens.capture.calls import ModuleCall
from pytest_torchlens.history.source import is_model_code
from pytest_torchlens.history.source import model_frames
from pytest_torchlens.records import EscapeRecord
from pytest_torchlens.records import LoopRecord
from pytest_torchlens.records import SourcePlace
from pytest_torchlens.validate.expected_fields import SourceLines
from pytest_torchlens.validate.expected_fields import line_of_code
from pytest_torchlens.validate.expected_graph import ExpectedGraph
from pytest_torchlens.validate.expected_graph import ExpectedOperation

_BRANCHES = {
    "if": ("body", "else"),
    "while": ("goes on", "ends"),
    "assert": ("holds", "fails"),
    "conditional expression": ("body", "else"),
    "comprehension filter": ("keeps", "drops"),
    "case": ("body", "goes on"),
}
_STATEMENTS = (*_BRANCHES, "match", "and", "or", "not", "expression")


def mark_conditions(recording: Recording, graph: ExpectedGraph, records: tuple[EscapeRecord, ...]) -> None:
    """Mark the operations that conditions asked for, and those that serve nothing else."""
    waiting: list[ExpectedOperation] = []
    for escape, record in zip(recording.escapes, records, strict=False):
        if record.function in ("__bool__", "is_nonzero") or record.statement != "expression":
            asked = [graph.operation_of(value) for value in (escape.value, *escape.others)]
            waiting += [one for one in asked if one is not None]
    for one in waiting:
        one.is_condition = True
    while waiting:
        one = waiting.pop()
        if one.kind == "operation" and not one.to_output and not one.in_cond_branch:
            one.in_cond_branch = True
            waiting += [parent for parent, _, _ in one.parents]


def escape_faults(
    recording: Recording, graph: ExpectedGraph, records: tuple[EscapeRecord, ...], lines: SourceLines
) -> Iterator[tuple[str, str]]:
    """Yield each fault in the record of an escape, after the operation's label."""
    if len(records) != len(recording.escapes):
        yield "", f"escapes has {len(records)} entries, {len(recording.escapes)} values went to Python"
        return
    texts: dict[str, str] = {}
    for escape, record in zip(recording.escapes, records, strict=True):
        asked = graph.operation_of(escape.value)
        label = asked.label if asked is not None else ""
        expected = {
            "function": escape.name,
            "operation": label,
            "value": None if isinstance(escape.result, complex) else escape.result,
            "before_call": escape.call,
            "source_line": lines.of(escape),
            "source_place": SourcePlace.of_text(lines.of(escape)),
        }
        problems = [
            f"{name} is {getattr(record, name)!r:.100}, the recorded escape gave {value!r:.100}"
            for name, value in expected.items()
            if getattr(record, name) != value and not (value != value and record.value != record.value)  # noqa: PLR0124
        ]
        for problem in (*problems, *_order_faults(recording, escape), *_source_faults(escape, record, texts)):
            yield label or escape.name, f"the escape by {escape.name}: {problem}"


def _order_faults(recording: Recording, escape: Escape) -> Iterator[str]:
    if not 0 <= escape.call <= len(recording.calls):
        yield f"it stands before call {escape.call}, and there are {len(recording.calls)}"
    elif escape.value is not None and escape.value.call >= escape.call:
        yield f"it read a value before call {escape.value.call} had made it"
    elif escape.value is not None and _contradicts(recording, escape):
        yield f"Python was given {escape.result!r}, which is not the recorded value"


_EXACT = ("item", "__bool__", "__float__", "__int__", "__index__")
_KINDS: dict[torch.dtype, type] = {
    torch.bool: bool,
    **dict.fromkeys((torch.float64, torch.float32, torch.float16, torch.bfloat16), float),
    **dict.fromkeys((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8), int),
}


def _contradicts(recording: Recording, escape: Escape) -> bool:
    """Return whether a single value that went to Python has another fingerprint than the tensor that it was read from.

    Nothing can be said where a call wrote to some tensor in between, of NaN, which has many forms, and of threads.
    """
    value, result = escape.value, escape.result
    if value is None or result is None or result != result:  # noqa: PLR0124
        return False
    is_dense = value.contiguous and value.device.type == "cpu" and isinstance(value.digest, int)
    is_same_kind = type(result) is _KINDS.get(value.dtype)
    if escape.name not in _EXACT or not is_dense or not is_same_kind or recording.threaded:
        return False
    if any(call.writes for call in recording.calls[max(value.call, 0) : escape.call]):
        return False
    return value.fingerprint != fingerprint(torch.full(tuple(value.shape), result, dtype=value.dtype, device="cpu"))


# -- what is read off the source ------------------------------------------------------------------------------------


def _source_faults(escape: Escape, record: EscapeRecord, texts: dict[str, str]) -> Iterator[str]:
    if record.statement not in _STATEMENTS:
        yield f"statement is {record.statement!r:.100}, which Python does not have"
    files = list(dict.fromkeys(code.co_filename for code, _ in model_frames(escape)))
    condition = _squeezed(record.condition)
    if condition and not any(condition in _text_of(file, texts) for file in files):
        yield f"condition is {record.condition!r:.100}, which is not in the source"
    branches = _BRANCHES.get(record.statement, ())
    if branches and record.branch not in (*branches, "undecided", ""):
        yield f"branch is {record.branch!r:.100}, which {record.statement!r} does not have"
    elif branches and _is_plain_question(escape, record) and record.branch not in ("undecided", ""):
        wanted = branches[0 if escape.result else 1]
        if record.branch != wanted:
            yield f"branch is {record.branch!r}, the answer {escape.result} leads to {wanted!r}"
    yield from _line_faults(record, files)


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _text_of(file: str, texts: dict[str, str]) -> str:
    if file not in texts:
        texts[file] = _squeezed("".join(linecache.getlines(file)))
    return texts[file]


_TWISTS = re.compile(r"\b(not|and|or|if|bool|False|True|lambda|is|all|any|in|for|is_nonzero)\b")


def _is_plain_question(escape: Escape, record: EscapeRecord) -> bool:
    """Return whether a condition is the tensor itself, asked on the line of the condition."""
    if escape.name != "__bool__" or not isinstance(escape.result, bool) or _TWISTS.search(record.condition):
        return False
    file, _, rest = record.source_line.rpartition(", in ")[0].rpartition(":")
    line = linecache.getline(file, int(rest)) if rest.isdigit() else ""
    before = line.partition(record.condition)[0].replace("if", "", 1)
    return bool(record.condition) and record.condition in line and not _TWISTS.search(before)


def _line_faults(record: EscapeRecord, files: list[str]) -> Iterator[str]:
    longest = len(linecache.getlines(files[0])) if files else 0
    pieces: list[tuple[int, int]] = []
    for name in ("lines_taken", "lines_not_taken"):
        lines = getattr(record, name)
        for first, last in zip_longest(lines[::2], lines[1::2], fillvalue=0):
            if not 1 <= first <= last <= longest:
                yield f"{name} is {lines!r:.100}, the file has {longest} lines"
            pieces.append((first, last))
    if record.branch in ("", "undecided") and pieces:
        yield f"lines_taken is {record.lines_taken!r:.100}, and no branch is known"
    pieces.sort()
    if any(before[1] > after[0] for before, after in pairwise(pieces)):  # one line may hold both: a if x else b
        yield "lines_taken and lines_not_taken have lines in common"


# -- loops ----------------------------------------------------------------------------------------------------------

_Function = tuple[str, str]
"""File and name."""


def loop_faults(
    recording: Recording,
    graph: ExpectedGraph,
    loops: tuple[LoopRecord, ...],
    escapes: tuple[EscapeRecord, ...],
    lines: SourceLines,
) -> Iterator[tuple[str, str]]:
    """Yield the first layer of a loop and what is wrong with its record."""
    layers = {one.layer_label: one.passes for one in graph.operations if len(one.passes) > 1}
    if not layers and not loops:
        return
    yield from _omissions(layers, loops)
    times = _times(recording)
    decisions = _decisions(graph, escapes, lines)
    for loop in loops:
        found = _PLACE.fullmatch(loop.source_line)
        function = (found["file"], found["function"]) if found else ("", "")
        if found is None or function not in times or not _repeats(function[0], int(found["line"])):
            yield _first(loop), f"source_line of a loop is {loop.source_line!r:.100}, where no call was made by a loop"
            continue
        if loop.num_passes not in times[function]:
            yield _first(loop), f"num_passes of a loop is {loop.num_passes!r}, no place in it was run that often"
        wrong = [label for label in loop.layers if not _runs(layers.get(label, []), function)]
        if wrong or not loop.layers:
            yield _first(loop), f"layers of a loop is {loop.layers!r:.100}, and {wrong or 'none'} was not run by it"
        if unknown := [text for text in loop.decided_by if text not in decisions]:
            yield _first(loop), f"decided_by of a loop has {unknown[0]!r:.150}, which nothing in the recording did"


def _omissions(layers: dict[str, list[ExpectedOperation]], loops: tuple[LoopRecord, ...]) -> Iterator[tuple[str, str]]:
    """Yield layers that stand below a ``for`` or ``while`` and ran twice in one call of their module, in no record."""
    known = {label for loop in loops for label in loop.layers}
    for label, passes in layers.items():
        calls = [one.call for one in passes if one.call is not None] if label not in known else []
        places = Counter((id(call.module), *map(id, call.frames[::2]), *call.frames[1::2]) for call in calls)
        if calls and max(places.values()) > 1 and _stands_below_a_loop(calls[0]):
            yield label, "loops has no loop around it, its line stands in one and was run several times"


def _stands_below_a_loop(call: Call) -> bool:
    """Return whether the model's line that made a call is indented below a loop of its function."""
    code, at = next(_own_frames(call), (None, 0))
    if code is None or not is_model_code(code):
        return False
    lines = linecache.getlines(code.co_filename)
    number = line_of_code(code, at)
    indent = _indent(lines[number - 1]) if number <= len(lines) else 0
    for line in reversed(lines[code.co_firstlineno : number - 1]):
        if line.strip() and _indent(line) < indent:
            indent = _indent(line)
            if re.match(r"\s*(async\s+for|for|while)\b.*:\s*(#.*)?$", line):
                return True
    return False


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


_PLACE = re.compile(r"(?P<file>.+):(?P<line>\d+), in (?P<function>.+)")


def _first(loop: LoopRecord) -> str:
    return loop.layers[0] if loop.layers else ""


def _repeats(file: str, number: int) -> bool:
    """Return whether a loop or a function begins on a line, or on one of the lines that an expression began before."""
    lines = linecache.getlines(file)
    text = "".join(lines[number - 1 : number + _LINES_OF_AN_EXPRESSION])
    return not lines or (number <= len(lines) and re.search(r"\b(for|while|def|lambda)\b", text) is not None)


_LINES_OF_AN_EXPRESSION = 30


def _times(recording: Recording) -> dict[_Function, set[int]]:
    """Return by function how often each place in it was run, and one less for the question of a ``while``."""
    counted: dict[_Function, Counter[tuple[int, ...]]] = defaultdict(Counter)
    everything: list[Call | ModuleCall] = [*recording.calls, *recording.module_calls]
    for made in everything:
        place: tuple[int, ...] = ()
        for code, at in _own_frames(made):
            place = (*place, id(code), at)
            counted[code.co_filename, code.co_name][place] += 1
    return {name: {*places.values(), *(times - 1 for times in places.values())} for name, places in counted.items()}


def _own_frames(made: Call | ModuleCall) -> Iterator[tuple[CodeType, Any]]:
    codes, places = made.frames[::2], made.frames[1::2]
    return ((code, at) for code, at in zip(codes, places, strict=True) if isinstance(code, CodeType))


def _runs(passes: list[ExpectedOperation], function: _Function) -> bool:
    """Return whether a layer has several passes, and a function made, or was around, one of its calls."""
    calls = [one.call for one in passes if one.call is not None]
    modules = [module for call in calls if call.module is not None for module in call.module.stack()]
    around: list[Call | ModuleCall] = [*calls, *modules]
    frames = (frame for made in around for frame in _own_frames(made))
    return len(passes) > 1 and any((code.co_filename, code.co_name) == function for code, _ in frames)


def _decisions(graph: ExpectedGraph, escapes: tuple[EscapeRecord, ...], lines: SourceLines) -> set[str]:
    """Return all that may decide how often a loop runs, as text."""
    asked = {
        f"{record.operation.rpartition(':')[0] or record.operation or 'a value'}, asked by {record.statement}: "
        f"{record.source_line}"
        for record in escapes
    }
    sized = {f"{one.layer_label}, by its size: {lines.of(one.call)}" for one in graph.operations if one.call}
    return asked | sized
