"""Writes snapshots as text and reads them back.

The text suits git: it is sorted, has one line for each operation, and holds nothing that differs between machines.
Anybody may have edited a file, so the reader checks everything, and executes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_torchlens.baseline.checked import UNREADABLE
from pytest_torchlens.baseline.checked import as_count
from pytest_torchlens.baseline.checked import as_dict
from pytest_torchlens.baseline.checked import as_digest
from pytest_torchlens.baseline.checked import as_list
from pytest_torchlens.baseline.checked import as_row
from pytest_torchlens.baseline.checked import as_size
from pytest_torchlens.baseline.checked import as_text
from pytest_torchlens.baseline.checked import check_fields
from pytest_torchlens.baseline.checked import expect
from pytest_torchlens.baseline.checked import refuse_constant
from pytest_torchlens.baseline.checked import unique_names
from pytest_torchlens.baseline.measured_file import measured_text
from pytest_torchlens.baseline.measured_file import parse_measured
from pytest_torchlens.baseline.snapshot import Answer
from pytest_torchlens.baseline.snapshot import ModuleCallRecord
from pytest_torchlens.baseline.snapshot import OldNames
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot import Step
from pytest_torchlens.baseline.snapshot import Weight
from pytest_torchlens.records import Edge

FORMAT = "pytest-torchlens baseline"
VERSION = 2
"""Version 1 had 31 sums and 16 values of each tensor, and all of an operation's numbers on one line."""
BEFORE = "^"
"""Means the step on the line before."""


def readable(text: str) -> str:
    r"""Return a text with escapes (``\x1b``) for characters that terminals interpret or files cannot hold."""
    return UNREADABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def to_text(snapshot: Snapshot) -> str:
    """Return a snapshot as JSON text for `parse_snapshot`."""
    return "\n".join(_lines(snapshot)) + "\n"


def _lines(snapshot: Snapshot) -> Iterator[str]:
    yield "{"
    yield f'"format": {_json(FORMAT)},'
    yield f'"version": {VERSION},'
    yield f'"model": {_json(snapshot.model)},'
    yield f'"totals": {_json(dict(sorted(snapshot.totals.items())))},'
    yield from _table("answers", [_json([a.operation, a.function, a.value, a.branch]) for a in snapshot.answers], "[]")
    yield f'"output": {_json(snapshot.output)},'
    if snapshot.sources is not None:
        yield f'"sources": {_json(list(snapshot.sources))},'
    if snapshot.code:
        yield f'"code": {_json(snapshot.code)},'
    yield from _table("calls", [f"{_json(name)}:{_json([c.parent, c.kind])}" for name, c in snapshot.calls.items()])
    state = sorted(snapshot.state.items())
    yield from _table("state", [f"{_json(name)}:{_json([_out(w.dtype, w.shape), w.digest])}" for name, w in state])
    if snapshot.old_names is not None:
        yield from _old_names_lines(snapshot.old_names, snapshot.steps)
    before = [None, *(step.id for step in snapshot.steps)]
    steps = [_json(_step(step, last)) for step, last in zip(snapshot.steps, before, strict=False)]
    yield from _table("steps", steps, "[]")
    measured = sorted(snapshot.measured.items())
    yield from _table(
        "measured", [f"{_json(name)}:{measured_text(block, snapshot.steps)}" for name, block in measured], end=""
    )
    yield "}"


def _old_names_lines(old: OldNames, steps: tuple[Step, ...]) -> Iterator[str]:
    yield '"old_names": {'
    yield f'"baseline": {_json(old.baseline)},'
    yield f'"classes": {_json(list(old.classes))},'
    yield from _table("weights", [f"{_json(name)}:{_json(digest)}" for name, digest in old.weights.items()])
    measured = sorted(old.measured.items())
    yield from _table("measured", [f"{_json(name)}:{measured_text(block, steps)}" for name, block in measured])
    yield from _table("names", [f"{_json(now)}:{_json(was)}" for now, was in old.names.items()], end="")
    yield "},"


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


LARGEST = 64 << 20
"""Bytes that a file may have."""
_DEEPEST = 1_000
_OUT = re.compile(r"([a-z0-9_]*)\[((?:-?\d{1,19}(?:,-?\d{1,19})*)?)\]")
_FILE = ("format", "version", "model", "totals", "answers", "output", "calls", "state", "steps", "measured")
_STEP = ("id", "function", "applied", "in", "reads", "args", "out", "stride", "device", "alias", "in_place", "index")


