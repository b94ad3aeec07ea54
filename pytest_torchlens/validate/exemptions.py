"""Finds the reason why a changed argument left a result unchanged, and proves it.

There are two kinds of proof.  A fact about the call: its result is empty, or it overwrote the argument.  An experiment:
the suspected cause is removed (the zero factor replaced, the mask lifted), and then the argument has an effect.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.functions import SHAPE_OF_FIRST
from pytest_torchlens.capture.functions import SHAPE_OF_SECOND
from pytest_torchlens.capture.functions import is_of_torch
from pytest_torchlens.capture.memory import detached
from pytest_torchlens.capture.storage import is_fake
from pytest_torchlens.validate.crop import is_elementwise
from pytest_torchlens.validate.noise import Noise
from pytest_torchlens.validate.noise import is_dense
from pytest_torchlens.validate.noise import other_numbers
from pytest_torchlens.validate.noise import with_arguments
from pytest_torchlens.validate.trial import Trial
from pytest_torchlens.validate.trial import same

# these do not check indices: values out of range would read or write memory outside their arguments
_GENTLE = frozenset(["roi_align", "ps_roi_align", "roi_pool", "ps_roi_pool", "deform_conv2d", "nms"])
_OF_UNCHECKED_INTEGERS = frozenset(
    "linalg_ldl_solve segment_reduce max_pool2d_with_indices_backward grouped_mm".split()
)


def is_gentle(call: Call) -> bool:
    """Return whether a call must get only values in the usual range."""
    return call.info.layer_type in _GENTLE


def is_index(call: Call, tensor: torch.Tensor) -> bool:
    """Return whether an argument has indices, lengths or pivots that the function does not check."""
    unchecked = call.info.layer_type in _OF_UNCHECKED_INTEGERS and is_of_torch(call.info.func)
    checked = call.kwargs.get("lengths") is not None  # those of `torch.segment_reduce`; its offsets are not
    return unchecked and not checked and not _is_continuous(tensor)


class Explainer:
    """Finds the reason why an argument had no effect."""

    def __init__(self, noise: Noise) -> None:
        self._noise = noise

    def reason(self, trial: Trial, place: int) -> str | None:
        """Return why other values for the argument at `place` changed nothing; None if no reason is known."""
        named = next((name for name, holds in _FACTS.items() if holds(trial, place)), None)
        if named is not None:
            return named
        if is_gentle(trial.call):
            return None
        if is_index(trial.call, trial.tensors[place]):
            return (
                None if self._can_be_reordered(detached(trial.tensors[place])) else "no noise for this kind of tensor"
            )
        if trial.call.info.opaque:
            return "inside not seen"
        experiments: tuple[Callable[[Trial, int], str | None], ...] = (
            *(self._beside_empty, self._hidden, self._single, self._extreme),
            *(self._fully_overwritten, self._by_number, self._unaligned, self._not_finite),
        )
        if any(is_index(trial.call, tensor) for tensor in trial.tensors):  # no other sizes, for which they do not fit
            experiments = (self._hidden, self._extreme, self._by_number, self._not_finite)
        named = next(filter(None, (experiment(trial, place) for experiment in experiments)), None)
        return named or self._unknowable(trial, place)

    def _extreme(self, trial: Trial, place: int) -> str | None:
        """Return a reason if only extreme values have an effect: a comparison, quantisation, saturation."""
        numbers = trial.tensors[place]
        discrete = not any(map(_is_continuous, trial.reference or ()))
        compares = _gives_truth_values(trial)
        safe = numbers.is_floating_point() or compares or _uses_numbers(trial.call)
        if not safe or not any(trial.reacts({place: other}) for other in self._far(trial, place, compares)):
            return None
        return "comparison" if compares else "integer quantised" if discrete else "saturated"

    def _far(self, trial: Trial, place: int, compares: bool) -> Iterator[torch.Tensor]:
        tensor = detached(trial.tensors[place])
        yield from self._noise.extremes(tensor)
        if compares and is_dense(tensor):
            for number in _compared_with(trial, place):
                yield torch.full_like(tensor, number)

    def _not_finite(self, trial: Trial, place: int) -> str | None:
        """Return a reason if only values that are not finite have an effect; last, since infinity times zero is NaN."""
        reacts = any(trial.reacts({place: other}) for other in self._noise.not_finite(trial.tensors[place]))
        return "comparison" if reacts else None

    def _hidden(self, trial: Trial, place: int) -> str | None:
        """Return a reason if this argument has an effect once another argument has other values."""
        others = [at for at, tensor in enumerate(trial.tensors) if at != place and not is_index(trial.call, tensor)]
        for at in others:
            for noise in self._noise.instead(trial.tensors[at]):
                if self._matters(trial, place, {at: noise}):
                    return _cause(trial, place, at)
        together = self._together(trial, others)
        return "hidden by other arguments" if any(self._matters(trial, place, each) for each in together) else None

    def _together(self, trial: Trial, places: list[int]) -> Iterator[dict[int, torch.Tensor]]:
        """Yield other values for all arguments at `places` that have any, if there are several."""
        streams = {at: list(self._noise.instead(trial.tensors[at])) for at in places}
        streams = {at: noises for at, noises in streams.items() if noises}
        if len(streams) > 1:
            yield from (dict(zip(streams, noises, strict=True)) for noises in zip(*streams.values(), strict=False))

    def _matters(self, trial: Trial, place: int, changed: dict[int, torch.Tensor]) -> bool:
        """Return whether the argument has an effect once other arguments are changed."""
        before = trial.outcome(changed)
        if before is None:
            return False
        after = (trial.outcome({**changed, place: other}) for other in self._variants(trial, place))
        return any(outcome is not None and not trial.same(outcome, before) for outcome in after)

    def _variants(self, trial: Trial, place: int) -> Iterator[torch.Tensor]:
        yield from self._noise.variants(trial.tensors[place])
        if is_elementwise(trial.call) or trial.call.info.layer_type in _OF_FEW_NUMBERS:
            yield from self._noise.extremes(trial.tensors[place])

    def _by_number(self, trial: Trial, place: int) -> str | None:
        """Return a reason if the argument has an effect once a number is changed: ``alpha=0``, ``p=1``."""
        for argument, number, other in other_numbers(trial.call, trial.call.info.layer_type in _OF_TRUTH_VALUES):
            if self._matters(trial.with_call(other), place, {}):
                if type(number) is bool:
                    return "masked"
                if isinstance(number, tuple | list):
                    return "single element"
                if "dropout" in argument or "dropout" in trial.call.info.layer_type:
                    return "dropped by dropout"
                return "multiplied by zero" if number == 0 else "saturated"
        return None

    def _unaligned(self, trial: Trial, place: int) -> str | None:
        """Return a reason if the argument has an effect once the input of a CTC loss is as long as any targets need."""
        if trial.call.info.layer_type != "ctc_loss" or not is_of_torch(trial.call.info.func):
            return None
        longer = _with_longer_input(trial)
        return "no alignment" if longer is not None and self._matters(longer, place, {}) else None

    def _single(self, trial: Trial, place: int) -> str | None:
        """Return a reason if the argument has an effect with two elements: a softmax over one ignores its values."""
        ways = (partial(self._doubled_ones, differs=differs) for differs in (False, True))
        reacts = any(self._larger(trial, place, way) for way in ways)
        if not reacts and (two := _with_two_bins(trial)) is not None:
            reacts = self._matters(two, place, {})
        return "single element" if reacts else None

    def _beside_empty(self, trial: Trial, place: int) -> str | None:
        """Return a reason if the argument has an effect once arguments without elements have some."""
        if not all(map(is_dense, trial.tensors)):
            return None
        if all(tensor.numel() for tensor in trial.tensors):
            return None
        ways = (
            partial(_filled, like=like, number=number) for like in (trial.tensors[place], None) for number in (1, 0)
        )
        trials = (trial.with_tensors(list(map(fill, trial.tensors))) for fill in ways)
        return "empty input" if any(self._matters(filled, place, {}) for filled in trials) else None

    def _fully_overwritten(self, trial: Trial, place: int) -> str | None:
        """Return a reason if the argument has an effect once it is larger: the call overwrote all of it."""

        def larger(at: int, tensor: torch.Tensor) -> Iterator[torch.Tensor]:
            return self._doubled(tensor) if at == place else itertools.repeat(tensor)

        return "overwritten" if self._larger(trial, place, larger) else None

    def _larger(self, trial: Trial, place: int, larger: Callable[[int, torch.Tensor], Iterator[torch.Tensor]]) -> bool:
        """Return whether the argument has an effect in a call with larger tensors; the last dimension grows first."""
        if not is_of_torch(trial.call.info.func) or not all(map(is_dense, trial.tensors)):
            return False
        shape = trial.tensors[place].shape
        each = [larger(at, detached(tensor)) for at, tensor in enumerate(trial.tensors)]
        for tensors, _ in zip(zip(*each, strict=False), range(max(len(shape), 1)), strict=False):
            if tensors[place].shape != shape and self._matters(trial.with_tensors(list(tensors)), place, {}):
                return True
        return False

    def _doubled(self, tensor: torch.Tensor, *, differs: bool = False) -> Iterator[torch.Tensor]:
        """Yield a tensor joined with a variant of itself, along each dimension from the last on.

        The first variant of a single integer is the same integer, as in a list with repeated classes.  With `differs`
        it is skipped, as a sort needs.
        """
        variants = self._noise.variants(tensor)
        other = next((other for other in variants if not (differs and same([other], [tensor]))), tensor)
        if not tensor.dim():
            yield torch.stack([tensor, other])
        for dim in range(tensor.dim() - 1, -1, -1):
            yield torch.cat([tensor, other], dim)

    def _doubled_ones(self, _: int, tensor: torch.Tensor, *, differs: bool) -> Iterator[torch.Tensor]:
        """Yield a tensor doubled in each dimension where it has one element, from the last on; then ever itself."""
        sizes = reversed(tensor.shape) if tensor.dim() else [1]
        yield from (
            doubled if size == 1 else tensor
            for size, doubled in zip(sizes, self._doubled(tensor, differs=differs), strict=True)
        )
        yield from itertools.repeat(tensor)

    def _can_be_reordered(self, tensor: torch.Tensor) -> bool:
        return any(not same([other], [tensor]) for other in self._noise.variants(tensor, True))

    def _unknowable(self, trial: Trial, place: int) -> str | None:
        tensor = detached(trial.tensors[place])
        noisy = is_dense(tensor) or next(self._noise.variants(tensor), None) is not None
        return None if noisy else "no noise for this kind of tensor"


def _with_two_bins(trial: Trial) -> Trial | None:
    """Return the call of a histogram with two bins in each dimension of which the edges leave one; else None.

    The share of a single bin is 1 or not a number, whatever the values are.
    """
    if trial.call.info.layer_type not in ("histogram", "histogramdd") or not is_of_torch(trial.call.info.func):
        return None
    edges = [path.partition(".")[0] in ("1", "bins") for path, _ in trial.edges]
    single = [at for at, tensor in enumerate(trial.tensors) if edges[at] and tensor.shape == (len(("from", "to")),)]
    tensors = list(trial.tensors)
    for at in single:
        tensors[at] = torch.linspace(-2, 2, 3, dtype=tensors[at].dtype, device=tensors[at].device)
    return trial.with_tensors(tensors) if single else None


def _filled(tensor: torch.Tensor, like: torch.Tensor | None, number: int) -> torch.Tensor:
    """Return an empty tensor with elements: with the shape of `like`, or with one in each dimension that has none."""
    shape = [size or 1 for size in tensor.shape] if like is None else like.shape
    return tensor if tensor.numel() else torch.full(shape, number, dtype=tensor.dtype, device=tensor.device)


def _cause(trial: Trial, place: int, at: int) -> str:
    """Name why the values of the argument at `at` hide the one at `place`."""
    hiding, hidden = detached(trial.tensors[at]), trial.tensors[place]
    if not is_dense(hiding):
        return "hidden by another argument"
    if hiding.dtype is torch.bool or _has(hiding == float("-inf")):
        return "masked"
    if _has(hiding.isnan()):
        return "not a number"
    if _gives_truth_values(trial):
        return "comparison"
    if not _is_continuous(hidden):
        return "all equal"
    if not _is_continuous(hiding):
        return "overwritten"  # at every place that the index names
    return "hidden by another argument" if hiding.any() else "multiplied by zero"


def _with_longer_input(trial: Trial) -> Trial | None:
    """Return a trial of a CTC loss whose input is long enough for a blank before, between and after all targets."""
    at = {_CTC_ARGUMENTS.get(path, path): place for place, (path, _) in enumerate(trial.edges)}
    if not {"log_probs", "targets"} <= at.keys():
        return None
    log_probs, targets = detached(trial.tensors[at["log_probs"]]), trial.tensors[at["targets"]]
    length = max(len(log_probs), 2 * (targets.shape[-1] if targets.dim() else 1) + 1)
    tensors = list(trial.tensors)
    tensors[at["log_probs"]] = log_probs[torch.arange(length, device=log_probs.device) % len(log_probs)]
    if "input_lengths" in at:
        tensors[at["input_lengths"]] = torch.full_like(tensors[at["input_lengths"]], length)
    return trial.with_call(_with_lengths(trial.call, length), tensors)


def _with_lengths(call: Call, length: int) -> Call:
    """Return a call of a CTC loss whose input lengths, if they are numbers, are all `length`."""

    def filled(lengths: Any) -> Any:
        of_numbers = isinstance(lengths, tuple | list) and all(type(one) is int for one in lengths)
        return type(lengths)([length] * len(lengths)) if of_numbers else lengths

    args = [filled(arg) if at == 2 else arg for at, arg in enumerate(call.args)]  # noqa: PLR2004
    kwargs = {name: filled(arg) if name == "input_lengths" else arg for name, arg in call.kwargs.items()}
    return with_arguments(call, tuple(args), kwargs)


_CTC_ARGUMENTS = {"0": "log_probs", "1": "targets", "2": "input_lengths"}
_OF_NUMBERS = frozenset("argwhere bucketize copysign count_nonzero heaviside histogramdd nonzero searchsorted".split())


def _uses_numbers(call: Call) -> bool:
    """Return whether a function uses an integer as a number, never as an index."""
    return is_elementwise(call) or call.info.layer_type in _OF_NUMBERS


_OF_FEW_NUMBERS = frozenset(["hinge_embedding_loss", "histogramdd"])
"""Functions that do nothing with most numbers: those that are no class, or in no bin."""
_OF_TRUTH_VALUES = frozenset("and or xor bitwise_and bitwise_or mul".split())
"""Functions for which True and False are operands: `mask & False`."""


def _gives_truth_values(trial: Trial) -> bool:
    """Return whether all results are truth values; of `torch.uint8`, any and all give 0 or 1 in that dtype."""
    return trial.call.info.layer_type in ("any", "all") or all(one.dtype is torch.bool for one in trial.reference or ())


def _is_continuous(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _has(mask: torch.Tensor) -> bool:
    return bool(mask.any())


def _compared_with(trial: Trial, place: int) -> list[int | float]:
    """Return numbers that an argument may be compared with: those among the other arguments."""
    others = [tensor for at, tensor in enumerate(trial.tensors) if at != place and is_dense(tensor) and tensor.numel()]
    named = [number for number in (*trial.call.args, *trial.call.kwargs.values()) if type(number) in (int, float)]
    return named + [tensor.detach().flatten()[0].item() for tensor in others if not tensor.is_complex()]


# -- facts about the call -----------------------------------------------------------------------------------------


def _empty_input(trial: Trial, place: int) -> bool:
    return trial.tensors[place].numel() == 0


def _empty_output(trial: Trial, place: int) -> bool:
    return all(output.numel() == 0 for output in trial.reference or ())


def _nothing_selected(trial: Trial, place: int) -> bool:
    """The index of an assignment selects no element, so no value is assigned."""
    info = trial.call.info
    if info.layer_type != "setitem" or trial.edges[place][0] != "2" or not is_of_torch(info.func):
        return False
    target, index, _ = trial.arguments()[0]
    return bool(target[index].numel() == 0)


def _is_tangent(trial: Trial, place: int) -> bool:
    """The result carries the argument as its tangent, for forward-mode differentiation."""
    if (
        trial.call.info.layer_type != "make_dual"
        or trial.edges[place][0] != "1"
        or not is_of_torch(trial.call.info.func)
    ):
        return False
    tangents = (forward_ad.unpack_dual(output).tangent for output in trial.reference or ())  # type: ignore[no-untyped-call]
    given = fingerprint(trial.tensors[place])
    return any(tangent is not None and fingerprint(tangent) == given for tangent in tangents)


def _no_values(trial: Trial, place: int) -> bool:
    """The result is on the meta device, or a fake tensor, and has only a shape."""
    return all(output.is_meta or is_fake(output) for output in trial.reference or ())


def _no_fingerprint(trial: Trial, place: int) -> bool:
    """The result has no fingerprint, so its values cannot be compared."""
    return not any(map(fingerprint, trial.reference or ()))


def _is_overwritten(trial: Trial, place: int) -> bool:
    """The call wrote to the argument's memory, and the result is the same for other former values."""
    return trial.edges[place][1].slot in trial.call.writes


