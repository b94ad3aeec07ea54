"""Named reasons for which a changed input may leave an output as it was."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from pytest_torchlens.capture import Call
from pytest_torchlens.capture.functions import SHAPE_OF_FIRST
from pytest_torchlens.validate.noise import is_dense


@dataclass(frozen=True)
class Probe:
    """An edge whose perturbation had no effect.

    Attributes
    ----------
    call
        The call.
    argument
        Path of the argument: ``"0"``, ``"weight"``.
    tensor
        The argument's real value.
    others
        The other tensor arguments by path.
    outputs
        The call's outputs.
    """

    call: Call
    argument: str
    tensor: torch.Tensor
    others: dict[str, torch.Tensor]
    outputs: tuple[torch.Tensor, ...]

    @property
    def name(self) -> str:
        """The function's name, the same for its in-place form."""
        return self.call.info.layer_type


def reason(probe: Probe) -> str | None:
    """Return why the output need not change; None where nothing explains it."""
    return next((name for name, holds in _REASONS.items() if holds(probe)), None)


def _empty_input(probe: Probe) -> bool:
    return probe.tensor.numel() == 0


def _empty_output(probe: Probe) -> bool:
    return all(output.numel() == 0 for output in probe.outputs)


_SHAPE_OF_SECOND = frozenset(
    ["expand_as", "view_as", "reshape_as", "type_as", "resize_as", "to", "max_pool2d_with_indices_backward"]
)


def _shape_only(probe: Probe) -> bool:
    if probe.name in SHAPE_OF_FIRST:
        return probe.argument in ("0", "input", "self")
    return probe.name in _SHAPE_OF_SECOND and probe.argument in ("1", "other")


_FILLS = frozenset(
    """copy fill zero uniform normal bernoulli exponential geometric cauchy log_normal random data set trunc_normal
    constant ones zeros kaiming_uniform kaiming_normal xavier_uniform xavier_normal""".split()
)


_MOMENTUM = 6  # its place among the arguments of F.batch_norm


def _overwritten(probe: Probe) -> bool:
    """The first argument of a function that replaces all of it, a full assignment, or an ``out=``."""
    if probe.argument == "out" or probe.argument.startswith("out."):
        return True
    if probe.name in ("batch_norm", "instance_norm") and probe.argument in ("1", "2", "running_mean", "running_var"):
        args, kwargs = probe.call.args, probe.call.kwargs
        return bool((args[_MOMENTUM] if len(args) > _MOMENTUM else kwargs.get("momentum")) == 1.0)
    if probe.argument not in ("0", "input", "self", "tensor"):
        return False
    if probe.name in _FILLS:
        return probe.call.info.writer is not None
    return probe.name in _PARTIAL_WRITES


_PARTIAL_WRITES = frozenset(
    """setitem masked_fill index_put index_copy index_fill slice_scatter select_scatter diagonal_scatter
    as_strided_scatter scatter masked_scatter put""".split()
)
"""They replace part of their first argument: all of it, where nothing of it is left in the result."""


_PRODUCTS = frozenset(
    """mul matmul mm bmm baddbmm addmm addmv mv dot conv1d conv2d conv3d linear einsum bilinear conv_transpose1d
    conv_transpose2d conv_transpose3d addcmul outer tensordot scaled_dot_product_attention div grid_sample""".split()
)


_ADDED = {"linear": "2", "conv1d": "2", "conv2d": "2", "conv3d": "2", "addmm": "0", "addmv": "0", "baddbmm": "0"}
"""Which argument of a product is added to it."""


def _multiplied_by_zero(probe: Probe) -> bool:
    """Another factor is zero throughout."""
    added = ("bias", "input", _ADDED.get(probe.name, ""))
    factors = (other for path, other in probe.others.items() if path not in added)
    return probe.name in _PRODUCTS and any(is_dense(factor) and _is_zero(factor) for factor in factors)


def _is_zero(tensor: torch.Tensor) -> bool:
    return tensor.numel() > 0 and not tensor.any()


_CHOICES = frozenset(["where", "masked_fill", "maximum", "minimum", "max", "min", "clamp", "masked_scatter"])


def _not_selected(probe: Probe) -> bool:
    """Another argument won at every place: the result is that argument."""
    return probe.name in _CHOICES and any(_is_all_of(other, probe.outputs[0]) for other in probe.others.values())


def _is_all_of(tensor: torch.Tensor, result: torch.Tensor) -> bool:
    try:
        return bool((tensor.expand_as(result) == result).all())
    except RuntimeError:  # shapes that do not go together
        return False


def _discrete_result(probe: Probe) -> bool:
    """Numbers went in; the comparison, rounding, ranking or index that came out is the same."""
    continuous = probe.tensor.is_floating_point() or probe.tensor.is_complex()
    return continuous and all(not (output.is_floating_point() or output.is_complex()) for output in probe.outputs)


def _single_element(probe: Probe) -> bool:
    """Softmax or normalisation over one element forgets its value; attention over one key forgets query and key."""
    args, kwargs, shape = probe.call.args, probe.call.kwargs, probe.tensor.shape
    if probe.name == "scaled_dot_product_attention":
        keys = probe.tensor if probe.argument in ("1", "key") else probe.others.get("1", probe.others.get("key"))
        return probe.argument in ("0", "1", "query", "key") and keys is not None and keys.shape[-2] == 1
    if probe.name in ("softmax", "log_softmax"):
        dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
        return type(dim) is int and -len(shape) <= dim < len(shape) and shape[dim] == 1
    if probe.name == "layer_norm":
        return bool(math.prod(args[1] if len(args) > 1 else kwargs["normalized_shape"]) == 1)
    if probe.name == "group_norm":
        return bool(math.prod(shape[1:]) == (args[1] if len(args) > 1 else kwargs["num_groups"]))
    return probe.name == "instance_norm" and math.prod(shape[2:]) == 1


def _constant_output(probe: Probe) -> bool:
    """Every output is one number repeated, as a saturated, masked or zeroed function gives."""
    return all(_is_uniform(output) for output in probe.outputs)


def _is_uniform(tensor: torch.Tensor) -> bool:
    return is_dense(tensor) and (tensor.numel() == 0 or bool((tensor == tensor.flatten()[0]).all()))


def _no_values(probe: Probe) -> bool:
    """The result is on the meta device and has a shape alone."""
    return all(output.is_meta for output in probe.outputs)


def _no_fingerprint(probe: Probe) -> bool:
    """The result has no values that could be compared."""
    return not any(value.digest for value in probe.call.outputs)


def _ignored(probe: Probe) -> bool:
    """Code whose inside was not seen need not use all that it is given."""
    return probe.call.info.opaque


def _undefined(probe: Probe) -> bool:
    """Nothing but not-a-number came out, and came out again."""
    return all(is_dense(output) and bool(output.isnan().all()) for output in probe.outputs)


_REASONS: dict[str, Callable[[Probe], bool]] = {
    "empty input": _empty_input,
    "empty output": _empty_output,
    "shape only": _shape_only,
    "overwritten": _overwritten,
    "multiplied by zero": _multiplied_by_zero,
    "not selected": _not_selected,
    "discrete result unchanged": _discrete_result,
    "single element": _single_element,
    "saturated": _constant_output,
    "undefined result": _undefined,
    "no values": _no_values,
    "no fingerprint": _no_fingerprint,
    "ignored by opaque code": _ignored,
}
