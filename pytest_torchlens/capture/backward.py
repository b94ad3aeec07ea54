"""A backward pass that forward runs: one call, which reads the results and leaves, and makes or adds to gradients."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from typing import Any
from typing import TypeGuard

import torch

from pytest_torchlens.capture.code_in_gradient import GradientWatch
from pytest_torchlens.capture.leaves import tensors
from pytest_torchlens.capture.values import version_of

Tensor = torch.Tensor


def leaves_behind(results: Iterable[Tensor]) -> list[Tensor]:
    """Return the leaves of the autograd graph of some tensors, which get gradients in a backward pass."""
    leaves = [tensor for tensor in results if tensor.requires_grad and tensor.grad_fn is None]
    waiting = [tensor.grad_fn for tensor in results if tensor.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node: Any = waiting.pop()
        if hasattr(node, "variable"):  # it adds up the gradient of a leaf
            leaves.append(node.variable)
        inside = {parent for parent, _ in node.next_functions if parent is not None} - seen
        seen |= inside
        waiting += inside
    return list({id(leaf): leaf for leaf in leaves}.values())


class BackwardPass:
    """One call of `torch.autograd.backward`.

    Parameters
    ----------
    func, args, kwargs
        The function, and the arguments that it has.
    others
        Tensors that may get a gradient though the graph does not show it: parameters used in a checkpoint, and results
        that retain theirs.
    """

    def __init__(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], others: Iterable[Tensor]
    ) -> None:
        self._func, self._args, self._kwargs = func, args, kwargs
        self._results = tensors(args[0] if args else kwargs["tensors"])
        reached = [*tensors(self._argument(5, "inputs")), *leaves_behind(self._results), *others]
        self._leaves = list({id(tensor): tensor for tensor in reached}.values())
        self._former = [gradient_before(leaf) for leaf in self._leaves]
        self._changed: list[int] = []

    def _argument(self, place: int, name: str) -> Any:
        return self._args[place] if len(self._args) > place else self._kwargs.get(name)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What the recorded call reads: results, their gradients, leaves, the leaves' gradients so far, and a flag."""
        weights = self._argument(1, "grad_tensors")
        if weights is None:
            weights = self._argument(4, "grad_variables")
        return self._results, weights, self._leaves, self._former, bool(self._argument(3, "create_graph"))

    def run(self, *_: Any) -> list[Tensor]:
        """Run the backward pass; return the gradients that are new or have changed."""
        before = [None if former is None else version_of(former) for former in self._former]
        self._func(*self._args, **self._kwargs)
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
    return [_added(gradient, leaf, old, create_graph) for gradient, leaf, old in pairs if gradient is not None]


def _added(gradient: Tensor, leaf: Tensor, former: Tensor | None, create_graph: bool) -> Tensor:
    if former is None:
        return gradient if create_graph else _laid_out_like(gradient, leaf)
    return former + gradient if create_graph else former.add_(gradient)


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
