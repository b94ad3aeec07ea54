"""The check ``padding``: padded positions under the mask, left and right, change nothing at the real ones.

A sequence is compared with the same one padded, but for rounding, and that with other values at the padded positions,
bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.checks.catalog import split_names
from pytest_torchlens.checks.compare import compare
from pytest_torchlens.checks.compare import compare_each
from pytest_torchlens.checks.compare import differing_outputs
from pytest_torchlens.checks.exact import is_discrete
from pytest_torchlens.checks.inputs import check_argument
from pytest_torchlens.checks.inputs import parameters_of
from pytest_torchlens.checks.inputs import takes
from pytest_torchlens.checks.positions import Excerpt
from pytest_torchlens.checks.positions import Question
from pytest_torchlens.checks.positions import Region
from pytest_torchlens.checks.positions import unreached
from pytest_torchlens.checks.sequences import CACHES
from pytest_torchlens.checks.sequences import DECODER_IDS
from pytest_torchlens.checks.sequences import Sequence
from pytest_torchlens.checks.sequences import beside_others
from pytest_torchlens.checks.sequences import find_sequence
from pytest_torchlens.checks.sequences import positions_of
from pytest_torchlens.checks.sequences import says_causal
from pytest_torchlens.checks.sequences import with_positions
from pytest_torchlens.checks.subject import PLAIN
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Outputs
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.tolerance import is_plainly_explained
from pytest_torchlens.checks.vacuity import dependent
from pytest_torchlens.checks.vacuity import dependent_outputs
from pytest_torchlens.records import CheckResult
from pytest_torchlens.records import CheckStatus

NAME = "padding"
_MASKS = ("attention_mask", "src_key_padding_mask", "key_padding_mask", "padding_mask")
"""The first names to look for; then any that ends in `_TRUE_AT_PADDING`."""
_TRUE_AT_PADDING = "padding_mask"
"""How the name of a mask ends that is likely True at padded positions; any other is likely 1 at real ones."""
_SURE = frozenset(_MASKS[:-1])
"""Masks of transformers and of torch, whose names say which it is."""
_ADVICE = (
    "give the mask to each operation that mixes positions (attention, convolutions, means and norms over the "
    "sequence), and count positions from the mask"
)
_NO_MASK = "forward has no argument attention_mask or …padding_mask; 'mask' among its options names the one that it has"
_COUNTS = "forward takes no positions, and counts padded ones"
_PADDED = 3
"""How many positions are padded."""


def run(
    subject: Subject, ids: str = "", dim: int = 1, mask: str = "", positions: str = "", sides: str = "left,right"
) -> CheckResult:
    """Compare a sequence alone with the same one padded, and padded with other values, on each side."""
    check_argument(subject.model, "mask", mask)
    mask = mask or _mask_of(subject.model)
    if not mask:
        raise NotApplicableError(_NO_MASK)
    padder, wanted = _Padder(subject, ids, dim, mask, positions), split_names([sides])
    result = compare_each(NAME, {side: partial(padder.compared, side) for side in wanted})
    if result.status is not CheckStatus.FAILED and not any(map(padder.sees_padding, wanted)):
        raise NotApplicableError("no output depends on padded positions without the mask, either")
    return result


def _mask_of(model: nn.Module) -> str:
    """Return the argument that takes a mask; empty if forward has none."""
    others = [name for name in parameters_of(model) if name.endswith(_TRUE_AT_PADDING)]
    return next((name for name in _MASKS if takes(model, name)), "") or next(iter(others), "")


class _Padder:
    """Pads the sequence of a subject, whose last positions are left out so that it does not grow."""

    def __init__(self, subject: Subject, ids: str, dim: int, mask: str, positions: str) -> None:
        given = find_sequence(subject, ids, dim)
        if given.length <= 2 * _PADDED:
            few = f"the sequence has {given.length} positions, too few: {2 * _PADDED + 1} are needed"
            raise NotApplicableError(few)
        if draws := given.subject.draws:
            raise NotApplicableError(f"the model draws random numbers ({draws}), and others for another length")
        whole = Sequence(dependent(given.subject), given.name, dim)
        part = whole.of(whole.part(0, whole.length - _PADDED))
        self._mask = mask
        self._hides = self._true_hides(part)
        self._positions = positions_of(subject.model, positions)
        self.sequence = with_positions(self._with_mask(part, self._hides), self._positions)
        self._region_of = {"left": _PADDED, "right": 0}
        self._padded: dict[str, Sequence] = {}
        self._is_decoder = says_causal(subject.model)
        self._has_decoder = DECODER_IDS in given.subject.kwargs
        returned = {path.split(".")[0] for path in given.subject.outputs}
        self._keeps_state = bool(self._is_decoder) or not returned.isdisjoint(CACHES)

    @property
    def places_left(self) -> bool:
        """Whether a sequence that is padded on the left must give the same: it has positions, or is a decoder's."""
        return self._positions in self.sequence.subject.kwargs or bool(self._is_decoder and not self._has_decoder)

    def _true_hides(self, part: Sequence) -> bool:
        """Return whether the mask is True at padded positions, rather than at real ones.

        What the name says is believed of known names; else the mask of the inputs hides nothing, or that mask does
        which changes nothing.
        """
        named, given = self._mask.endswith(_TRUE_AT_PADDING), part.subject.kwargs.get(self._mask)
        if self._mask in _SURE:
            return named
        if isinstance(given, torch.Tensor):
            return named if not given.numel() or given.bool().any() != given.bool().all() else not bool(given.any())
        try:
            plain = part.subject.outputs
        except ModelRaisedError:  # it cannot do without
            return named
        return named if not self._changes(part, named, plain) or self._changes(part, not named, plain) else not named

    def _changes(self, part: Sequence, hides: bool, plain: Outputs) -> bool:
        """Return whether a mask that is to hide nothing changes an output by more than some last places."""
        try:
            masked = self._with_mask(part, hides).subject.outputs
        except ModelRaisedError:
            return True
        return any(
            not is_plainly_explained(masked[path], plain[path])
            for path in differing_outputs(masked, plain)
            if path in masked and path in plain
        )

    def _with_mask(self, part: Sequence, hides: bool) -> Sequence:
        """Return the sequence with a mask that hides nothing."""
        given = part.subject.kwargs.get(self._mask)
        kind = torch.bool if hides else torch.long
        batch = part.tensor.size(1 - part.dim) if part.dim <= 1 and part.tensor.dim() > 1 else 1
        made = torch.full((batch, part.length), not hides, dtype=kind, device=part.tensor.device)
        if isinstance(given, torch.Tensor):
            if given.shape != made.shape or not torch.equal(given.bool(), made.bool()):
                raise NotApplicableError(f"{self._mask!r} of the inputs hides positions itself, or is no mask of them")
            made = given
        return part.of(part.subject.kwargs | {self._mask: made})

    def _excerpt(self, side: str) -> Excerpt:
        if side not in self._padded:
            self._padded[side] = self.sequence.of(self._padded_arguments(side == "left"))
        full = self._padded[side]
        return Excerpt(full.subject, self.sequence.subject, self._region(side))

    def _region(self, side: str) -> Region:
        return Region(self._region_of[side], self.sequence.length, self.sequence.length + _PADDED)

    def _padded_arguments(self, left: bool) -> dict[str, Any]:
        short = self.sequence
        made = dict(short.subject.kwargs)
        for name, value in made.items():
            if name == self._mask:
                made[name] = _padded(value, -1, left, float(self._hides))
            elif name == short.name:
                made[name] = _padded(value, short.dim, left, self._token())
            elif name == self._positions:
                made[name] = _padded(value, -1, left, 0)
            elif short.goes_with(name):
                if short.is_of_pairs(name):
                    raise NotApplicableError(f"{name!r} is a mask of pairs, which has no padding")
                (where,) = short.dims_of(name)
                made[name] = _padded(value, where, left, None)
        return made

    def _token(self) -> float:
        """Return what stands at padded positions: the model's own token, else the least of the sequence, or zero."""
        if not is_discrete(self.sequence.tensor):
            return 0.0
        config = getattr(self.sequence.subject.model, "config", None)
        token, count = getattr(config, "pad_token_id", None), getattr(config, "vocab_size", None)
        if isinstance(token, int) and isinstance(count, int) and 0 <= token < count:
            return token
        return int(self.sequence.tensor.min())

    def compared(self, side: str) -> CheckResult:
        """Compare the padded sequence with the sequence alone, and with other values at the padded positions."""

        def beside(compared: Callable[[str], CheckResult]) -> CheckResult:
            with beside_others(self.sequence):
                return compared(side)

        parts = {"beside the sequence alone": self._beside_alone, "with other values": self._beside_other_values}
        return compare_each(NAME, {words: partial(beside, compared) for words, compared in parts.items()})

    def _beside_alone(self, side: str) -> CheckResult:
        """Compare the padded sequence with the sequence alone, but for rounding."""
        excerpt = self._excerpt(side)
        way = f"padded on the {side}"
        outputs = excerpt.full.once(PLAIN, lambda: excerpt.full.call(way=way))
        fit = excerpt.region.fit if self._pools(side) else excerpt.region.fit_positions
        depend = dependent_outputs(excerpt.short)
        result = compare(
            NAME, excerpt.short, outputs, lambda: excerpt.full.history, way, _ADVICE, fit=fit, depend=depend
        )
        if result.status is CheckStatus.FAILED and side == "left" and not self.places_left:
            raise NotApplicableError(_COUNTS)
        return result

    def _beside_other_values(self, side: str) -> CheckResult:
        """Compare the padded sequence with the same one with other values at the padded positions."""
        excerpt = self._excerpt(side)
        start = 0 if side == "left" else self.sequence.length
        question = Question(
            NAME,
            f"when values at the padded positions change (padded on the {side})",
            "at real positions",
            "the first operation whose real positions depend on padded ones",
            _ADVICE,
        )
        padded, pooled = self._padded[side], self._pools(side)
        try:
            return unreached(question, excerpt, padded.with_new(start, _PADDED), pooled=pooled, vacuous=False)
        except ModelRaisedError:  # some ids mean more to it than a token
            changed = padded.with_others(start, _PADDED)
        return unreached(question, excerpt, changed, pooled=pooled, vacuous=False)

    def sees_padding(self, side: str) -> bool:
        """Return whether an output at real positions is another one if the mask does not hide the padded ones."""
        excerpt = self._excerpt(side)
        mask = excerpt.full.kwargs[self._mask]
        shown = excerpt.full.call((), excerpt.full.kwargs | {self._mask: torch.full_like(mask, not self._hides)})
        pairs = [(excerpt.of(excerpt.full.outputs, path), excerpt.of(shown, path)) for path in shown]
        return any(one is not None and two is not None and fingerprint(one) != fingerprint(two) for one, two in pairs)

    def _pools(self, side: str) -> bool:
        """Whether outputs without positions must not change.

        An encoder's may be its first position, which is padded on the left; a decoder's is its state after the last.
        """
        return self._has_decoder or side == ("left" if self._keeps_state else "right")


def _padded(tensor: torch.Tensor, dim: int, left: bool, value: float | None) -> torch.Tensor:
    """Return a tensor with some more positions: of a value, or of that at the edge."""
    tensor = tensor.detach()
    edge = tensor.narrow(dim, 0 if left else tensor.size(dim) - 1, 1)
    more = torch.cat([edge if value is None else torch.full_like(edge, value)] * _PADDED, dim)
    return torch.cat([more, tensor] if left else [tensor, more], dim)
