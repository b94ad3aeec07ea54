"""Compares two recordings of a model, to find values that go past the graph.

With slightly other inputs, where the same operations run, the numbers among their arguments, the contents of
parameters, buffers and constants, and the seeds of generators must be the same.  If not, a value took another way than
the graph shows: as ``x * (x.sum().item() * 2)`` computes in Python, or as a write that nothing announces.

With any inputs, a second recording must not read what the first one computed from its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from pytest_torchlens.capture import Aliased
from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Source
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.calls import RandomState
from pytest_torchlens.capture.functions import SHAPE_OF_FIRST
from pytest_torchlens.capture.functions import SHAPE_OF_SECOND
from pytest_torchlens.capture.leaves import ATOMS
from pytest_torchlens.capture.leaves import children
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.memory import duplicate
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.capture.values import values_in
from pytest_torchlens.validate.exemptions import SECOND
from pytest_torchlens.validate.noise import is_dense
from pytest_torchlens.validate.unobtrusive import modes_disabled
from pytest_torchlens.validate.unproven import Reach
from pytest_torchlens.validate.unproven import used_values

_FACTOR = 1 - 2**-6
"""Large enough to change a bfloat16, and small enough to flip few branches; zeros and signs stay if others change."""

_SMALL = 64 * 2**20
"""Bytes of activations up to which a further recording costs little."""


def may_leave_the_graph(recording: Recording) -> bool:
    """Return whether to look for values that went past the graph: where it costs little, or anything points to it."""
    numbers = (escape for escape in recording.escapes if type(escape.result) is not bool)
    return _is_small(recording) or next(numbers, None) is not None or reads_constants(recording)


def _is_small(recording: Recording) -> bool:
    return sum(value.nbytes for call in recording.calls for value in call.outputs) <= _SMALL


def reads_constants(recording: Recording) -> bool:
    """Return whether a recorded call reads a tensor that is not an input, a parameter or a buffer."""
    return any(source.kind == "constant" for source in recording.sources)


@contextlib.contextmanager
def nudged(inputs: Iterable[torch.Tensor]) -> Iterator[bool]:
    """Give floating-point inputs slightly other values, or integers if there are no such; yield whether any has.

    The tensors get other memory meanwhile: theirs may be read-only, and autograd would notice a write.
    """
    former: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        _nudge(inputs, former)
        yield bool(former)
    finally:
        _put_back(former)


@modes_disabled()
def _nudge(inputs: Iterable[torch.Tensor], former: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Give inputs other memory, and add each with the one it had to `former`."""
    dense = [tensor for tensor in inputs if is_dense(tensor) and type(tensor) is torch.Tensor and tensor.numel()]
    for change in (_scaled, _lowered):
        for tensor in () if former else dense:
            with contextlib.suppress(RuntimeError):  # inference tensors, and dtypes that can only be stored
                other = change(duplicate(tensor))
                if other is not None:
                    former.append((tensor, tensor.detach()))
                    tensor.data = other


def _scaled(values: torch.Tensor) -> torch.Tensor | None:
    """Return floating-point values that are scaled, or shifted or replaced by ones if that changes none of them."""
    if not (values.dtype.is_floating_point or values.dtype.is_complex):
        return None
    others = (values * _FACTOR, values + (1 - _FACTOR), torch.ones_like(values))
    return next((other for other in others if _differs(other, values)), None)


