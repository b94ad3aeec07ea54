"""Finds what a verdict without failures could not show.

Each function looks for one kind: a part that was not judged, no operation at all, activations without values, an
output without tensors, one that depends on no input, and a constant or a wrapper that may hold an input's values by
way of Python.
What `second_recording` found follows.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Collection
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

import torch

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.calls import Escape
from pytest_torchlens.capture.leaves import children
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.capture.values import values_in
from pytest_torchlens.capture.wrappers import NUMBERS
from pytest_torchlens.capture.wrappers import Wrap
from pytest_torchlens.records import PartVerdict
from pytest_torchlens.records import Status
from pytest_torchlens.records import Unproven
from pytest_torchlens.records import output_name
from pytest_torchlens.validate.score import Where

NOTHING_RAN = "no operation ran, so there was nothing to prove"
_UNJUDGED = (Status.UNPROVEN, Status.NOT_APPLICABLE, Status.NOT_RUN)
_TRUTH = frozenset(["__bool__", "is_nonzero", "equal", "allclose", "__contains__"])
"""Escapes that hand over a truth value: they decide a branch, which the history records."""
_SMALL = 100
_FROM_NUMBERS = frozenset("tensor as_tensor asarray scalar_tensor new_tensor from_numpy frombuffer".split())
"""Functions that make a tensor of Python's numbers or of an array."""


def find_unproven(
    recording: Recording, where: Where, parts: Collection[PartVerdict], unpromised: frozenset[str] = frozenset()
) -> tuple[Unproven, ...]:
    """Return what the verdicts on a recording do not show, in the order of this module's docstring.

    Parameters
    ----------
    recording
        The recording that was validated.
    where
        Names its calls.
    parts
        The verdicts on the parts that were asked for.
    unpromised
        Reasons of parts that this kind of validation never runs; they count for nothing.
    """
    found = [*_unjudged_parts(parts, unpromised)]
    if not recording.calls:
        return (Unproven(message=NOTHING_RAN), *found)
    from_inputs = Reach(recording)
    found += _without_values(recording, where)
    found += _outputs_elsewhere(recording)
    found += _independent_outputs(recording, where, from_inputs)
    found += _constants_from_python(recording, where, from_inputs)
    found += _held_by_wrappers(recording, where, from_inputs)
    known = {one.operation for one in found}
    changed = (_at_call(*one, where, len(recording.calls)) for one in recording.detours)
    return (*found, *(one for one in changed if one.operation not in known))


def _unjudged_parts(parts: Collection[PartVerdict], unpromised: frozenset[str]) -> Iterator[Unproven]:
    names: dict[str, list[str]] = {}
    # Functions that were shown not to repeat themselves explain why two plain runs differ.
    explained = {"observer"} if any(part.status is Status.PASSED_WITH_TOLERANCE for part in parts) else set()
    for part in parts:
        if part.status in _UNJUDGED and part.reason not in unpromised and part.name not in explained:
            names.setdefault(part.reason or "no reason was given", []).append(part.name)
    return (Unproven(message=f"{' and '.join(parts)}: {reason}") for reason, parts in names.items())


def _at_call(number: int, message: str, where: Where, num_calls: int) -> Unproven:
    """Return what was not shown about a call, or about the output if `number` is after the last call."""
    return _at(number, message, where) if number < num_calls else Unproven(message=message, operation="output")


def _at(number: int, message: str, where: Where) -> Unproven:
    return Unproven(message=message, operation=where.label(number), source_place=where.source_place(number))


def _without_values(recording: Recording, where: Where) -> Iterator[Unproven]:
    """Yield that some activations have no values to compare: meta tensors, and wrappers that nothing can read."""
    made = [
        (number, value)
        for number, call in enumerate(recording.calls)
        if not call.uninitialised
        for value in call.outputs
    ]
    unread = any(not value.digest for _, value in made)
    used = used_values(recording) if unread else set()  # freed memory has no values, and no part in the result
    empty = [
        (number, kind)
        for number, value in made
        if (kind := _kind_without_values(value)) and (value.digest or id(value) in used)
    ]
    if empty:
        kinds = dict.fromkeys(kind for _, kind in empty)
        why = f": they are {' and '.join(kinds)}" if _UNREADABLE not in kinds else ""
        message = f"{len(empty)} of {len(made)} activations have no values that could be compared{why}"
        yield _at(empty[0][0], message, where)


_UNREADABLE = "tensors that cannot be read"


def _kind_without_values(value: Value) -> str:
    """Return what kind of tensor a value without values is; ``""`` for any other value."""
    if not value.digest:
        return _UNREADABLE
    kind, colon, _ = str(value.digest).partition(":")
    return f"{kind} tensors" if colon and kind in ("fake", "meta") else ""


def _inputs(recording: Recording) -> list[Value]:
    return [source.value for source in recording.sources if source.kind == "input"]


class Reach:
    """The values that depend on the inputs, by way of recorded calls."""

    def __init__(self, recording: Recording) -> None:
        self._made_by: set[int] = set()
        self._inputs = {id(value) for value in _inputs(recording)}
        for number, call in enumerate(recording.calls):
            if any(map(self.has, map(itemgetter(1), edges_in(call)))):
                self._made_by.add(number)

    def has(self, read: Value | Aliased) -> bool:
        """Return whether a value, or a write that shows in it, depends on an input."""
        if type(read) is Value:
            return read.call in self._made_by or id(read) in self._inputs
        return any(map(self.has, values_in(read)))


