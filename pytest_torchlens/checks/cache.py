"""The check ``cache``: prefill and decode with a cache give what one pass over the whole sequence gives.

The first positions come in one call, the last ones one by one, each with the cache that the call before left.  The
joined outputs are compared with those of the plain pass; the place is sought in the first step that differs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from pytest_torchlens.checks.catalog import split_names
from pytest_torchlens.checks.compare import compare_each
from pytest_torchlens.checks.compare import compare_outputs
from pytest_torchlens.checks.compare import conclude
from pytest_torchlens.checks.compare import differing_outputs
from pytest_torchlens.checks.inputs import check_argument
from pytest_torchlens.checks.inputs import takes
from pytest_torchlens.checks.positions import Region
from pytest_torchlens.checks.sequences import CACHES
from pytest_torchlens.checks.sequences import DECODER_IDS
from pytest_torchlens.checks.sequences import POSITIONS
from pytest_torchlens.checks.sequences import Sequence
from pytest_torchlens.checks.sequences import beside_others
from pytest_torchlens.checks.sequences import find_sequence
from pytest_torchlens.checks.sequences import positions_of
from pytest_torchlens.checks.sequences import says_causal
from pytest_torchlens.checks.sequences import with_positions
from pytest_torchlens.checks.side_by_side import Parting
from pytest_torchlens.checks.side_by_side import part
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Outputs
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.subject import outputs_of
from pytest_torchlens.checks.tolerance import judge
from pytest_torchlens.checks.vacuity import dependent
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import CheckStatus

NAME = "cache"
_USE = "use_cache"
_STATIC = "static"
_DECODED = 3
"""Positions that come one by one."""
_EMPTY = 3
"""Places of a static cache that nothing is written to."""
_NO_CACHE = "forward takes no cache (cache, past_key_values, cache_params, state); 'cache' among its options names it"
_NOT_CAUSAL = "the model does not say that it is causal; 'ids' among its options names the sequence, which says so"
_ADVICE = (
    "what a step computes from its position begins where the cache ends: count positions from the cache's length, mask "
    "by it, and write each key, value and state where the next step reads it"
)


def run(subject: Subject, ids: str = "", dim: int = 1, cache: str = "", kinds: str = "dynamic,static") -> CheckResult:
    """Compare prefill and single steps with the plain pass, for each kind of cache."""
    check_argument(subject.model, "cache", cache)
    name = cache or next((name for name in CACHES if takes(subject.model, name)), "")
    if not name:
        raise NotApplicableError(_NO_CACHE)
    if not (cache or ids or says_causal(subject.model)):
        raise NotApplicableError(_NOT_CAUSAL)
    sequence = _sequence(subject, ids, dim)
    parts = {f"a {kind} cache": partial(_with_cache, sequence, name, kind) for kind in split_names([kinds])}
    return compare_each(NAME, parts)


def _sequence(subject: Subject, ids: str, dim: int) -> Sequence:
    given = find_sequence(subject, ids, dim, decoder=True)
    if given.length <= 2 * _DECODED:
        raise NotApplicableError(f"the sequence has {given.length} positions, too few: {2 * _DECODED + 1} are needed")
    if draws := given.subject.draws:
        raise NotApplicableError(f"the model draws random numbers ({draws}), and others in each step")
    return Sequence(dependent(given.subject), given.name, dim)


def _with_cache(sequence: Sequence, name: str, kind: str) -> CheckResult:
    with beside_others(sequence):
        return _beside_plain(sequence, name, kind)


def _beside_plain(sequence: Sequence, name: str, kind: str) -> CheckResult:
    given = sequence.subject
    decoder = _Decoder(sequence, name, _static(given.model, sequence) if kind == _STATIC else None)
    way = f"with a {kind} cache"
    steps = decoder.run(way)
    _must_read_the_cache(decoder, steps[-1])
    found = compare_outputs(given, _joined(given.outputs, steps, sequence.length))
    first = len(steps) - 1 if found.agrees else _first_differing(sequence, decoder, steps)
    words = f"{way}, first in {f'decode step {first}' if first else 'the prefill'}"

    def find(path: str) -> tuple[ModelHistory, Parting]:
        history = given.with_inputs((), decoder.arguments(first, decoder.cache_before(first))).history
        return history, part(given, history, given.history, decoder.fit(first), path)

    result = conclude(NAME, given, found, words, _ADVICE, find)
    if result.status is CheckStatus.FAILED and _agrees_with_positions(sequence, decoder):
        return replace(result, notes=(f"with {POSITIONS} passed in each step it agrees: forward does not count them",))
    return result


def _agrees_with_positions(sequence: Sequence, decoder: _Decoder) -> bool:
    """Return whether steps give the same if they are told their positions, as `generate` tells them."""
    placed = with_positions(sequence, positions_of(sequence.subject.model))
    if placed is sequence:
        return False
    given = placed.subject
    steps = decoder.of(placed).run("with a cache and positions")
    return compare_outputs(given, _joined(given.outputs, steps, sequence.length)).agrees


def _static(model: nn.Module, sequence: Sequence) -> Callable[[], Any]:
    """Return what makes a static cache of transformers, with room for some positions more."""
    if not getattr(model, "_can_compile_fullgraph", False) or DECODER_IDS in sequence.subject.kwargs:
        raise NotApplicableError("the model's class does not say that it takes one (_can_compile_fullgraph)")
    make = importlib.import_module("transformers").StaticCache
    return lambda: make(config=model.config, max_cache_len=sequence.length + _EMPTY)


class _Decoder:
    """Runs a model on the first positions of a sequence, then on one after the other, with a cache."""

    def __init__(self, sequence: Sequence, name: str, make: Callable[[], Any] | None) -> None:
        self._sequence = sequence
        self._model = sequence.subject.model
        self._name = name
        self._make = make
        prefill = sequence.length - _DECODED
        self.spans = [(0, prefill), *((start, 1) for start in range(prefill, sequence.length))]

    def of(self, sequence: Sequence) -> _Decoder:
        """Return the same for another sequence."""
        return _Decoder(sequence, self._name, self._make)

    def arguments(self, step: int, cache: Any) -> dict[str, Any]:
        """Return the arguments of one step; a mask reaches from the first position on."""
        start, length = self.spans[step]
        made = self._sequence.part(start, length)
        for name, value in self._sequence.subject.kwargs.items():
            if "mask" in name and self._sequence.goes_with(name):
                rows = value.narrow(-2, start, length) if self._sequence.is_of_pairs(name) else value
                made[name] = rows.narrow(-1, 0, start + length).clone()
        if takes(self._model, _USE):
            made[_USE] = True
        return made | ({} if cache is None else {self._name: cache})

    def run(self, way: str) -> list[Outputs]:
        """Return the outputs of all steps."""
        made: list[Outputs] = []
        cache = self._run(len(self.spans), way, made)
        if cache is None:
            raise NotApplicableError(f"the model returns no {self._name!r}")
        return made

    def is_output(self, path: str) -> bool:
        """Return whether an output is no part of the cache, which is another one at each step."""
        return path.split(".", maxsplit=1)[0] not in (self._name, *CACHES)

    def cache_before(self, step: int) -> Any:
        """Return the cache that a step gets."""
        return self._run(step, "with a cache", [])

    def without_cache(self, step: int) -> Outputs:
        """Return the outputs of a step that gets no cache."""
        return self._sequence.subject.call((), self.arguments(step, None), way="on one position alone")

    def _run(self, count: int, way: str, made: list[Outputs]) -> Any:
        cache = self._make() if self._make else None

        def decode(**kwargs: Any) -> Any:
            nonlocal cache
            for step in range(count):
                output = self._model(**self.arguments(step, cache))
                made.append(outputs_of(output))
                cache = _cache_in(output, self._name)
                if cache is None:
                    break

        with self._sequence.subject.runs(way=way, function=decode) as run:
            run()
        return cache

    def fit(self, step: int) -> Callable[[torch.Tensor, torch.Tensor], Iterator[torch.Tensor]]:
        """Return a fit of what the pass over the whole sequence has to what one step has."""
        start, length = self.spans[step]
        total = self._sequence.length

        def fit(whole: torch.Tensor, one: torch.Tensor) -> Iterator[torch.Tensor]:
            for dim, size in enumerate(one.shape if whole.dim() == one.dim() else ()):
                if whole.size(dim) == total and size == length:
                    whole = whole.narrow(dim, start, length)
                elif whole.size(dim) == total and size == start + length:
                    whole = whole.narrow(dim, 0, start + length)
            if whole.shape == one.shape:
                yield whole

        return fit


def _cache_in(output: Any, name: str) -> Any:
    """Return the cache in what a model returned; None if there is none."""
    for key in (name, *CACHES):
        found = output.get(key) if isinstance(output, dict) else getattr(output, key, None)
        if found is not None:
            return found
    return None


def _must_read_the_cache(decoder: _Decoder, last: Outputs) -> None:
    """Raise unless the last step gives something else without the cache."""
    try:
        alone = decoder.without_cache(len(decoder.spans) - 1)
    except ModelRaisedError:
        return
    if not any(decoder.is_output(path) for path in differing_outputs(last, alone) if path in last and path in alone):
        raise NotApplicableError("no output depends on the cache")


def _joined(whole: Outputs, steps: list[Outputs], length: int) -> Outputs:
    """Return the outputs of steps as those of the whole: joined along the positions, or as the last step left them."""
    found: Outputs = {}
    for path, reference in whole.items():
        pieces = [step[path] for step in steps if path in step]
        if len(pieces) < len(steps):
            continue
        last = pieces[-1]
        dims = [
            dim for dim in range(reference.dim()) if last.dim() == reference.dim() and _grows(pieces, reference, dim)
        ]
        if len(dims) == 1:
            found[path] = torch.cat(pieces, dims[0])
        elif last.shape == reference.shape:
            found[path] = last
        else:
            view = Region(0, length, length + _EMPTY).of(last, reference.shape)
            found |= {} if view is None else {path: view}
    return found


def _grows(pieces: list[torch.Tensor], reference: torch.Tensor, dim: int) -> bool:
    if any(piece.dim() != reference.dim() for piece in pieces):
        return False
    sizes = [piece.size(dim) for piece in pieces]
    return sizes[1:] == [1] * _DECODED and sum(sizes) == reference.size(dim)


def _first_differing(sequence: Sequence, decoder: _Decoder, steps: list[Outputs]) -> int:
    """Return the first step with an output that is off by more than rounding explains; the last, if none is alone."""
    given = sequence.subject
    for number, outputs in enumerate(steps):
        fit = decoder.fit(number)
        for path, whole in given.outputs.items():
            one = outputs.get(path)
            if one is None or one.shape == whole.shape:
                continue
            pairs = zip(fit(whole, one), fit(given.exact[path], one), strict=True)
            if any(not judge(one, view, truth).within for view, truth in pairs):
                return number
    return len(steps) - 1
