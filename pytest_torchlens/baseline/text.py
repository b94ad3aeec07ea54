"""Snapshots as text for git: sorted, one operation a line, nothing in it that differs from machine to machine."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Iterator
from typing import Any

from pytest_torchlens.baseline.snapshot import Measured
from pytest_torchlens.baseline.snapshot import Numbers
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot import Step
from pytest_torchlens.records import Edge
from pytest_torchlens.records import to_json

FORMAT = "pytest-torchlens baseline"
VERSION = 1
UNREADABLE = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")
"""Control characters, what turns lines around, and halves of characters, which UTF-8 cannot write."""
BEFORE = "^"
"""Stands for the step on the line before."""


def readable(text: str) -> str:
    r"""Return a text with escapes (``\x1b``) in place of characters that terminals obey or files cannot hold."""
    return UNREADABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def to_text(snapshot: Snapshot) -> str:
    """Return a snapshot as JSON text, which `parsed` reads."""
    return "\n".join(_lines(snapshot)) + "\n"


def _lines(snapshot: Snapshot) -> Iterator[str]:
    yield "{"
    yield f'"format": {_json(FORMAT)},'
    yield f'"version": {VERSION},'
    yield f'"model": {_json(snapshot.model)},'
    yield f'"totals": {_json(dict(sorted(snapshot.totals.items())))},'
    yield from _table("answers", [_json(answer) for answer in snapshot.answers], "[]")
    yield f'"output": {_json(snapshot.output)},'
    yield from _table("calls", [f"{_json(name)}:{_json([c.parent, c.kind])}" for name, c in snapshot.calls.items()])
    state = sorted(snapshot.state.items())
    yield from _table("state", [f"{_json(name)}:{_json([_out(w.dtype, w.shape), w.digest])}" for name, w in state])
    before = [None, *(step.id for step in snapshot.steps)]
    steps = [_json(_step(step, last)) for step, last in zip(snapshot.steps, before, strict=False)]
    yield from _table("steps", steps, "[]")
    measured = sorted(snapshot.measured.items())
    yield from _table("measured", [f"{_json(name)}:{_measured(block)}" for name, block in measured], end="")
    yield "}"


def _table(name: str, rows: list[str], brackets: str = "{}", end: str = ",") -> Iterator[str]:
    yield f'"{name}": {brackets[0]}'
    yield from (f"{row}," for row in rows[:-1])
    yield from rows[-1:]
    yield f"{brackets[1]}{end}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _out(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def _step(step: Step, before: str | None) -> dict[str, Any]:
    module = step.module[-1] if step.module else ""
    found: dict[str, Any] = {
        "id": step.id,
        "function": "" if step.function == function_of(step.id) else step.function,
        "applied": "" if step.applied == function_of(step.id) else step.applied,
        "in": [_parent(edge, before) for edge in step.parents],
        "reads": [_read(edge, module) for edge in step.reads],
        "args": list(step.arguments),
        "out": _out(step.dtype, step.shape),
        "stride": None if step.stride is None else list(step.stride),
        "device": "" if step.device == "cpu" else step.device,
        "alias": step.alias,
        "in_place": step.in_place,
        "index": step.index,
    }
    return {key: value for key, value in found.items() if value is not False and value not in ("", [], None)}


def function_of(identity: str) -> str:
    """Return the function's name in a step's id."""
    return identity.rpartition("/")[2].partition(".")[0]


def module_of(identity: str) -> str:
    """Return the module call in a step's id."""
    return identity.rpartition("/")[0]


def _parent(edge: Edge, before: str | None) -> str:
    write = "*" if edge.through_write else ""
    return f"{edge.argument}{write}={BEFORE if edge.parent == before else edge.parent}"


def _read(edge: Edge, module: str) -> str:
    prefix = f"{module}."
    short = edge.parent.removeprefix(prefix)
    return f"{edge.argument}={'.' + short if short != edge.parent else edge.parent}"


def _measured(block: Measured) -> str:
    numbers = [f"{_json(name)}:{_json(_numbers(found))}" for name, found in block.numbers.items()]
    facts = [f'"environment": {to_json(block.environment)},']
    facts += [f'"proof": {_json(block.proof)},'] if block.proof else []
    return "\n".join(["{", *facts, *_table("numbers", numbers, end=""), "}"])


def _numbers(numbers: Numbers) -> list[Any]:
    found: list[Any] = [numbers.digest]
    if numbers.sketch:
        statistics = [f"{numbers.mean:.5g}", f"{numbers.rms:.5g}", f"{numbers.low:.9g}", f"{numbers.high:.9g}"]
        found += [" ".join(statistics), _packed([*numbers.sketch, *numbers.samples])]
    odd = {"nan": numbers.nan, "inf": numbers.inf, "holes": numbers.holes, "unstable": numbers.unstable}
    if any(odd.values()):
        found.append({key: value for key, value in odd.items() if value})
    return found


def _packed(values: list[float]) -> str:
    """Return numbers as base64 of float32, of float64 where these would not hold them."""
    try:
        packed = struct.pack(f"<{len(values)}f", *values)
    except OverflowError:
        packed = struct.pack(f"<{len(values)}d", *values)
    return base64.b64encode(packed).decode()