def reads_only_shape(call: Call, argument: str) -> bool:
    """Return whether a function reads only shape and dtype of an argument, by its documentation and with any values."""
    functions = SHAPE_OF_SECOND if argument in SECOND else _SHAPE_OF_FIRST if argument in _FIRST else ()
    return call.info.layer_type in functions and is_of_torch(call.info.func)


_FIRST, SECOND = ("0", "input", "self"), ("1", "other", "tensor", "the_template")


def _shape_only(trial: Trial, place: int) -> bool:
    argument, info = trial.edges[place][0], trial.call.info
    if reads_only_shape(trial.call, argument):
        return True
    if info.layer_type == "deform_conv2d" and argument == "3":
        return trial.call.args[-1] is False  # torchvision passes a tensor in place of the mask, and `use_mask`
    if not is_of_torch(info.func):
        return False
    if argument in SECOND:
        return info.layer_type == "copysign" and _is_unsigned(trial, place)
    if argument == "_random_samples":
        return _two_windows(trial, trial.tensors[place].shape[-1])
    return argument in _FIRST and (info.uninitialised or _settled_by_dtype(info.layer_type, trial, place))


def _two_windows(trial: Trial, dimensions: int) -> bool:
    """Fractional pooling (Graham 2014) fixes the first and last window; the samples move only those between."""
    return all(size <= 2 for output in trial.reference or () for size in output.shape[-dimensions:])  # noqa: PLR2004


