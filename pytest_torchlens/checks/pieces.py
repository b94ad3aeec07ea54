"""Runs pieces of a recorded pass another way, and halves them, down to the smallest piece that differs."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import torch
from torch import fx
from torch.func import functional_call

from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.checks.exact import EXACT
from pytest_torchlens.checks.exact import is_discrete
from pytest_torchlens.checks.output_gradients import gradients_by
from pytest_torchlens.checks.output_gradients import moved
from pytest_torchlens.checks.output_gradients import weighted_sum
from pytest_torchlens.checks.results import values_text
from pytest_torchlens.checks.subject import OutOfTimeError
from pytest_torchlens.checks.subject import Outputs
from pytest_torchlens.checks.subject import Subject
from pytest_torchlens.checks.subject import outputs_of
from pytest_torchlens.checks.tolerance import is_plainly_explained
from pytest_torchlens.checks.tolerance import judge
from pytest_torchlens.history import ModelHistory

Way = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Returns a function that runs a piece another way."""


class Difference(NamedTuple):
    """What differs in a piece that runs another way.

    Attributes
    ----------
    name
        The path of the output, or the name of the parameter whose gradient it is; empty if none was computed.
    values
        Both values where they differ most.
    is_discrete
        Whether only whole numbers and truth values differ.
    """

    name: str
    values: str
    is_discrete: bool = False


class Smallest(NamedTuple):
    """The smallest piece that differs; `unseen` says why there may be a smaller one."""

    numbers: Sequence[int]
    difference: Difference | None
    unseen: tuple[str, ...] = ()

    @property
    def is_tie(self) -> bool:
        """Whether a decision differs, of operations that agree as long as nothing is decided."""
        return self.difference is not None and self.difference.is_discrete and len(self.numbers) > 1