def _differs(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(((one != other) & ~one.isnan()).any())


def _lowered(values: torch.Tensor) -> torch.Tensor | None:
    """Return integers of which the largest are the next smaller ones, so that indices stay in range, and sorted.

    None where there are only two: they may stand for truth values.
    """
    if values.dtype is torch.bool:
        return None
    largest = values == values.max()
    rest = values[~largest]
    if not rest.numel() or bool((rest == rest.max()).all()):
        return None
    return values.masked_fill_(largest, rest.max())


@modes_disabled()
def _put_back(former: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for tensor, memory in reversed(former):
        tensor.data = memory


def ran_uncompiled(recording: Recording) -> bool:
    """Return whether code that PyTorch compiles ran uncompiled, because of the watch, and nothing was missed so."""
    return recording.compiled and recording.num_dispatched is not None and not recording.missed_operations


def same_calls(first: Recording, other: Recording) -> bool:
    """Return whether two recordings have the same functions, which read the same values, and gave the same ones."""
    return all(part(first) == part(other) for part in (_calls, _contents, _outputs))


def _calls(recording: Recording) -> list[tuple[str, list[Any], list[Any]]]:
    """Return the name of each call, where the tensors that it read come from, and its other arguments."""
    reads = [[(path, _origin(read)) for path, read in edges_in(call)] for call in recording.calls]
    plain = [list(_plain((call.args, call.kwargs))) for call in recording.calls]
    return list(zip([call.info.name for call in recording.calls], reads, plain, strict=True))


def _contents(recording: Recording) -> list[str]:
    """Return the fingerprint of each source whose contents matter."""
    sources = (source for source in recording.sources if not _is_overwritten_first(source, recording))
    return [source.value.fingerprint for source in sources]


def _outputs(recording: Recording) -> list[tuple[list[tuple[int, int]], list[str]]]:
    """Return where each output comes from, and its fingerprints, except those of uninitialised memory."""
    reads = [read for _, read in recording.outputs]
    blank = recording.uninitialised
    return [(_origin(read), [one.fingerprint for one in values_in(read) if one.call not in blank]) for read in reads]


_TEXTED = frozenset(
    [
        *(int, float, complex, str, bytes, bool, type(None), type(...)),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format),
    ]
)


def _plain(template: Any) -> Iterator[str | bytes]:
    """Yield the text of each number, string, dtype and the like in recorded arguments; the bytes of an array."""
    if type(template) in _TEXTED or is_a(template, np.generic):
        yield repr(template)  # two NaN agree, and 1 and True do not
    elif is_a(template, np.ndarray):
        yield template.tobytes()
    elif is_a(template, (list, tuple, dict, slice)):
        for _, item in children(template):
            yield from _plain(item)


def _origin(read: Value | Aliased) -> list[tuple[int, int]]:
    """Return where a value and what it depends on come from: call and position of each."""
    return [(value.call, value.position) for value in (value_of(read), *values_in(read))]


def changed_with_inputs(first: Recording, other: Recording) -> list[tuple[int, str]]:
    """Return the first number, source and seed of `first` that differ in `other`, which had other inputs.

    Each is the number of the call that reads it, and a message.  Both are recordings from the same state.  The calls of
    several threads are in another order each time, and are not compared.
    """
    if first.threaded or other.threaded:
        return []
    used = used_values(first)
    pairs = list(_pairs(first, other, used))
    kinds = (_numbers(pairs), _sources(first, other, used), _seeds(pairs))
    found = [next(changes, None) for changes in kinds]
    return [one for one in found if one is not None]


_Pair = tuple[int, Call, Call]


def _pairs(first: Recording, other: Recording, used: set[int]) -> Iterator[_Pair]:
    """Yield the number of each call that an output depends on, the call, and the one that it corresponds to."""
    for number, (call, again) in enumerate(zip(first.calls, other.calls, strict=False)):
        if call.info.name != again.info.name:  # a branch: nothing after it corresponds
            return
        if not used.isdisjoint(map(id, call.outputs)):
            yield number, call, again


def _numbers(pairs: list[_Pair]) -> Iterator[tuple[int, str]]:
    for number, call, again in pairs:
        for one, two in _changed_numbers(call, again):
            shown = f"the number {one!r} here, and {two!r}" if isinstance(one, float) else "a number that is another"
            message = f"it takes {shown} with slightly other inputs: where it comes from is not in the graph"
            yield number, message


def _seeds(pairs: list[_Pair]) -> Iterator[tuple[int, str]]:
    for number, call, again in pairs:
        if call.random and again.random and _seed(call.random) != _seed(again.random):
            message = "it draws from a generator that has another seed when the inputs are slightly other ones: "
            yield number, f"{message}where the seed comes from is not in the graph"


@modes_disabled()
def _seed(random: RandomState) -> int:
    generator = torch.Generator(random.generator.device)
    generator.set_state(random.state)
    return generator.initial_seed()


def _changed_numbers(call: Call, again: Call) -> Iterator[tuple[Any, Any]]:
    pairs = zip(_fractions_of(call), _fractions_of(again), strict=False)
    return ((one, two) for one, two in pairs if one != two and (one == one or two == two))  # noqa: PLR0124 - two NaN agree


def _fractions_of(call: Call) -> Iterable[Any]:
    if call.kwargs or not _WITHOUT_PARTS.issuperset(map(type, call.args)):
        return _fractions((call.args, call.kwargs))
    return [arg for arg in call.args if type(arg) is float or type(arg) is complex]


_WITHOUT_PARTS = frozenset([Value, Aliased, *ATOMS])


def _fractions(template: Any) -> Iterator[Any]:
    """Yield the numbers in recorded arguments that have a fraction; the bytes of an array."""
    if is_a(template, (float, complex, np.inexact)):
        yield template
    elif is_a(template, np.ndarray):
        yield template.tobytes()
    elif is_a(template, (list, tuple, dict, slice)):
        for _, item in children(template):
            yield from _fractions(item)


def _sources(first: Recording, other: Recording, used: set[int]) -> Iterator[tuple[int, str]]:
    for source, again in zip(first.sources, other.sources, strict=False):
        if (source.kind, source.name) != (again.kind, again.name):
            return
        contents = source.value.digest and source.value.digest != again.value.digest
        differs = (contents and not _is_overwritten_first(source, first)) or _holds_other_numbers(source, again)
        if differs and source.kind != "input" and id(source.value) in used:
            name = f"{source.kind} {source.name!r}" if source.name else "a constant"
            message = f"it reads {name} with other contents when the inputs are slightly other ones: "
            yield source.since + 1, f"{message}how they depend on the inputs is not in the graph"


def _holds_other_numbers(source: Source, again: Source) -> bool:
    """Return whether a tensor that wraps others holds other numbers beside them."""
    one, other = source.wrapper, again.wrapper
    return one is not None and other is not None and one.numbers != other.numbers


def _is_overwritten_first(source: Source, recording: Recording) -> bool:
    """Return whether the first call that uses the values of a source writes over it, as over uninitialised memory."""
    slots = {source.value.slot}
    for call in recording.calls[source.since + 1 :]:
        paths = [path for path, read in edges_in(call) if value_of(read).slot in slots]
        if not paths or call.info.bookkeeping or _takes_shape(call, paths):
            continue
        if not _is_whole_view(call, paths):
            return _overwrites(call, slots, paths)
        slots.add(call.outputs[0].slot)
    return False


def _takes_shape(call: Call, paths: list[str]) -> bool:
    """Return whether a call takes no more than shape, dtype or device from its arguments at these paths."""
    if call.info.layer_type in SHAPE_OF_SECOND:
        return all(path in SECOND for path in paths)
    return call.info.layer_type in SHAPE_OF_FIRST and paths == ["0"]


_WHOLE_VIEWS = frozenset("detach data view view_as unsqueeze squeeze t T mT transpose permute as_subclass".split())


def _is_whole_view(call: Call, paths: list[str]) -> bool:
    """Return whether a call returns all of the memory of its first argument, which alone it reads."""
    all_of_it = call.info.name in _WHOLE_VIEWS or (call.info.name == "__getitem__" and _is_all(call))
    return paths == ["0"] and all_of_it and call.may_be_view


_OVERWRITE = frozenset(
    [
        *("copy_", "fill_", "zero_", "constant_", "data", "_foreach_copy_", "_foreach_zero_"),
        *("copy_storage_", "fill_storage_"),
        *("normal_", "uniform_", "random_", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_"),
        *("kaiming_normal_", "kaiming_uniform_"),
    ]
)
"""Functions that write all elements of a tensor, and use none of its former contents."""


def _overwrites(call: Call, slots: set[int], paths: list[str]) -> bool:
    """Return whether a call writes all of a tensor that it reads at these paths, and uses nothing that it held."""
    if len(paths) > 1 or slots.isdisjoint(call.writes):  # `torch.add(x, 1, out=x)` reads it too
        return False
    is_out = paths[0].partition(".")[0] == "out" and not call.info.opaque
    return is_out or call.info.name in _OVERWRITE or (call.info.name == "__setitem__" and _is_all(call))


def _is_all(call: Call) -> bool:
    """Return whether the index of a call is that of ``x[:]`` or ``x[...]``."""
    index = call.args[1]
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is ... or (type(part) is slice and part == slice(None)) for part in parts)


def kept_results(first: Recording, other: Recording) -> Iterator[tuple[int, str]]:
    """Yield that `other`, recorded after `first`, reads what `first` computed from its inputs.

    It may read what `first` computed without them: a table that is made once.
    """
    constants = [source.value for source in other.sources if source.kind == "constant"]
    if not constants:
        return
    from_inputs = Reach(first)
    values = [value for call in first.calls for value in call.outputs if value.shape.numel()]
    computed = {value.fingerprint for value in values}
    independent = {value.fingerprint for value in values if not from_inputs.has(value)}
    known = {"", *independent, *(source.value.fingerprint for source in first.sources)}
    if not (computed - known).isdisjoint(value.fingerprint for value in constants):
        yield len(first.calls), "a second run reads what the first one computed from the inputs"
