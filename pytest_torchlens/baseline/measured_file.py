"""Writes the numbers of one environment as text and reads them back: a part of a baseline's file.

What a person can read stands in a block of its own, which a small change of a kernel leaves as it is; digests and
sketches, which all change behind it, follow in another.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_torchlens.baseline.checked import as_count
from pytest_torchlens.baseline.checked import as_dict
from pytest_torchlens.baseline.checked import as_digest
from pytest_torchlens.baseline.checked import as_list
from pytest_torchlens.baseline.checked import as_row
from pytest_torchlens.baseline.checked import as_text
from pytest_torchlens.baseline.checked import check_fields
from pytest_torchlens.baseline.checked import expect
from pytest_torchlens.baseline.precision import folded
from pytest_torchlens.baseline.precision import pack
from pytest_torchlens.baseline.precision import rounded
from pytest_torchlens.baseline.precision import unpack
from pytest_torchlens.baseline.snapshot import STATUSES
from pytest_torchlens.baseline.snapshot import EnvironmentNumbers
from pytest_torchlens.baseline.snapshot import Numbers
from pytest_torchlens.baseline.snapshot import Step
from pytest_torchlens.records import Environment
from pytest_torchlens.records import from_json
from pytest_torchlens.records import to_json

_STATISTICS = ("mean", "rms", "low", "high")
_ODD = ("nan", "inf", "holes", "unstable")
_NOT_FINITE = ("inf", "-inf", "nan")


def measured_text(block: EnvironmentNumbers, steps: Sequence[Step]) -> str:
    """Return the numbers of one environment as JSON text; one line for each step and block."""
    every = [(step.id, block.numbers.get(step.id)) for step in steps]
    statistics = {name: row for name, numbers in every if numbers is not None and (row := _statistics(numbers))}
    lines = [f'"environment": {to_json(block.environment)},']
    lines += [f'"proof": {_json(block.proof)},'] if block.proof else []
    lines += ['"numbers": {', *_rows(f"{_json(name)}:{_json(row)}" for name, row in statistics.items()), "},"]
    lines += ['"sketches": [', *_rows(_json(_sketch(numbers)) for _, numbers in every), "]"]
    return "\n".join(["{", *lines, "}"])


def _rows(rows: Iterator[str]) -> list[str]:
    every = list(rows)
    return [*(f"{row}," for row in every[:-1]), *every[-1:]]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _statistics(numbers: Numbers) -> dict[str, Any]:
    values = {name: getattr(numbers, name) for name in _STATISTICS}
    shown = {name: _short(value) for name, value in values.items()} if numbers.sketch or any(values.values()) else {}
    return shown | {name: value for name in _ODD if (value := getattr(numbers, name))}


def _short(value: float) -> int | float | str:
    """Return a number that JSON has, and that is short: ``1`` for ``1.0``, ``"inf"`` for infinity."""
    if not math.isfinite(value):
        return repr(value)
    return int(value) if value.is_integer() and abs(value) < _WHOLE else value


_WHOLE = 1e6
"""Whole numbers from here on are shorter with an exponent, or as long."""


def _sketch(numbers: Numbers | None) -> str | list[str] | None:
    """Return digest and sketch as base64 of their bytes; a list if the digest is a text, as that of a sparse tensor."""
    if numbers is None:
        return None
    sketch = pack(numbers.sketch) if numbers.sketch else b""
    if _PLAIN_DIGEST.fullmatch(numbers.digest):
        return base64.b64encode(bytes.fromhex(numbers.digest) + sketch).decode()
    return [numbers.digest, base64.b64encode(sketch).decode()]


_PLAIN_DIGEST = re.compile(r"[0-9a-f]{16}")
_DIGEST_BYTES = 8


def parse_measured(value: Any, steps: Sequence[Step], *, is_first_version: bool = False) -> EnvironmentNumbers:
    """Return the numbers of one environment that a part of a file holds.

    Raises
    ------
    ValueError
        If it is not as `measured_text` writes it, or as the first version wrote it.
    """
    known = {step.id for step in steps}
    check_fields(
        value, "measured", ("environment", "numbers", *(() if is_first_version else ("sketches",))), ("proof",)
    )
    rows = as_dict(value["numbers"], "numbers")
    if unknown := set(rows) - known:
        raise ValueError(f"numbers of {min(unknown)!r:.80}, which is not a step")
    environment = from_json(json.dumps(value["environment"]), Environment)
    _ = list(_texts(value["environment"]))
    return EnvironmentNumbers(
        environment=environment,
        numbers={name: _first_version(row, name) for name, row in rows.items()}
        if is_first_version
        else dict(_numbers(rows, as_list(value["sketches"], "sketches"), steps)),
        proof={part: _status(status, part) for part, status in as_dict(value.get("proof", {}), "proof").items()},
    )


def _status(value: Any, where: str) -> str:
    if value not in STATUSES:
        raise ValueError(f"{where!r:.80}: expected one of {', '.join(STATUSES)}, got {value!r:.80}")
    return str(value)


def _texts(value: Any) -> Iterator[str]:
    """Yield the checked texts of an environment, which `from_json` reads."""
    for item in value.values() if isinstance(value, dict) else ():
        yield from [as_text(item, "environment")] if isinstance(item, str) else _texts(item)


def _numbers(rows: Mapping[str, Any], sketches: list[Any], steps: Sequence[Step]) -> Iterator[tuple[str, Numbers]]:
    if len(sketches) != len(steps):
        raise ValueError(f"'sketches': expected one for each of {len(steps)} steps, got {len(sketches)}")
    for step, sketch in zip(steps, sketches, strict=True):
        if sketch is not None:
            statistics = _parse_statistics(as_dict(rows.get(step.id, {}), step.id), step.id)
            yield step.id, Numbers(**_parse_sketch(sketch, step.id), **statistics)
        elif step.id in rows:
            raise ValueError(f"{step.id!r:.80} has statistics, and no digest in 'sketches'")


def _parse_sketch(value: Any, where: str) -> dict[str, Any]:
    try:
        if isinstance(value, list):
            digest, packed = as_row(value, where, 2)
            return {"digest": as_digest(digest, where), "sketch": _unpack(_bytes(packed, where))}
        both = _bytes(value, where)
        if len(both) < _DIGEST_BYTES:
            raise ValueError
        return {"digest": both[:_DIGEST_BYTES].hex(), "sketch": _unpack(both[_DIGEST_BYTES:])}
    except (ValueError, OverflowError):
        raise ValueError(f"{where!r:.80}: its digest and sketch cannot be read") from None


def _bytes(value: Any, where: str) -> bytes:
    return base64.b64decode(as_text(value, where), validate=True)


def _unpack(packed: bytes) -> tuple[float, ...]:
    return unpack(packed) if packed else ()


def _real(value: Any, where: str) -> float:
    is_number = type(value) in (int, float) and math.isfinite(value)
    if not is_number and value not in _NOT_FINITE:
        raise ValueError(f"{where!r:.80}: its statistics cannot be read: expected a number, got {value!r:.80}")
    return float(value)


_PARSERS: dict[str, Callable[[Any, str], Any]] = {
    **dict.fromkeys(_STATISTICS, _real),
    "nan": as_count,
    "inf": as_count,
    "holes": as_digest,
    "unstable": lambda value, where: expect(value, bool, where),
}


def _parse_statistics(value: dict[str, Any], where: str) -> dict[str, Any]:
    if unknown := set(value) - set(_PARSERS):
        raise ValueError(f"{where!r:.80} has an unknown {min(unknown)!r:.80}")
    return {key: _PARSERS[key](item, where) for key, item in value.items()}


_FIRST_BUCKETS, _FIRST_SAMPLES = 31, 16


def _first_version(value: Any, where: str) -> Numbers:
    """Return the numbers in a row of the first version: a digest, statistics, sketch and samples, what is odd."""
    digest, *rest = as_row(value, where, 1, 2, 3, 4)
    odd = rest.pop() if rest and isinstance(rest[-1], dict) else {}
    if unknown := set(odd) - set(_ODD):
        raise ValueError(f"{where!r:.80} has an unknown {min(unknown)!r:.80}")
    found = Numbers(digest=as_digest(digest, where), **_parse_statistics(odd, where))
    if not rest:
        return found
    statistics, packed = as_row(rest, where, 2)
    try:
        mean, rms, low, high = (float(number) for number in as_text(statistics, where).split())
        values = _unpack_first(base64.b64decode(as_text(packed, where), validate=True))
    except ValueError:
        raise ValueError(f"{where!r:.80}: its statistics cannot be read") from None
    sketch = folded(values[:_FIRST_BUCKETS])
    return rounded(replace(found, mean=mean, rms=rms, low=low, high=high, sketch=sketch), is_float64=False)


def _unpack_first(packed: bytes) -> tuple[float, ...]:
    count = _FIRST_BUCKETS + _FIRST_SAMPLES
    kind = {4 * count: "f", 8 * count: "d"}.get(len(packed))
    if kind is None:
        raise ValueError
    return struct.unpack(f"<{count}{kind}", packed)