def smallest(numbers: Sequence[int], differs: Callable[[Sequence[int]], Difference | None]) -> Smallest:
    """Return the smallest run of operations that differs, all of which are taken to differ.

    A piece loses half of its operations at one end or the other as long as it still differs then, then fewer and fewer;
    in the end it differs no more without its first or its last operation.
    """
    kept, difference = numbers, None
    step = len(kept) // 2
    try:
        while step:
            for shorter in (kept[:-step], kept[step:]):
                if shorter and (found := differs(shorter)) is not None:
                    kept, difference = shorter, found
                    break
            else:
                step //= 2
            step = min(step, len(kept) // 2)
        if difference is None:
            difference = differs(kept)
    except OutOfTimeError as error:
        return Smallest(kept, difference, (f"smaller pieces: {error}",))
    return Smallest(kept, difference)


class Pieces:
    """Pieces of a recorded pass, each run alone on what it read in that pass.

    Parameters
    ----------
    subject
        The model, and the limit of time.
    history
        The pass.
    way
        How to run a piece another way.
    gradients
        Whether to compare gradients instead of outputs.
    """

    def __init__(self, subject: Subject, history: ModelHistory, way: Way, *, gradients: bool = False) -> None:
        self._subject = subject
        self._history = history
        self._way = way
        self._gradients = gradients

    def differs(self, numbers: Sequence[int]) -> Difference | None:
        """Return what differs when the calls of these numbers run alone; None if nothing, or if they cannot."""
        self._subject.check_time()
        try:
            piece = Piece(self._history, numbers, gradients=self._gradients)
            plain = piece.run(piece.module)
        except Exception:  # noqa: BLE001 - it cannot run alone, so it shows nothing
            return None
        try:
            other = piece.run(self._way(piece.module))
        except OutOfTimeError:
            raise
        except Exception as error:  # noqa: BLE001 - a compiler may raise anything
            return Difference("", f"it raises {type(error).__name__}")
        return next(unexplained(other, plain, piece.exact, piece.moved if self._gradients else None), None)


def unexplained(
    other: Outputs, plain: Outputs, exact: Callable[[], Outputs], moved: Callable[[int], Outputs] | None = None
) -> Iterator[Difference]:
    """Yield the values that differ by more than rounding explains.

    Gradients jump where rounding moves a value over an edge, so the plain run alone says too little of their errors:
    `moved` gives those of the plain run with numbers that are moved by one unit in the last place.
    """
    for name, reference in plain.items():
        value = other.get(name)
        if value is None:
            yield Difference(name, "it is missing")
        elif not is_plainly_explained(value, reference) and not any(
            judge(value, run[name], exact()[name]).within for run in _runs(plain, moved) if name in run
        ):
            yield Difference(name, values_text(reference, value), is_discrete(reference))


def _runs(plain: Outputs, moved: Callable[[int], Outputs] | None) -> Iterator[Outputs]:
    yield plain
    if moved is not None:
        yield from map(moved, range(MOVES))


MOVES = 4
"""How many moved runs show how far rounding takes gradients."""


_STEP = 1e-6
"""How far a parameter moves, as a part of its norm, where that is not small."""


class Piece:
    """Some calls of a pass as a module.

    Raises
    ------
    NotExportableError
        If a call cannot be exported.
    """

    def __init__(self, history: ModelHistory, numbers: Sequence[int] | None = None, *, gradients: bool = False) -> None:
        if numbers is None:
            subgraph = history.subgraph()
        else:
            subgraph = history.subgraph(operations=[history.label(number) for number in numbers])
        self.module = subgraph.to_fx()
        self._gradients = gradients
        labels = [node.meta["label"] for node in self.module.graph.nodes if node.op == "placeholder"]
        values = history.subgraph(end=labels).run() if labels else {}
        self._inputs = [values[label].detach() for label in labels]
        self._exact: Outputs | None = None

    def run(self, function: Callable[..., Any]) -> Outputs:
        """Return the outputs of a function on the inputs of the piece, or their gradients."""
        return self._run(function, [tensor.clone() for tensor in self._inputs], dict(self.module.named_parameters()))

    def moved(self, seed: int) -> Outputs:
        """Return the gradients where inputs and parameters are moved by one unit in the last place."""
        parameters = moved(dict(self.module.named_parameters()), seed)
        inputs = moved({str(number): tensor for number, tensor in enumerate(self._inputs)}, seed)
        return self._run(lambda *args: functional_call(self.module, parameters, args), [*inputs.values()], parameters)

    def exact(self) -> Outputs:
        """Return the outputs in float64."""
        if self._exact is None:
            interpreter = _Float64(self.module)
            inputs = [_to_float64(tensor.clone()) for tensor in self._inputs]
            self._exact = self._run(interpreter.run, inputs, interpreter.parameters)
        return self._exact

    def slope(self, name: str, direction: torch.Tensor) -> float:
        """Return how the weighted sum of all outputs changes in float64 as a parameter moves: by differences."""
        interpreter = _Float64(self.module)
        parameter, inputs = interpreter.parameters[name], [_to_float64(tensor.clone()) for tensor in self._inputs]
        step = _STEP * max(1.0, float(parameter.norm())) / float(direction.norm())
        sums = []
        for sign in (1, -1):
            with torch.no_grad():
                former = parameter.clone()
                parameter.add_(direction, alpha=sign * step)
            with torch.enable_grad():  # outputs without gradients have no weight
                sums.append(weighted_sum(interpreter.run(*inputs)))
            with torch.no_grad():
                parameter.copy_(former)
        return (sums[0] - sums[1]) / (2 * step)

    def _run(
        self, function: Callable[..., Any], inputs: list[torch.Tensor], parameters: dict[str, torch.Tensor]
    ) -> Outputs:
        if not self._gradients:
            return outputs_of(function(*inputs))
        given = {f"input {number}": tensor.requires_grad_() for number, tensor in enumerate(inputs) if _is_real(tensor)}
        trained = {name: tensor for name, tensor in parameters.items() if tensor.requires_grad}
        return outputs_of(gradients_by(function, given | trained)(*inputs))


def _is_real(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


class _Float64(fx.Interpreter):
    """Runs a module in float64; operations without float64 run in the dtypes that they are given."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.parameters = {
            name: _to_float64(tensor.detach()).requires_grad_(tensor.requires_grad)
            for name, tensor in module.named_parameters()
        }
        self._constants: dict[str, Any] = {}

    def fetch_attr(self, target: str) -> Any:
        """Return a parameter or constant in float64, always the same tensor."""
        if target in self.parameters:
            return self.parameters[target]
        if target not in self._constants:
            found = super().fetch_attr(target)
            self._constants[target] = _to_float64(found.detach().clone()) if isinstance(found, torch.Tensor) else found
        return self._constants[target]

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call a function in float64."""
        return _in_float64(super().call_function, target, args, kwargs)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call a method in float64."""
        if target in _CASTS:
            return _to_float64(args[0])
        return _in_float64(super().call_method, target, args, kwargs)


_CASTS = frozenset(["float", "half", "bfloat16", "double"])


def _in_float64(call: Callable[..., Any], target: Any, args: Any, kwargs: Any) -> Any:
    """Return what a call gives if it makes all that it makes in float64."""
    return substitute(call(target, substitute(args, _dtype), substitute(kwargs, _dtype)), _to_float64)


def _dtype(leaf: Any) -> Any:
    return EXACT.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf


def _to_float64(leaf: Any) -> Any:
    """Return a tensor in float64, with its gradient's graph."""
    if isinstance(leaf, torch.Tensor) and leaf.dtype in EXACT and leaf.dtype is not EXACT[leaf.dtype]:
        return leaf.to(EXACT[leaf.dtype])
    return leaf
