"""The check ``packed``: sequences packed in one, told apart by their positions, give what each gives alone."""

from __future__ import annotations

from typing import Any

import torch

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.checks.compare import compare
from pytest_torchlens.checks.compare import summed_up
from pytest_torchlens.checks.inputs import takes
from pytest_torchlens.checks.positions import Region
from pytest_torchlens.checks.sequences import DECODER_IDS
from pytest_torchlens.checks.sequences import Sequence
from pytest_torchlens.checks.sequences import beside_others
from pytest_torchlens.checks.sequences import find_sequence
from pytest_torchlens.checks.sequences import positions_of
from pytest_torchlens.checks.sequences import says_causal
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.vacuity import dependent
from pytest_torchlens.checks.vacuity import dependent_outputs
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import CheckStatus

NAME = "packed"
_USE_CACHE = "use_cache"
_ADVICE = (
    "let nothing pass where positions begin anew: mask the attention by sequence, and begin states and convolutions "
    "anew there"
)
_NO_POSITIONS = "forward takes no position_ids; 'positions' among its options names the argument that it has"
_NOT_CAUSAL = (
    "the model does not say that it is causal, and of others no packing by positions is known; 'ids' among its options "
    "names the sequence, which says that it takes several in one"
)


def run(subject: Subject, ids: str = "", dim: int = 1, positions: str = "") -> CheckResult:
    """Compare two sequences packed in one with each alone."""
    name = positions_of(subject.model, positions)
    if not name:
        raise NotApplicableError(_NO_POSITIONS)
    if not (ids or positions) and (takes(subject.model, DECODER_IDS) or not says_causal(subject.model)):
        raise NotApplicableError(_NOT_CAUSAL)
    given = find_sequence(subject, ids, dim)
    if draws := given.subject.draws:
        raise NotApplicableError(f"the model draws random numbers ({draws}), and others for another length")
    whole = Sequence(dependent(given.subject), given.name, dim)
    with beside_others(whole):
        return _packed(whole, name)


def _packed(whole: Sequence, name: str) -> CheckResult:
    first = whole.length // 2 + 1
    lengths = first, whole.length - first
    packed = _placed(whole, name, *lengths)
    found: list[CheckResult] = []
    for number, (start, length) in enumerate(zip((0, first), lengths, strict=True)):
        alone = _placed(whole.of(whole.part(start, length)), name, length)
        region = Region(start, length, whole.length)
        if number:
            _must_mix(whole, name, alone, region)
        way = f"packed, as the {('first', 'second')[number]} of two sequences"
        result = _compared(alone, packed, region, way)
        if result.status is CheckStatus.FAILED:
            return result
        found.append(result)
    return summed_up(NAME, found)


def _placed(sequence: Sequence, name: str, *lengths: int) -> Subject:
    """Return a subject of sequences of these lengths in one: their positions, no mask and no cache."""
    counted = torch.cat([torch.arange(length) for length in lengths]).to(sequence.tensor.device)
    batch = sequence.tensor.size(0) if sequence.dim else 1
    kwargs: dict[str, Any] = {
        key: value for key, value in sequence.subject.kwargs.items() if not ("mask" in key and sequence.goes_with(key))
    }
    if takes(sequence.subject.model, _USE_CACHE):
        kwargs[_USE_CACHE] = False
    return sequence.of(kwargs | {name: counted.expand(batch, -1).clone()}).subject


def _compared(alone: Subject, packed: Subject, region: Region, way: str) -> CheckResult:
    outputs = packed.outputs
    depend = dependent_outputs(alone)
    return compare(NAME, alone, outputs, lambda: packed.history, way, _ADVICE, fit=region.fit_positions, depend=depend)


def _must_mix(whole: Sequence, name: str, alone: Subject, region: Region) -> None:
    """Raise unless the second sequence, as the rest of a long one, depends on the first."""
    plain = _placed(whole, name, whole.length)
    changed = plain.call((), plain.kwargs | {whole.name: whole.with_others(0, region.start)[whole.name]})
    for path, one in alone.outputs.items():
        views = [region.of(made[path], one.shape) for made in (plain.outputs, changed) if path in made]
        known = [view for view in views if view is not None and view.shape != plain.outputs[path].shape]
        if len({fingerprint(view) for view in known}) > 1:
            return
    raise NotApplicableError("no output depends on what comes before in the sequence: there is nothing to keep apart")