_SHAPE_OF_FIRST = SHAPE_OF_FIRST | {"new_zeros_with_same_feature_meta"}
_SHAPE_OF_FIRST |= {"fill"}  # the function; for the method, see `_is_overwritten`


def _settled_by_dtype(name: str, trial: Trial, place: int) -> bool:
    tensor = trial.tensors[place]
    if name == "isreal":
        return not tensor.is_complex()
    if name == "signbit":
        return _is_unsigned(trial, place)
    return name in _OF_FLOATS and not _is_continuous(tensor)


def _is_unsigned(trial: Trial, place: int) -> bool:
    tensor = trial.tensors[place]
    return tensor.dtype is torch.bool or (not _is_continuous(tensor) and torch.iinfo(tensor.dtype).min == 0)


_OF_FLOATS = frozenset(["isnan", "isinf", "isfinite", "isneginf", "isposinf"])
_WRITERS_OF_PARTS = frozenset(["slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter"])


def _replaces_all(trial: Trial, place: int) -> bool:
    """The function replaces a part of its first argument by the second, and the part is the whole argument."""
    if trial.call.info.layer_type not in _WRITERS_OF_PARTS or trial.edges[place][0] not in ("0", "input"):
        return False
    part = trial.tensors[1] if len(trial.tensors) > 1 else None
    whole = part is not None and part.numel() == trial.tensors[place].numel()
    return whole and [fingerprint(trial.tensors[1])] == list(map(fingerprint, trial.reference or ()))


