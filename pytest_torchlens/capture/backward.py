"""A backward pass that forward runs: one call, which reads the results and leaves, and makes or adds to gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
from typing import TypeGuard

import torch
from torch.autograd.graph import GradientEdge

from pytest_torchlens.capture.code_in_gradient import GradientWatch
from pytest_torchlens.capture.looks import is_a
from pytest_torchlens.capture.values import version_of

Tensor = torch.Tensor


def backward_arguments(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `torch.autograd.backward` by name; those of many tensors as tuples, to read them twice.

    Raises the function's own error for arguments that it does not take.
    """
    try:
        named = inspect.signature(func).bind(*args, **kwargs).arguments
    except TypeError:
        func(*args, **kwargs)
        raise
    return {name: _read_once(value) if name in _OF_TENSORS else value for name, value in named.items()}


_OF_TENSORS = frozenset(["tensors", "grad_tensors", "grad_variables", "inputs"])


def _read_once(value: Any) -> Any:
    single = is_a(value, (Tensor, Mapping, GradientEdge)) or hasattr(value, "__torch_function__")
    return value if single or not isinstance(value, Iterable) else tuple(value)


def has_results(arguments: dict[str, Any]) -> bool:
    """Return whether a backward pass begins at results; others raise PyTorch's own errors."""
    results, inputs = _listed(arguments.get("tensors")), _listed(arguments.get("inputs"))
    return bool(results) and all(is_a(one, (Tensor, GradientEdge)) for one in (*results, *inputs))


def _listed(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    if is_a(value, Mapping):
        return tuple(value.values())
    return value if type(value) is tuple else (value,)


def leaves_behind(results: Iterable[Tensor | GradientEdge]) -> list[Tensor]:
    """Return the leaves of the autograd graph of some tensors or edges, which get gradients in a backward pass."""
    edges = [one for one in results if isinstance(one, GradientEdge)]
    others = [one for one in results if not isinstance(one, GradientEdge)]
    leaves = [tensor for tensor in others if tensor.requires_grad and tensor.grad_fn is None]
    waiting = [edge.node for edge in edges] + [tensor.grad_fn for tensor in others if tensor.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node: Any = waiting.pop()
        # A custom function may have an attribute of this name, and its class ends in "Backward"
        if type(node).__name__ == "AccumulateGrad" and is_a(node.variable, Tensor):
            leaves.append(node.variable)
        inside = {parent for parent, _ in node.next_functions if parent is not None} - seen
        seen |= inside
        waiting += inside
    return list({id(leaf): leaf for leaf in leaves}.values())


class BackwardPass:
    """One call of `torch.autograd.backward`.

    Parameters
    ----------
    func, arguments
        The function, and the arguments that it has, by name.
    shown
        The arguments to record: with tensors in place of edges of the graph.
    others
        Tensors that may get a gradient though the graph does not show it: parameters used in a checkpoint, and results
        that retain theirs.
    """

    def __init__(
        self, func: Callable[..., Any], arguments: dict[str, Any], shown: dict[str, Any], others: Iterable[Tensor]
    ) -> None:
        self._func, self._arguments = func, arguments
        self._results = tuple(one for one in _listed(shown["tensors"]) if not is_a(one, GradientEdge))
        inputs = [one for one in _listed(shown.get("inputs")) if is_a(one, Tensor)]
        reached = [*inputs, *leaves_behind(_listed(arguments["tensors"])), *others]
        self._leaves = list({id(tensor): tensor for tensor in reached}.values())
        self._former = [gradient_before(leaf) for leaf in self._leaves]
        self._changed: list[int] = []

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What the recorded call reads: results, their gradients, leaves, the leaves' gradients so far, and a flag."""
        weights = self._arguments.get("grad_tensors")
        if weights is None:
            weights = self._arguments.get("grad_variables")
        return self._results, weights, self._leaves, self._former, bool(self._arguments.get("create_graph"))

    def run(self, *_: Any) -> list[Tensor]:
        """Run the backward pass; return the gradients that are new or have changed."""
        before = [None if former is None else version_of(former) for former in self._former]
        self._func(**self._arguments)
        now = [gradient_before(leaf) for leaf in self._leaves]
        self._changed = [
            place
            for place, (gradient, former, version) in enumerate(zip(now, self._former, before, strict=True))
            if gradient is not None and (gradient is not former or version_of(gradient) != version)
        ]
        return list(filter(_exists, (now[place] for place in self._changed)))

    def changed_arguments(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the recorded arguments without the leaves that the pass did not reach."""
        results, weights, leaves, former, create_graph = arguments
        changed = self._changed
        return results, weights, [leaves[at] for at in changed], [former[at] for at in changed], create_graph


def gradient_before(leaf: Tensor) -> Tensor | None:
    """Return the gradient that a tensor has; None also for a result that does not retain one."""
    return leaf.grad if leaf.is_leaf or leaf.retains_grad else None


def backward(
    results: tuple[Tensor, ...], weights: Any, leaves: list[Tensor], former: list[Tensor | None], create_graph: bool
) -> list[Tensor]:
    """Return the gradients of `leaves` after a backward pass, added to the `former` ones; do not set them."""
    gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
        results, leaves, weights, retain_graph=True, create_graph=create_graph, allow_unused=True
    )
    pairs = zip(gradients, leaves, former, strict=True)
    with torch.set_grad_enabled(create_graph):
        return [_added(gradient, leaf, old, create_graph) for gradient, leaf, old in pairs if gradient is not None]


def _added(gradient: Tensor, leaf: Tensor, former: Tensor | None, create_graph: bool) -> Tensor:
    if former is None and not leaf.is_leaf:  # a result that retains its gradient gets a copy
        return gradient.clone() if gradient.is_sparse else gradient.clone(memory_format=torch.contiguous_format)
    if former is None:
        return gradient if create_graph else _laid_out_like(gradient, leaf)
    if former.is_sparse and not gradient.is_sparse:  # the other order does not exist
        return gradient + former
    return former + gradient if create_graph or not leaf.is_leaf else former.add_(gradient)


def _laid_out_like(gradient: Tensor, leaf: Tensor) -> Tensor:
    """Return a gradient with the strides of its leaf, as autograd keeps it."""
    if gradient.layout is not torch.strided or leaf.layout is not torch.strided:
        return gradient
    wanted = torch.empty_like(leaf, memory_format=torch.preserve_format, requires_grad=False)
    sizes = zip(gradient.shape, gradient.stride(), wanted.stride(), strict=True)
    if all(own == other for size, own, other in sizes if size != 1):
        return gradient
    with torch.no_grad():
        return wanted.copy_(gradient)


def _exists(gradient: Tensor | None) -> TypeGuard[Tensor]:
    return gradient is not None


class BackwardWatch(GradientWatch):
    """Watches a backward pass, which also adds to the gradients that exist."""

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
        """Begin; return the gradients that may be added to."""
        self._former = [(gradient, version_of(gradient)) for gradient in args[3] if gradient is not None]
        super().__call__(args, kwargs)
        return tuple([gradient for gradient, _ in self._former])

    def changed_tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors that changed, and end the watch."""
        changed = super().changed_tensors()
        known = set(map(id, changed))
        added = [one for one, version in self._former if version_of(one) != version and id(one) not in known]
        self._former = []
        return (*changed, *added)
