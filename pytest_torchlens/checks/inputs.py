"""Makes other inputs for a model: other values of the same kind, and batches of other sizes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import torch
from torch import nn

from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.checks.subject import OTHER_VALUES
from pytest_torchlens.checks.subject import PLAIN
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Outputs
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.records import nearest


class Arguments(NamedTuple):
    """Positional and keyword arguments of a model."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def inputs_of(subject: Subject) -> dict[str, torch.Tensor]:
    """Return the tensors in the inputs by their path, each once."""
    by_id = {id(tensor): (path, tensor) for path, tensor in [*walk(subject.kwargs), *walk(subject.args)]}
    return dict(by_id.values())


def with_inputs(subject: Subject, change: Callable[[torch.Tensor], torch.Tensor]) -> Arguments:
    """Return the arguments of a subject with ``change(tensor)`` in place of each tensor.

    Raises
    ------
    NotApplicableError
        If a tensor is inside an object that cannot be made anew.
    """
    made: dict[int, torch.Tensor] = {}

    def other(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in made:
            made[id(leaf)] = change(leaf).detach().requires_grad_(leaf.requires_grad)
        return made[id(leaf)]

    args, kwargs = substitute(subject.args, other), substitute(subject.kwargs, other)
    if hidden := [path for path, tensor in inputs_of(subject).items() if id(tensor) not in made]:
        raise NotApplicableError(f"input {hidden[0]!r} is inside an object, where it cannot be changed")
    return Arguments(args, kwargs)


def arguments_by_name(subject: Subject) -> dict[str, Any]:
    """Return all arguments of a subject by their names in forward.

    Raises
    ------
    NotApplicableError
        If forward takes some by position only, or does not say.
    """
    try:
        bound = inspect.signature(subject.model.forward).bind(*subject.args, **subject.kwargs)
    except (TypeError, ValueError) as error:
        raise NotApplicableError(f"the names of forward's arguments are not known: {error}") from error
    named: dict[str, Any] = {}
    for name, parameter in bound.signature.parameters.items():
        if name not in bound.arguments:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise NotApplicableError(f"argument {name!r} of forward takes no name, so the sequence is not known")
        named |= bound.arguments[name] if parameter.kind is parameter.VAR_KEYWORD else {name: bound.arguments[name]}
    return named


def takes(model: nn.Module, name: str) -> bool:
    """Return whether forward has an argument of that name."""
    return name in parameters_of(model)


def check_argument(model: nn.Module, option: str, name: str) -> None:
    """Raise `NotApplicableError` if an option names an argument that forward does not have; an empty name is none."""
    parameters = parameters_of(model)
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values()) or not parameters
    if name and not takes_any and name not in parameters:
        raise NotApplicableError(f"{option}: forward has no argument {name!r}; {nearest(name, parameters)}")


