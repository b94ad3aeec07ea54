"""Writes snapshots as text and reads them back.

The text suits git: it is sorted, has one line for each operation, and holds nothing that differs between machines.
Anybody may have edited a file, so the reader checks everything, and executes nothing.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from typing import TypeVar

from pytest_torchlens.baseline.snapshot import BUCKETS
from pytest_torchlens.baseline.snapshot import SAMPLES
from pytest_torchlens.baseline.snapshot import STATUSES
from pytest_torchlens.baseline.snapshot import Answer
from pytest_torchlens.baseline.snapshot import EnvironmentNumbers
from pytest_torchlens.baseline.snapshot import ModuleCallRecord
from pytest_torchlens.baseline.snapshot import Numbers
from pytest_torchlens.baseline.snapshot import Snapshot
from pytest_torchlens.baseline.snapshot import Step
from pytest_torchlens.baseline.snapshot import Weight
from pytest_torchlens.records import Edge
from pytest_torchlens.records import Environment
from pytest_torchlens.records import from_json
from pytest_torchlens.records import to_json

FORMAT = "pytest-torchlens baseline"
VERSION = 1
UNREADABLE = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069\\ud800-\\udfff]")
"""Control characters, marks of writing direction, and lone surrogates, which UTF-8 cannot write."""
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


def _measured(block: EnvironmentNumbers) -> str:
    numbers = [f"{_json(name)}:{_json(_numbers(found))}" for name, found in block.numbers.items()]
    facts = [f'"environment": {to_json(block.environment)},']
    facts += [f'"proof": {_json(block.proof)},'] if block.proof else []
    return "\n".join(["{", *facts, *_table("numbers", numbers, end=""), "}"])


def _numbers(numbers: Numbers) -> list[Any]:
    found: list[Any] = [numbers.digest]
    if numbers.sketch:
        statistics = [f"{numbers.mean:.5g}", f"{numbers.rms:.5g}", f"{numbers.low:.9g}", f"{numbers.high:.9g}"]
        found += [" ".join(statistics), _pack([*numbers.sketch, *numbers.samples])]
    odd = {"nan": numbers.nan, "inf": numbers.inf, "holes": numbers.holes, "unstable": numbers.unstable}
    if any(odd.values()):
        found.append({key: value for key, value in odd.items() if value})
    return found


def _pack(values: list[float]) -> str:
    """Return numbers as base64 of float32, or of float64 if they exceed float32."""
    try:
        packed = struct.pack(f"<{len(values)}f", *values)
    except OverflowError:
        packed = struct.pack(f"<{len(values)}d", *values)
    return base64.b64encode(packed).decode()


T = TypeVar("T")
LARGEST = 64 << 20
"""Bytes that a file may have."""
_DEEPEST = 1_000
_LONGEST_SIZE = 2**62
_VALUES = BUCKETS + SAMPLES
_OUT = re.compile(r"([a-z0-9_]*)\[((?:-?\d{1,19}(?:,-?\d{1,19})*)?)\]")
_DIGEST = re.compile(r"[0-9a-z_:.(), \[\]]{0,200}")
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
    try:
        if path.stat().st_size > LARGEST:
            raise BaselineError(f"{path}: expected a baseline of at most {LARGEST >> 20} MiB, got a larger file")
        text = path.read_text(encoding="utf-8")
        if found := _CONFLICT.search(text):
            raise UnmergedError(
                f"{path} has git's conflict markers (line {text.count(chr(10), 0, found.start()) + 1}): "
                "take one side (git checkout --ours or --theirs), or delete the file and store it anew"
            )
        return parse_snapshot(text)
    except BaselineError:
        raise
    except OSError as error:
        raise BaselineError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BaselineError(f"{path} is not a usable baseline: {error}") from None


_CONFLICT = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)


def parse_snapshot(text: str) -> Snapshot:
    """Return the snapshot that a JSON text holds.

    Raises
    ------
    ValueError
        If the text is not one that `to_text` writes.
    """
    try:
        raw = json.loads(text, object_pairs_hook=_unique_names, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _fields(raw, "the file", _FILE, more=("sources",))
    if raw["format"] != FORMAT:
        raise ValueError(f"expected the format {FORMAT!r}, got {raw['format']!r:.80}")
    if raw["version"] != VERSION:
        raise ValueError(f"expected version {VERSION}, got {raw['version']!r:.20}; store it anew")
    calls = {name: ModuleCallRecord(**_call(row, name)) for name, row in _dict(raw["calls"], "calls").items()}
    steps = tuple(_steps(_list(raw["steps"], "steps"), calls))
    known = {step.id for step in steps}
    return Snapshot(
        model=_text(raw["model"], "model"),
        totals={name: _count(value, name) for name, value in _dict(raw["totals"], "totals").items()},
        calls=calls,
        state={name: _weight(row, name) for name, row in _dict(raw["state"], "state").items()},
        steps=steps,
        output={path: _text(kind, "output") for path, kind in _dict(raw["output"], "output").items()},
        answers=tuple(map(_answer, _list(raw["answers"], "answers"))),
        sources=tuple(_text(file, "sources") for file in _list(raw["sources"], "sources"))
        if "sources" in raw
        else None,
        measured={name: _parse_measured(block, known) for name, block in _dict(raw["measured"], "measured").items()},
    )


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = {_text(name, "a name"): value for name, value in pairs}
    if len(found) < len(pairs):
        raise ValueError("expected each name once in a table, got one twice")
    return found


def _refuse_constant(name: str) -> float:
    raise ValueError(f"expected a finite number, got {name}")


def _fields(raw: Any, where: str, names: tuple[str, ...], more: tuple[str, ...] = ()) -> None:
    missing, unknown = set(names) - set(_dict(raw, where)), set(raw) - {*names, *more}
    if missing or unknown:
        word = "lacks" if missing else "has an unknown"
        raise ValueError(f"{where} {word} {min(missing or unknown)!r:.80}")


def _expect(value: Any, kind: type[T], where: str) -> T:
    if type(value) is not kind:
        raise ValueError(f"{where!r:.80}: expected {kind.__name__}, got {type(value).__name__}")
    return value


def _dict(value: Any, where: str) -> dict[str, Any]:
    return _expect(value, dict, where)


def _list(value: Any, where: str) -> list[Any]:
    return _expect(value, list, where)


def _text(value: Any, where: str) -> str:
    if UNREADABLE.search(_expect(value, str, where)):
        raise ValueError(f"{where!r:.80}: {value!r:.80} has a character that is not allowed")
    return str(value)


def _size(value: Any, where: str) -> int:
    if not -_LONGEST_SIZE < _expect(value, int, where) < _LONGEST_SIZE:
        raise ValueError(f"{where!r:.80}: expected a 62-bit number, got {value}")
    return int(value)


def _count(value: Any, where: str) -> int:
    if _size(value, where) < 0:
        raise ValueError(f"{where!r:.80}: expected 0 or more, got {value}")
    return int(value)


def _row(value: Any, where: str, *counts: int) -> list[Any]:
    if len(_list(value, where)) not in counts:
        raise ValueError(f"{where!r:.80}: expected a row of {' or '.join(map(str, counts))} entries, got {len(value)}")
    return list(value)


def _answer(row: Any) -> Answer:
    if isinstance(row, str):  # of an older version
        answer = Answer.of_text(_text(row, "answers"))
        if answer is None:
            raise ValueError(f"'answers': expected an operation, a function, a value and a branch, got {row!r:.80}")
        return answer
    operation, function, value, branch = _row(row, "answers", 4)
    value = None if value is None else _expect(value, bool, "answers")
    return Answer(_text(operation, "answers"), _text(function, "answers"), value, _text(branch, "answers"))


def _call(value: Any, where: str) -> dict[str, str]:
    parent, kind = _row(value, where, 2)
    return {"parent": _text(parent, where), "kind": _text(kind, where)}


def _weight(value: Any, where: str) -> Weight:
    out, digest = _row(value, where, 2)
    dtype, shape = _parse_out(out, where)
    return Weight(dtype=dtype, shape=shape, digest=_digest(digest, where))


def _parse_out(value: Any, where: str) -> tuple[str, tuple[int, ...]]:
    found = _OUT.fullmatch(_text(value, where))
    if found is None:
        raise ValueError(f"{where!r:.80}: expected a dtype and shape, got {value!r:.80}")
    sizes = found[2].split(",") if found[2] else []
    return found[1], tuple(_count(int(size), where) for size in sizes)


def _digest(value: Any, where: str) -> str:
    if not _DIGEST.fullmatch(_text(value, where)):
        raise ValueError(f"{where!r:.80}: expected a digest, got {value!r:.80}")
    return str(value)


def _steps(rows: list[Any], calls: dict[str, ModuleCallRecord]) -> Iterator[Step]:
    before = ""
    known: set[str] = set()
    for row in rows:
        step = _parse_step(_dict(row, "steps"), before, calls)
        before = step.id
        if before in known:
            raise ValueError(f"two steps have the same id {before!r:.80}")
        if unknown := {edge.parent for edge in step.parents} - known:
            raise ValueError(f"{before!r:.80} has the parent {min(unknown)!r:.80}, which is not an earlier step")
        known.add(before)
        yield step


def _parse_step(row: dict[str, Any], before: str, calls: dict[str, ModuleCallRecord]) -> Step:
    identity = _text(row.get("id"), "id")
    if unknown := set(row) - set(_STEP):
        raise ValueError(f"{identity!r:.80} has an unknown {min(unknown)!r:.80}")
    dtype, shape = _parse_out(row.get("out"), identity)
    module = module_of(identity)
    stride, index = row.get("stride"), row.get("index")
    return Step(
        id=identity,
        function=_text(row.get("function", function_of(identity)), identity),
        applied=_text(row.get("applied", function_of(identity)), identity),
        module=_chain(module, calls),
        parents=tuple(_parse_parent(_text(edge, identity), before) for edge in _list(row.get("in", []), identity)),
        reads=tuple(_parse(_text(edge, identity), module) for edge in _list(row.get("reads", []), identity)),
        arguments=tuple(_text(arg, identity) for arg in _list(row.get("args", []), identity)),
        shape=shape,
        dtype=dtype,
        device=_text(row.get("device", "cpu"), identity),
        stride=None if stride is None else tuple(_size(step, identity) for step in _list(stride, identity)),
        alias=_text(row.get("alias", ""), identity),
        in_place=_expect(row.get("in_place", False), bool, identity),
        index=None if index is None else _count(index, identity),
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


def _parse_measured(value: Any, known: set[str]) -> EnvironmentNumbers:
    _fields(value, "measured", ("environment", "numbers"), more=("proof",))
    numbers = {name: _parse_numbers(row, name) for name, row in _dict(value["numbers"], "numbers").items()}
    if unknown := set(numbers) - known:
        raise ValueError(f"numbers of {min(unknown)!r:.80}, which is not a step")
    environment = from_json(json.dumps(value["environment"]), Environment)
    _ = list(_texts(value["environment"]))
    proof = {part: _status(status, part) for part, status in _dict(value.get("proof", {}), "proof").items()}
    return EnvironmentNumbers(environment=environment, numbers=numbers, proof=proof)


def _status(value: Any, where: str) -> str:
    if value not in STATUSES:
        raise ValueError(f"{where!r:.80}: expected one of {', '.join(STATUSES)}, got {value!r:.80}")
    return str(value)


def _texts(value: Any) -> Iterator[str]:
    """Yield the checked texts of an environment, which `from_json` reads."""
    for item in value.values() if isinstance(value, dict) else ():
        yield from [_text(item, "environment")] if isinstance(item, str) else _texts(item)


def _parse_numbers(value: Any, where: str) -> Numbers:
    digest, *rest = _row(value, where, 1, 2, 3, 4)
    odd = _odd(rest.pop(), where) if rest and isinstance(rest[-1], dict) else {}
    if not rest:
        return Numbers(digest=_digest(digest, where), **odd)
    statistics, packed = _row(rest, where, 2)
    try:
        mean, rms, low, high = (float(number) for number in _text(statistics, where).split())
        values = _unpack(base64.b64decode(_text(packed, where), validate=True))
    except (ValueError, binascii.Error):
        raise ValueError(f"{where!r:.80}: its statistics cannot be read") from None
    return Numbers(
        digest=_digest(digest, where),
        mean=mean,
        rms=rms,
        low=low,
        high=high,
        sketch=values[:BUCKETS],
        samples=values[BUCKETS:],
        **odd,
    )


def _unpack(packed: bytes) -> tuple[float, ...]:
    kind = {4 * _VALUES: "f", 8 * _VALUES: "d"}.get(len(packed))
    if kind is None:
        raise ValueError
    return struct.unpack(f"<{_VALUES}{kind}", packed)


_ODD: dict[str, Callable[[Any, str], Any]] = {
    "nan": _count,
    "inf": _count,
    "holes": _digest,
    "unstable": lambda value, where: _expect(value, bool, where),
}


def _odd(value: dict[str, Any], where: str) -> dict[str, Any]:
    if unknown := set(value) - set(_ODD):
        raise ValueError(f"{where!r:.80} has an unknown {min(unknown)!r:.80}")
    return {key: _ODD[key](item, where) for key, item in value.items()}
