"""Makes other inputs for a model: other values of the same kind, and batches of other sizes."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from collections.abc import Container
from collections.abc import Iterator
from collections.abc import Mapping
from functools import cached_property
from functools import partial
from typing import Any
from typing import NamedTuple

import torch
from torch import nn

from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.leaves import walk
from pytest_torchlens.checks.draws import WAYS
from pytest_torchlens.checks.draws import beyond
from pytest_torchlens.checks.draws import other_values
from pytest_torchlens.checks.draws import scaled
from pytest_torchlens.checks.draws import small_number
from pytest_torchlens.checks.python_reads import ReadingCall
from pytest_torchlens.checks.subject import OTHER_VALUES
from pytest_torchlens.checks.subject import PLAIN
from pytest_torchlens.checks.subject import ModelRaisedError
from pytest_torchlens.checks.subject import NotApplicableError
from pytest_torchlens.checks.subject import Outputs
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.subject import WrongOptionError
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
    """Raise `WrongOptionError` if an option names an argument that forward does not have; an empty name is none."""
    parameters = parameters_of(model)
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values()) or not parameters
    if name and not takes_any and name not in parameters:
        raise WrongOptionError(f"{option}: forward has no argument {name!r}; {nearest(name, parameters)}")


def parameters_of(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of forward by name; none if they are not known."""
    try:
        return inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return {}


def other_inputs(subject: Subject, seed: int = 1) -> Arguments:
    """Return the arguments with other values in place of all that vary; of all, if none does."""
    made = with_inputs(subject, lambda tensor: other_values(tensor, seed, subject.draw))
    return with_inputs(subject, small_number) if are_equal(made, subject) else made


def outputs_on_other_values(subject: Subject) -> Outputs:
    """Return the outputs of a plain pass on `other_inputs`, which checks share."""
    way = "on other values of its inputs"
    return subject.once((*OTHER_VALUES, subject.draw), lambda: subject.call(*other_inputs(subject), way=way))


def draws_of(subject: Subject) -> Iterator[int]:
    """Yield the ways of drawing that give a subject inputs of their own; `Subject.draw` is set to each in turn.

    Real numbers are drawn far out for a model alone whose outputs are discrete, classes, which little does not change.
    """
    drawn: list[Arguments] = []
    is_real = any(tensor.is_floating_point() or tensor.is_complex() for tensor in subject.outputs.values())
    for draw, way in enumerate(WAYS):
        subject.draw = draw
        made = other_inputs(subject)
        if not (way.is_far and is_real) and not any(are_equal(made, other) for other in drawn):
            drawn.append(made)
            yield draw


def are_equal(one: Subject | Arguments, other: Subject | Arguments) -> bool:
    """Return whether two inputs hold the same values."""
    return all(map(_hold_the_same, _leaves(one), _leaves(other)))


def _hold_the_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.layout is not torch.strided:  # sparse ones cannot be compared by torch.equal
        return fingerprint(one) == fingerprint(other)
    return torch.equal(one, other)


def _leaves(given: Subject | Arguments) -> list[torch.Tensor]:
    return [tensor for _, tensor in [*walk(given.args), *walk(given.kwargs)]]


class _Kind(NamedTuple):
    """What other rows are: whether they go beyond the range of the first, and are those of other examples each time."""

    goes_beyond: bool
    exchanged: bool