def parameters_of(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of forward by name; none if they are not known."""
    try:
        return inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return {}


def other_inputs(subject: Subject, seed: int = 1) -> Arguments:
    """Return the arguments with other values in place of all that vary; of all, if none does."""
    made = with_inputs(subject, lambda tensor: other_values(tensor, seed))
    if any(not torch.equal(old, new) for old, new in zip(_leaves(subject), _leaves(made), strict=True)):
        return made
    return with_inputs(subject, lambda tensor: 1 - tensor.clamp(0, 1) if _is_whole(tensor) else tensor)


def outputs_on_other_values(subject: Subject) -> Outputs:
    """Return the outputs of a plain pass on `other_inputs`, which checks share."""
    return subject.once(OTHER_VALUES, lambda: subject.call(*other_inputs(subject), way="on other values of its inputs"))


def _leaves(given: Subject | Arguments) -> list[torch.Tensor]:
    return [tensor for _, tensor in [*walk(given.args), *walk(given.kwargs)]]


def _is_whole(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)


def other_values(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """Return other values in the range of a tensor's own: of whole numbers another order.

    Truth values, whole numbers that are all the same, and those that count up (positions) stay as they are; so do
    tensors that hold infinities, which are masks.
    """
    tensor = tensor.detach()
    generator = torch.Generator().manual_seed(seed)
    if tensor.is_floating_point():
        flat = tensor.reshape(-1)
        return _mixed_with_noise(flat, _shuffled(flat, 0, generator), generator).reshape(tensor.shape)
    if tensor.dtype is torch.bool or not tensor.dim() or _counts_up(tensor):
        return tensor
    return _shuffled(tensor, -1 if tensor.dim() <= _TABLE else -2, generator)


_TABLE = 2
"""Dimensions of an example's whole numbers in a row; with more, the last one is a tuple (a box), which stays whole."""


def _shuffled(tensor: torch.Tensor, dim: int, generator: torch.Generator) -> torch.Tensor:
    order = torch.randperm(tensor.size(dim), generator=generator).to(tensor.device)
    return tensor.index_select(dim, order)


def _mixed_with_noise(flat: torch.Tensor, mixed: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if not flat.numel() or not bool(flat.isfinite().all()):
        return flat
    low, high = float(flat.min()), float(flat.max())
    span = high - low or max(abs(low), 1.0) / 2
    noise = torch.rand(flat.shape, generator=generator, dtype=torch.float64).to(flat.device) * span + low
    return ((mixed.double() + noise) / 2).to(flat.dtype)


def _counts_up(tensor: torch.Tensor) -> bool:
    steps = tensor.diff() if tensor.dim() else tensor
    return bool(steps.numel()) and bool((steps == 1).all())


class Examples:
    """The examples in a model's inputs: what its tensors hold along one dimension.

    Parameters
    ----------
    subject
        The model and its inputs.
    dim
        The dimension of the batch.

    Raises
    ------
    NotApplicableError
        If no input has that dimension, or the inputs are lists of tensors, one an example.
    """

    def __init__(self, subject: Subject, dim: int = 0) -> None:
        self._subject = subject
        self.dim = dim
        found = inputs_of(subject)
        if any(tensor.layout is not torch.strided or tensor.is_nested for tensor in found.values()):
            raise NotApplicableError("an input is sparse or nested, so its rows cannot be told apart")
        if any(isinstance(arg, list) and any(isinstance(x, torch.Tensor) for x in arg) for arg in _arguments(subject)):
            raise NotApplicableError("the inputs are lists of tensors, in which no batch is known")
        tensors = [tensor for tensor in found.values() if tensor.dim() > dim]
        if not tensors:
            raise NotApplicableError(f"no input has a dimension {dim}, so it has no rows")
        self.count = tensors[0].size(dim)
        """How many examples the inputs hold."""
        self._batched = {id(tensor) for tensor in tensors if tensor.size(dim) == self.count}

    def batch(
        self, size: int, seed: int = 1, *, first_seed: int | None = None, last_seed: int | None = None
    ) -> Arguments:
        """Return a batch: the first example of the inputs, then others, drawn with `seed`.

        With `first_seed` the first one is drawn, too; `last_seed` draws the last one otherwise.
        """
        ends = {size - 1: seed if last_seed is None else last_seed, 0: first_seed}
        return self._changed(lambda tensor: torch.cat([*self._rows(tensor, size, seed, ends)], self.dim))

    def last_alone(self, size: int) -> Subject:
        """Return the subject with the last example of a batch alone as its inputs."""
        return self._subject.once(("last alone", self.dim, size), lambda: self._last_alone(size))

    def _last_alone(self, size: int) -> Subject:
        given = self._changed(lambda tensor: [*self._rows(tensor, size, 1, {size - 1: 1})][-1].clone())
        other, shared = self._subject.with_inputs(*given), other_inputs(self._subject)
        if all(torch.equal(one, two) for one, two in zip(_leaves(given), _leaves(shared), strict=True)):
            other.once(PLAIN, lambda: outputs_on_other_values(self._subject))
        return other

    def outputs(self, size: int) -> Outputs:
        """Return the outputs of a batch, which checks share.

        Raises
        ------
        NotApplicableError
            If the model does not take such a batch.
        """
        try:
            return self._run(size, 1, f"in a batch of {size}")
        except ModelRaisedError as error:
            hint = "'dim' among its options names another dimension of the batch"
            raise RefusedError(f"{error}; {hint}") from error

    def other_outputs(self, size: int) -> Outputs:
        """Return the outputs of the batch with other examples after the first."""
        return self._run(size, 2, f"in a batch of {size} with other rows")

    def _run(self, size: int, seed: int, way: str) -> Outputs:
        subject = self._subject
        return subject.once(("batch", self.dim, size, seed), lambda: subject.call(*self.batch(size, seed), way=way))

    def repeated(self, size: int) -> Arguments:
        """Return a batch of the first example, so many times."""
        return self._changed(lambda tensor: torch.cat([self._row(tensor, 0).detach()] * size, self.dim))

    def expanded(self, size: int, change: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor) -> Arguments:
        """Return the same batch with all examples one in memory, made by `change` of the first."""

        def expanded(tensor: torch.Tensor) -> torch.Tensor:
            sizes = [size if dim == self.dim else -1 for dim in range(tensor.dim())]
            return change(self._row(tensor, 0).detach()).expand(sizes)

        return self._changed(expanded)

    def batched(self, given: Arguments) -> list[torch.Tensor]:
        """Return the tensors of a batch that hold one row an example."""
        found = [*walk(self._subject.args), *walk(self._subject.kwargs)]
        made = [*walk(given.args), *walk(given.kwargs)]
        return [new for (_, old), (_, new) in zip(found, made, strict=True) if id(old) in self._batched]

    def alone(self, number: int = 0) -> Arguments:
        """Return one example alone: the first one by default."""
        return self._changed(lambda tensor: self._row(tensor, number).clone())

    def _changed(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Arguments:
        return with_inputs(self._subject, lambda tensor: change(tensor) if id(tensor) in self._batched else tensor)

    def _rows(
        self, tensor: torch.Tensor, size: int, seed: int, ends: Mapping[int, int | None]
    ) -> Iterator[torch.Tensor]:
        for number in range(size):
            row, drawn_with = self._row(tensor, number % self.count), ends.get(number, seed + _MANY * number)
            yield row if drawn_with is None else other_values(row, drawn_with)

    def _row(self, tensor: torch.Tensor, number: int) -> torch.Tensor:
        return tensor.narrow(self.dim, number, 1)


_MANY = 1000


class RefusedError(NotApplicableError):
    """The model does not take a batch of that size."""


def first_example(subject: Subject, dim: int) -> Subject:
    """Return the subject with the first example as its inputs: itself, if it has no other.

    Raises
    ------
    RefusedError
        If the model does not take one example alone.
    """
    examples = Examples(subject, dim)
    if examples.count == 1:
        return subject
    alone = subject.once(("alone", dim), lambda: subject.with_inputs(*examples.alone()))
    alone.deadline = subject.deadline
    try:
        _ = alone.outputs
    except ModelRaisedError as error:
        raise RefusedError(f"for one example alone {error}") from error
    return alone


def _arguments(subject: Subject) -> list[Any]:
    return [*subject.args, *subject.kwargs.values()]