class BaselineError(ValueError):
    """A baseline file cannot be used; the message names it, the reason and the fix."""


class UnmergedError(BaselineError):
    """A baseline file holds two versions between git's conflict markers: neither may be lost."""


def read(path: Path) -> Snapshot:
    """Read a file.

    Raises
    ------
    BaselineError
        If it cannot be read, is too large, or is not a baseline; `UnmergedError` if git left conflict markers in it.
    """
    text = _text(path)
    try:
        return parse_snapshot(text)
    except ValueError as error:
        raise BaselineError(f"{path} is not a usable baseline: {error}") from None


def _text(path: Path) -> str:
    try:
        is_large = path.stat().st_size > LARGEST
        text = "" if is_large else path.read_text(encoding="utf-8")
    except OSError as error:
        raise BaselineError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BaselineError(f"{path} is not a usable baseline: {error}") from None
    if is_large:
        raise BaselineError(f"{path}: expected a baseline of at most {LARGEST >> 20} MiB, got a larger file")
    if found := _CONFLICT.search(text):
        raise UnmergedError(
            f"{path} has git's conflict markers (line {text.count(chr(10), 0, found.start()) + 1}): "
            "take one side (git checkout --ours or --theirs), or delete the file and store it anew"
        )
    return text


_CONFLICT = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)