def used_values(recording: Recording) -> set[int]:
    """Return the ids of the values that an output depends on."""
    used = {id(value) for _, read in recording.outputs for value in values_in(read)}
    for call in reversed(recording.calls):
        if not used.isdisjoint(map(id, call.outputs)):
            used.update([id(value) for _, read in edges_in(call) for value in values_in(read)])
    return used


def _outputs_elsewhere(recording: Recording) -> Iterator[Unproven]:
    """Yield that the output holds no tensor; a model that returns None may write to what it was given."""
    if not recording.outputs and recording.output_kinds.get("") != "NoneType":
        kind = recording.output_kinds.get("", "object")
        yield Unproven(message=f"the output holds no tensor (it is of type {kind}): no recorded operation gives it")


def _independent_outputs(recording: Recording, where: Where, from_inputs: Reach) -> Iterator[Unproven]:
    if not _inputs(recording):
        return
    for path, read in recording.outputs:
        if value_of(read).shape.numel() and not from_inputs.has(read):
            number = value_of(read).call
            kind = _kind_without_values(value_of(read))
            lack = f"is among the {kind}, without values" if kind else "depends on no input in the recorded graph"
            message = f"{output_name(path)} {lack}"
            known = 0 <= number < len(recording.calls)  # a record that fails may lack the call
            yield _at(number, message, where) if known else Unproven(message=message)


def _handed(recording: Recording, from_inputs: Reach) -> list[Escape]:
    """Return the escapes that handed an input's values to Python, other than truth values."""
    return [one for one in recording.escapes if not _is_truth_value(one) and _reads(one, from_inputs)]


def _constants_from_python(recording: Recording, where: Where, from_inputs: Reach) -> Iterator[Unproven]:
    """Yield the first constant that was made after each function that handed an input's values to Python.

    Only a constant that an output depends on counts.
    """
    handed = _handed(recording, from_inputs)
    if not handed:
        return
    used = used_values(recording)
    made = sorted(number for number, value in _constants(recording) if id(value) in used and value.shape.numel())
    for escape in {one.name: one for one in reversed(handed)}.values():
        if numbers := made[bisect.bisect_left(made, escape.call) :]:
            yield _constant_from_python(escape, numbers[0], where, len(recording.calls))
    yield from _numbers_from_python(recording, handed, where)


def _numbers_from_python(recording: Recording, handed: list[Escape], where: Where) -> Iterator[Unproven]:
    """Yield the first call that takes a float which an escape before it handed to Python: ``x * x.sum().item()``."""
    results = {one.result: one for one in reversed(handed) if type(one.result) is float and _is_telling(one.result)}
    for number, call in enumerate(recording.calls) if results else ():
        for argument in _floats((call.args, call.kwargs)):
            if argument in results and results[argument].call <= number:
                source = f"which {results[argument].name} handed to Python: where it comes from is not in the graph"
                yield _at(number, f"it takes the number {argument!r}, {source}", where)
                return


def _is_telling(number: float) -> bool:
    """Return whether a number says where it comes from: code holds one half, and small whole numbers, as literals."""
    return math.isfinite(number) and abs(number) != 0.5 and not (abs(number) < _SMALL and number.is_integer())  # noqa: PLR2004


def _floats(template: Any) -> Iterator[float]:
    if type(template) is float:
        yield template
    elif isinstance(template, list | tuple | dict):
        for _, item in children(template):
            yield from _floats(item)


def _is_truth_value(escape: Escape) -> bool:
    inside = escape.frames[0] if escape.frames else None
    return escape.name in _TRUTH or inside is torch.Tensor.__contains__.__code__  # `number in tensor` asks an item


def _held_by_wrappers(recording: Recording, where: Where, from_inputs: Reach) -> Iterator[Unproven]:
    """Yield the first wrapper that holds something besides its tensors: its class may compute with it.

    A number can only come from an input if an escape handed values of one to Python.
    """
    wraps = [(number, call, call.info.func) for number, call in enumerate(recording.calls)]
    made = [(number, call, wrap) for number, call, wrap in wraps if type(wrap) is Wrap]
    used = used_values(recording) if made else set()
    settled = () if made and _handed(recording, from_inputs) else NUMBERS
    for number, call, wrap in made:
        held = wrap.besides(call.args[0]) if any(id(value) in used for value in call.outputs) else ()
        for kind in [one.__name__ for one in held if not issubclass(one, settled)][:1]:
            owner = f"a tensor of class {call.info.name} holds an object of type {kind} besides its tensors"
            yield _at(number, f"{owner}: how that was computed is not in the graph", where)
            return


def _reads(escape: Escape, from_inputs: Reach) -> bool:
    return any(from_inputs.has(value) for value in (escape.value, *escape.others) if value is not None)


def _constants(recording: Recording) -> Iterator[tuple[int, Value]]:
    """Yield the constants that were made during the pass, each with the call that makes it or reads it first."""
    unknown = {id(source) for source in recording.unknown_sources}
    for source in recording.sources:
        if source.kind == "constant" and (source.maker or id(source) in unknown):
            yield source.since + 1, source.value
    for number, call in enumerate(recording.calls):
        if call.info.name in _FROM_NUMBERS and _is_of_numbers(call):
            yield from ((number, value) for value in call.outputs)


def _is_of_numbers(call: Call) -> bool:
    """Return whether a call makes a tensor of its arguments' numbers: not ``torch.as_tensor(x)`` of a tensor."""
    return call.info.name == "new_tensor" or not edges_in(call)


def _constant_from_python(escape: Escape, number: int, where: Where, num_calls: int) -> Unproven:
    message = (
        f"it uses a constant made after {escape.name} handed an input's values to Python: "
        "what the constant depends on is not in the graph"
    )
    return _at_call(number, message, where, num_calls)