def _single_element(trial: Trial, place: int) -> bool:
    """A single box is always selected; or see `_normalised_alone`."""
    if trial.call.info.layer_type == "nms":
        return trial.tensors[place].shape[0] == 1
    return _normalised_alone(trial, place)


def _normalised_alone(trial: Trial, place: int) -> bool:
    """Normalisation over one element gives zero; the unit diagonal of a triangular matrix of size 1 is not read."""
    args, kwargs, shape = trial.call.args, trial.call.kwargs, trial.tensors[place].shape
    if not is_of_torch(trial.call.info.func) or trial.edges[place][0] not in ("0", "input"):
        return False
    match trial.call.info.layer_type:
        case "layer_norm":
            return bool(math.prod(args[1] if len(args) > 1 else kwargs["normalized_shape"]) == 1)
        case "group_norm":
            return bool(math.prod(shape[1:]) == (args[1] if len(args) > 1 else kwargs["num_groups"]))
        case "instance_norm":
            return math.prod(shape[2:]) == 1
        case "linalg_solve_triangular":
            return shape[-1] == 1 and bool(kwargs.get("unitriangular"))
    return False


_FACTS: dict[str, Callable[[Trial, int], bool]] = {
    "empty input": _empty_input,
    "empty output": _empty_output,
    "nothing selected": _nothing_selected,
    "tangent": _is_tangent,
    "shape only": _shape_only,
    "overwritten": lambda trial, place: _is_overwritten(trial, place) or _replaces_all(trial, place),
    "single element": _single_element,
    "no values": _no_values,
    "no fingerprint": _no_fingerprint,
}