_KINDS = (_Kind(True, True), _Kind(False, True), _Kind(True, False), _Kind(False, False))


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
        If no input has rows, or the inputs are lists of tensors, one an example.
    WrongOptionError
        If no input has that dimension, and it is not the usual one.
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
        if not tensors and dim:
            raise WrongOptionError(f"dim: no input has a dimension {dim}")
        if not tensors:
            raise NotApplicableError(f"no input has a dimension {dim}, so it has no rows")
        self.count = tensors[0].size(dim)
        """How many examples the inputs hold."""
        if not self.count:
            raise NotApplicableError(f"the batch is empty: dimension {dim} of the inputs has no examples")
        self._batched = {id(tensor): tensor for tensor in tensors if tensor.size(dim) == self.count}

    def batch(self, size: int, seed: int = 1, *, first_seed: int | None = None) -> Arguments:
        """Return a batch: the first example of the inputs, then others, drawn with `seed`.

        With `first_seed` the first one is drawn, too.
        """
        ends = {size - 1: seed, 0: first_seed}
        return self._changed(lambda tensor: torch.cat([*self._rows(tensor, size, seed, ends)], self.dim))

    def others(self, size: int, row: int = 0) -> Arguments:
        """Return the batch with other examples in place of all but the first, or all but the last.

        Their real numbers go beyond the range of the first one's, where the model takes that.
        """
        return self._others(size, row, self._on_others(size)[1])

    def _others(self, size: int, row: int, kind: _Kind) -> Arguments:
        ends = {0: _FIRST_SEED, size - 1: 1} if row else {0: None}
        kept = size - 1 if row else 0

        def change(tensor: torch.Tensor) -> torch.Tensor:
            rows = [*self._rows(tensor, size, 2, ends, exchanged=kind.exchanged)]
            made = (one if at == kept or not kind.goes_beyond else beyond(tensor, one) for at, one in enumerate(rows))
            return torch.cat([*made], self.dim)

        return self._changed(change)

    def last_alone(self, size: int) -> Subject:
        """Return the subject with the last example of a batch alone as its inputs."""
        return self._subject.once(("last alone", self.dim, size, self._subject.draw), lambda: self._last_alone(size))

    def _last_alone(self, size: int) -> Subject:
        given = self._changed(lambda tensor: [*self._rows(tensor, size, 1, {size - 1: 1})][-1].clone())
        other = self._subject.with_inputs(*given)
        if are_equal(given, other_inputs(self._subject)):
            other.once(PLAIN, lambda: outputs_on_other_values(self._subject))
        return other

    def is_read_by_python(self, size: int) -> bool:
        """Return whether Python read values when the model ran a batch."""
        return self._in_batch(size)[1]

    def outputs(self, size: int) -> Outputs:
        """Return the outputs of a batch, which checks share.

        Raises
        ------
        NotApplicableError
            If the model does not take such a batch.
        """
        return self._in_batch(size)[0]

    def _in_batch(self, size: int) -> tuple[Outputs, bool]:
        try:
            return self._subject.once(("batch", self.dim, size, self._subject.draw), lambda: self._run(size))
        except ModelRaisedError as error:
            hint = "'dim' among its options names another dimension of the batch"
            raise RefusedError(f"{error}; {hint}") from error

    def _run(self, size: int) -> tuple[Outputs, bool]:
        """Return the outputs of a batch, and whether Python read values.

        The values are drawn for the first example alone if the model refuses others.
        """
        way = f"in a batch of {size}"
        function = ReadingCall(self._subject.model)
        try:
            with self._subject.runs(*self.batch(size), way=way, function=function) as call:
                return call(), function.has_read
        except ModelRaisedError:
            if not self._subject.wholes:
                raise
            self._subject.wholes.clear()
            return self._run(size)

    def other_outputs(self, size: int) -> Outputs:
        """Return the outputs of the batch with other examples after the first, as in `others`."""
        return self._on_others(size)[0]

    def _on_others(self, size: int) -> tuple[Outputs, _Kind]:
        return self._subject.once(("others", self.dim, size, self._subject.draw), lambda: self._run_others(size))

    def _run_others(self, size: int) -> tuple[Outputs, _Kind]:
        """Return the outputs on the furthest others that the model takes, and what kind these are."""
        call = partial(self._subject.call, way=f"in a batch of {size} with other rows")
        made: list[Arguments] = []
        for kind in _KINDS:
            given = self._others(size, 0, kind)
            if any(are_equal(given, former) for former in made):
                continue
            made.append(given)
            with contextlib.suppress(ModelRaisedError):
                outputs = call(*given)
                if not kind.goes_beyond or are_finite(outputs) or not are_finite(self.outputs(size)):
                    return outputs, kind
        return call(*made[-1]), _KINDS[-1]

    def repeated(self, size: int) -> Arguments:
        """Return a batch of the first example, so many times."""
        return self._changed(lambda tensor: torch.cat([self._row(tensor, 0).detach()] * size, self.dim))

    def last_repeated(self, size: int) -> Arguments:
        """Return a batch of the last example of `batch`, so many times."""
        last = {size - 1: 1}
        return self._changed(lambda tensor: torch.cat([[*self._rows(tensor, size, 1, last)][-1]] * size, self.dim))

    def with_rows_of(self, others: Examples, size: int, numbers: Container[int]) -> Arguments:
        """Return the batch, with some rows of a batch of other examples of this kind in the place of its own."""
        made = zip(_leaves(self._subject), _leaves(self.batch(size)), _leaves(others.batch(size)), strict=True)
        pairs = {id(tensor): (own, other) for tensor, own, other in made}

        def change(tensor: torch.Tensor) -> torch.Tensor:
            rows = (pairs[id(tensor)][at in numbers].narrow(self.dim, at, 1) for at in range(size))
            return torch.cat([*rows], self.dim)

        return self._changed(change)

    def enlarged(self, size: int, factor: float) -> Arguments:
        """Return the batch with real numbers so many times as large in all examples but the first."""

        def change(tensor: torch.Tensor) -> torch.Tensor:
            first, *others = self._rows(tensor, size, 1, {0: None})
            return torch.cat([first, *(scaled(tensor, one, factor) for one in others)], self.dim)

        return self._changed(change)

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
        self, tensor: torch.Tensor, size: int, seed: int, ends: Mapping[int, int | None], *, exchanged: bool = True
    ) -> Iterator[torch.Tensor]:
        for number in range(size):
            drawn_with = ends.get(number, seed + _MANY * number)
            if drawn_with is None:
                yield self._row(tensor, number % self.count)
            else:
                yield self._drawn(tensor, number + (exchanged and drawn_with % _MANY != 1), drawn_with)

    def _drawn(self, tensor: torch.Tensor, number: int, seed: int) -> torch.Tensor:
        """Return another row, drawn for one of the batch; small numbers, or itself, if that gives no other."""
        made = self._drawn_of_kind(tensor, number, seed)
        return small_number(made) if self._is_constant and seed % 2 else made

    def _drawn_of_kind(self, tensor: torch.Tensor, number: int, seed: int) -> torch.Tensor:
        """Return values drawn for an example of the batch that this one is taken from, which checks share."""
        whole, draw = self._subject.wholes.get(id(tensor), tensor), self._subject.draw
        row = whole.narrow(self.dim, number % whole.size(self.dim), 1)
        return self._subject.once(
            ("drawn", id(whole), row.storage_offset(), self.dim, seed, draw), lambda: other_values(row, seed, draw)
        )

    @cached_property
    def _is_constant(self) -> bool:
        rows = ((tensor, self._row(tensor, 0)) for tensor in self._batched.values())
        return all(torch.equal(row, self._drawn_of_kind(tensor, 1, 1)) for tensor, row in rows)

    def _row(self, tensor: torch.Tensor, number: int) -> torch.Tensor:
        return tensor.narrow(self.dim, number, 1)


_MANY = 1000
_FIRST_SEED = 3


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
    alone = subject.once(("alone", dim), lambda: _with_wholes(subject, examples.alone()))
    alone.deadline = subject.deadline
    try:
        _ = alone.outputs
    except ModelRaisedError as error:
        raise RefusedError(f"for one example alone {error}") from error
    return alone


def _with_wholes(subject: Subject, given: Arguments) -> Subject:
    alone = subject.with_inputs(*given)
    alone.wholes = {id(new): old for old, new in zip(_leaves(subject), _leaves(alone), strict=True)}
    return alone


def are_finite(outputs: Outputs) -> bool:
    """Return whether no output is infinite or NaN."""
    return all(bool(tensor.isfinite().all()) for tensor in outputs.values())


def _arguments(subject: Subject) -> list[Any]:
    return [*subject.args, *subject.kwargs.values()]