def parse_snapshot(text: str) -> Snapshot:
    """Return the snapshot that a JSON text holds.

    Raises
    ------
    ValueError
        If the text is not one that `to_text` writes.
    """
    try:
        raw = json.loads(text, object_pairs_hook=unique_names, parse_constant=refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_fields(raw, "the file", _FILE, more=("code", "old_names", "sources"))
    if raw["format"] != FORMAT:
        raise ValueError(f"expected the format {FORMAT!r}, got {raw['format']!r:.80}")
    if type(raw["version"]) is not int or not 1 <= raw["version"] <= VERSION:
        raise ValueError(f"expected version 1 to {VERSION}, got {raw['version']!r:.20}; store it anew")
    calls = {name: ModuleCallRecord(**_call(row, name)) for name, row in as_dict(raw["calls"], "calls").items()}
    steps = tuple(_steps(as_list(raw["steps"], "steps"), calls))
    state = {name: _weight(row, name) for name, row in as_dict(raw["state"], "state").items()}
    is_first = raw["version"] == 1
    return Snapshot(
        model=as_text(raw["model"], "model"),
        totals={name: as_count(value, name) for name, value in as_dict(raw["totals"], "totals").items()},
        calls=calls,
        state=state,
        steps=steps,
        output={path: as_text(kind, "output") for path, kind in as_dict(raw["output"], "output").items()},
        code={path: as_digest(digest, "code") for path, digest in as_dict(raw.get("code", {}), "code").items()},
        sources=tuple(as_text(file, "sources") for file in as_list(raw["sources"], "sources"))
        if "sources" in raw
        else None,
        old_names=_old_names(raw["old_names"], steps, state) if "old_names" in raw else None,
        answers=tuple(map(_answer, as_list(raw["answers"], "answers"))),
        measured={
            name: parse_measured(block, steps, is_first_version=is_first)
            for name, block in as_dict(raw["measured"], "measured").items()
        },
    )


def _old_names(raw: Any, steps: tuple[Step, ...], state: dict[str, Weight]) -> OldNames:
    check_fields(raw, "old_names", ("baseline", "names", "weights", "measured"), more=("classes",))
    if unknown := as_dict(raw["names"], "names").keys() - state.keys():
        raise ValueError(f"'old_names': {min(unknown)!r:.80} is no parameter or buffer")
    measured = {name: parse_measured(block, steps) for name, block in as_dict(raw["measured"], "measured").items()}
    return OldNames(
        baseline=as_digest(raw["baseline"], "baseline"),
        names={now: as_text(was, "names") for now, was in raw["names"].items()},
        weights={name: as_digest(digest, name) for name, digest in as_dict(raw["weights"], "weights").items()},
        classes=tuple(as_text(name, "classes") for name in as_list(raw.get("classes", [*measured]), "classes")),
        measured=measured,
    )


def _answer(row: Any) -> Answer:
    if isinstance(row, str):  # of an older version
        answer = Answer.of_text(as_text(row, "answers"))
        if answer is None:
            raise ValueError(f"'answers': expected an operation, a function, a value and a branch, got {row!r:.80}")
        return answer
    operation, function, value, branch = as_row(row, "answers", 4)
    value = None if value is None else expect(value, bool, "answers")
    return Answer(as_text(operation, "answers"), as_text(function, "answers"), value, as_text(branch, "answers"))


def _call(value: Any, where: str) -> dict[str, str]:
    parent, kind = as_row(value, where, 2)
    return {"parent": as_text(parent, where), "kind": as_text(kind, where)}


def _weight(value: Any, where: str) -> Weight:
    out, digest = as_row(value, where, 2)
    dtype, shape = _parse_out(out, where)
    return Weight(dtype=dtype, shape=shape, digest=as_digest(digest, where))


def _parse_out(value: Any, where: str) -> tuple[str, tuple[int, ...]]:
    found = _OUT.fullmatch(as_text(value, where))
    if found is None:
        raise ValueError(f"{where!r:.80}: expected a dtype and shape, got {value!r:.80}")
    sizes = found[2].split(",") if found[2] else []
    return found[1], tuple(as_count(int(size), where) for size in sizes)


def _steps(rows: list[Any], calls: dict[str, ModuleCallRecord]) -> Iterator[Step]:
    before = ""
    known: set[str] = set()
    for row in rows:
        step = _parse_step(as_dict(row, "steps"), before, calls)
        before = step.id
        if before in known:
            raise ValueError(f"two steps have the same id {before!r:.80}")
        if unknown := {edge.parent for edge in step.parents} - known:
            raise ValueError(f"{before!r:.80} has the parent {min(unknown)!r:.80}, which is not an earlier step")
        known.add(before)
        yield step


def _parse_step(row: dict[str, Any], before: str, calls: dict[str, ModuleCallRecord]) -> Step:
    identity = as_text(row.get("id"), "id")
    if unknown := set(row) - set(_STEP):
        raise ValueError(f"{identity!r:.80} has an unknown {min(unknown)!r:.80}")
    dtype, shape = _parse_out(row.get("out"), identity)
    module = module_of(identity)
    stride, index = row.get("stride"), row.get("index")
    return Step(
        id=identity,
        function=as_text(row.get("function", function_of(identity)), identity),
        applied=as_text(row.get("applied", function_of(identity)), identity),
        module=_chain(module, calls),
        parents=tuple(_parse_parent(as_text(edge, identity), before) for edge in as_list(row.get("in", []), identity)),
        reads=tuple(_parse(as_text(edge, identity), module) for edge in as_list(row.get("reads", []), identity)),
        arguments=tuple(as_text(arg, identity) for arg in as_list(row.get("args", []), identity)),
        shape=shape,
        dtype=dtype,
        device=as_text(row.get("device", "cpu"), identity),
        stride=None if stride is None else tuple(as_size(step, identity) for step in as_list(stride, identity)),
        alias=as_text(row.get("alias", ""), identity),
        in_place=expect(row.get("in_place", False), bool, identity),
        index=None if index is None else as_count(index, identity),
    )


def _chain(call: str, calls: dict[str, ModuleCallRecord]) -> tuple[str, ...]:
    """Return a module call and those around it, outermost first."""
    chain: list[str] = []
    while call:
        if call not in calls or len(chain) > _DEEPEST:
            raise ValueError(f"{call!r:.80} is not a module call, or is inside itself")
        chain.append(call)
        call = calls[call].parent
    return tuple(reversed(chain))


def _split_argument(text: str) -> tuple[str, str]:
    argument, equals, name = text.partition("=")
    if not equals:
        raise ValueError(f"expected ARGUMENT=NAME, got {text!r:.80}")
    return argument, name


def _parse_parent(text: str, before: str) -> Edge:
    argument, name = _split_argument(text)
    return Edge(before if name == BEFORE else name, argument.removesuffix("*"), argument.endswith("*"))


def _parse(text: str, module: str) -> Edge:
    argument, name = _split_argument(text)
    return Edge(module + name if name.startswith(".") else name, argument)
