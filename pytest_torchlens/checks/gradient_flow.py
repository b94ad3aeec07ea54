"""Follows parameters through a recorded pass, to the operations that keep a gradient from them or spoil it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import torch

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Recording
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture.calls import Escape
from pytest_torchlens.capture.leaves import substitute
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.capture.values import values_in
from pytest_torchlens.checks.exact import is_discrete
from pytest_torchlens.checks.side_by_side import ancestors
from pytest_torchlens.history import ModelHistory
from pytest_torchlens.replay import Player

_FEW = 16
"""With random weights each element of a rectifier is off in one case of two."""


class Cut(NamedTuple):
    """Why no gradient reaches a parameter."""

    number: int | None
    """The call; None if no call reads the parameter."""
    why: str


class Flow:
    """The ways of values through a recorded pass."""

    def __init__(self, history: ModelHistory) -> None:
        self.history = history
        self.recording: Recording = history.recording
        self._leading = ancestors(self.recording)
        self._readers: dict[int, list[int]] = defaultdict(list)
        """Numbers of the calls that read a value, by its id."""
        for number, call in enumerate(self.recording.calls):
            for _, read in edges_in(call):
                for value in values_in(read):
                    self._readers[id(value)].append(number)
        self._parameters = {
            source.name: source.value for source in self.recording.sources if source.kind == "parameter"
        }
        self._returned = {id(value_of(read)) for _, read in self.recording.outputs}
        self._escapes = {id(escape.value): escape for escape in self.recording.escapes if escape.value is not None}

    def is_read(self, name: str) -> bool:
        """Return whether a call reads a parameter."""
        return name in self._parameters

    def cut(self, name: str) -> Cut:
        """Return why no gradient reaches a parameter: the first cut on a way to the output, else on any way."""
        if name not in self._parameters:
            return Cut(None, "no operation reads it")
        cuts, ends = [], []
        for value in self._reached(self._parameters[name]):
            readers = self._readers[id(value)]
            for number in readers:
                call = self.recording.calls[number]
                if why := self._why_cut(call, value):
                    cuts.append(Cut(number, why))
            if not readers and id(value) not in self._returned:
                ends.append(self._end(value))
        on_the_way = [cut for cut in cuts if cut.number in self._leading]
        first = min(on_the_way or cuts, key=lambda cut: cut.number or 0, default=None)
        return first or max(ends, key=lambda cut: cut.number or -1, default=Cut(None, "no way leads to an output"))

    def _reached(self, start: Value) -> Iterator[Value]:
        """Yield a value and those made of it that require gradients, in the order of the pass."""
        waiting, seen = [start], {id(start)}
        while waiting:
            value = waiting.pop(0)
            yield value
            for number in self._readers[id(value)]:
                for output in self.recording.calls[number].outputs:
                    if output.requires_grad and id(output) not in seen:
                        seen.add(id(output))
                        waiting.append(output)

    def _why_cut(self, call: Call, value: Value) -> str:
        """Return why a call passes no gradient on to a value that it reads; empty if it may."""
        outputs = [output for output in call.outputs if self._leads(output)] or list(call.outputs)
        if any(output.requires_grad for output in outputs) or not outputs:
            return ""
        name = call.info.layer_type
        if not self.recording.ambient.rows[call.ambient][0]:
            return f"{name} runs without gradients (torch.no_grad or inference_mode)"
        if not any(output.dtype.is_floating_point or output.dtype.is_complex for output in outputs):
            kind = ", ".join(dict.fromkeys(str(output.dtype).removeprefix("torch.") for output in outputs))
            return f"{name} returns {kind}, through which no gradient flows"
        return f"{name} returns a tensor without gradients of one that has them"

    def _leads(self, value: Value) -> bool:
        """Return whether an output depends on a value: of what ``max`` returns it may be the indices alone."""
        return id(value) in self._returned or not self._leading.isdisjoint(self._readers[id(value)])

    def _end(self, value: Value) -> Cut:
        """Return that a value leads nowhere."""
        escape = self._escapes.get(id(value))
        if escape is not None:
            return Cut(value.call if value.call >= 0 else None, f"only Python reads its value ({_words(escape)})")
        if value.call < 0:
            return Cut(None, "no operation reads it")
        name = self.recording.calls[value.call].info.layer_type
        return Cut(value.call, f"nothing reads the result of {name}: it does not lead to an output")

    def vanishing(self, name: str) -> int | None:
        """Return the first call on the way from a parameter, whose gradient is zero, that passes on only zeros."""
        value = self._parameters.get(name)
        for at in self._reached(value) if value is not None else ():
            if at is not value and not _is_zero(self.gradient(at)):
                continue
            for number in self._readers[id(at)]:
                gradients = [self.gradient(output) for output in self.recording.calls[number].outputs]
                if any(gradient is not None and not _is_zero(gradient) for gradient in gradients):
                    return number
        return None

    def spoiling(self) -> tuple[int, Value] | None:
        """Return the call whose backward makes what is not finite of what is, and the value that gets it."""
        found = [(number, value) for number, value in self._suspects()]
        if len(found) < 2:  # noqa: PLR2004 - one needs no proof
            return found[0] if found else None
        suspects = {number for number, _ in found}
        with Player(self.recording) as player:
            for number, call in enumerate(self.recording.calls):
                arguments = player.arguments(call)
                proven = number in suspects and self._spoils(player, call, arguments)
                if proven:
                    return number, next(value for at, value in found if at == number)
                returned, _ = player.play(number, call, arguments)
                player.store(number, call, returned)
        return found[0]

    def _suspects(self) -> Iterator[tuple[int, Value]]:
        """Yield calls with finite gradients at their outputs, and the input whose gradient is not, the last call first.

        The gradient of an input is the sum over all that read it, so that another call may have spoiled it.
        """
        for number, call in reversed(list(enumerate(self.recording.calls))):
            gradients = [gradient for output in call.outputs if (gradient := self.gradient(output)) is not None]
            if not gradients or not all(map(_is_finite, gradients)):
                continue
            for _, read in edges_in(call):
                gradient = self.gradient(value_of(read))
                if gradient is not None and not _is_finite(gradient):
                    yield number, value_of(read)
                    break

    def _spoils(self, player: Player, call: Call, arguments: tuple[object, ...]) -> bool:
        """Return whether the backward of one call alone makes what is not finite."""
        leaves: list[torch.Tensor] = []

        def leaf(item: object) -> object:
            if not isinstance(item, torch.Tensor) or is_discrete(item):
                return item.clone() if isinstance(item, torch.Tensor) else item
            leaves.append(item.detach().clone().requires_grad_())
            return leaves[-1]

        copies = substitute(arguments, leaf)
        gradients = [self.gradient(output) for output in call.outputs]
        try:
            with torch.enable_grad():
                outputs = player.run(call, copies)
                pairs = [
                    (output, gradient)
                    for output, gradient in zip(outputs, gradients, strict=False)
                    if gradient is not None and output.requires_grad
                ]
                made: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
                    [output for output, _ in pairs], leaves, [gradient for _, gradient in pairs], allow_unused=True
                )
        except RuntimeError:  # such as a call that writes to its argument
            return False
        return not all(_is_finite(gradient) for gradient in made if gradient is not None)

    def gradient(self, value: Value) -> torch.Tensor | None:
        """Return the gradient of a value in the last backward pass; None if it got none."""
        gradients = self.recording.gradients
        by_pass = gradients.of(value) if gradients is not None else {}
        return next(reversed(by_pass.values()), None)

    def has_zero_operand(self, number: int) -> bool:
        """Return whether a call reads a tensor that is all zero."""
        tensors = [value_of(read).tensor for _, read in edges_in(self.recording.calls[number])]
        return any(tensor is not None and not is_discrete(tensor) and _is_zero(tensor) for tensor in tensors)

    def has_few_outputs(self, number: int) -> bool:
        """Return whether a call returns so few elements that all may be off by chance."""
        return sum(math.prod(output.shape) for output in self.recording.calls[number].outputs) <= _FEW

    def is_softmax_of_one(self, number: int) -> bool:
        """Return whether a call is a softmax over one element, or attention to one key."""
        call = self.recording.calls[number]
        if call.info.layer_type == "scaled_dot_product_attention":
            shapes = {path: value_of(read).shape for path, read in edges_in(call)}
            key = shapes.get("1", shapes.get("key"))
            return key is not None and key[-2] == 1
        tensors = [output.tensor for output in call.outputs]
        return call.info.layer_type == "softmax" and all(
            tensor is not None and bool((tensor == 1).all()) for tensor in tensors
        )


def _words(escape: Escape) -> str:
    return f"{escape.name}()"


def _is_zero(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and not bool(values_of(tensor).any())


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(values_of(tensor).isfinite().all())


def values_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor; those that a sparse one holds."""
    tensor = tensor.detach()
    return tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor
