"""Holds what audit rules look at: one recorded pass, and facts about the model that a record lacks."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING
from typing import NamedTuple

from pytest_torchlens.capture.looks import named_modules
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.records import ActivationStatistics
from pytest_torchlens.records import AuditPlace
from pytest_torchlens.records import HistoryRecord
from pytest_torchlens.records import Measurements
from pytest_torchlens.records import Operation

if TYPE_CHECKING:
    import torch


_PYTORCH = "torch."


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Parameters and modules of a model."""

    is_training: bool = False
    """Whether the model itself is in train mode."""
    parameters: dict[str, int] = field(default_factory=dict)
    """Elements of each distinct parameter, by its first name."""
    trainable: frozenset[str] = frozenset()
    """Names of the trainable parameters."""
    in_training: frozenset[str] = frozenset()
    """Addresses of modules in train mode."""
    lines: dict[str, str] = field(default_factory=dict)
    """``file:line, in function`` of the forward method of each module whose class is not PyTorch's, by address."""

    @classmethod
    def of(cls, model: torch.nn.Module) -> ModelFacts:
        """Return the facts about a model; nothing is run."""
        parameters = dict(named_parameters(model))
        modules = dict(named_modules(model))
        return cls(
            is_training=model.training,
            parameters={name: parameter.numel() for name, parameter in parameters.items() if not _is_lazy(parameter)},
            trainable=frozenset(name for name, parameter in parameters.items() if parameter.requires_grad),
            in_training=frozenset(address for address, module in modules.items() if module.training),
            lines={address: line for address, module in modules.items() if (line := _line(type(module)))},
        )

    def line_around(self, address: str) -> str:
        """Return the line of the innermost module around an address whose class is not PyTorch's."""
        while address and address not in self.lines:
            address = address.rpartition(".")[0]
        return self.lines.get(address, "")


def _is_lazy(parameter: torch.nn.Parameter) -> bool:
    return type(parameter).__name__ == "UninitializedParameter"


def _line(kind: type) -> str:
    code = getattr(inspect.unwrap(getattr(kind, "forward", _line)), "__code__", None)
    if code is None or kind.__module__.startswith(_PYTORCH):
        return ""
    return f"{code.co_filename}:{code.co_firstlineno}, in {code.co_name}"


class ActivationNumbers(NamedTuple):
    """Statistics of one activation."""

    minimum: float
    maximum: float
    zeros: float
    not_finite: float
    nan: float

    @property
    def magnitude(self) -> float:
        """The largest absolute value of the finite elements."""
        return max(abs(self.minimum), abs(self.maximum))


@dataclass(frozen=True)
class Subject:
    """A model under audit.

    Attributes
    ----------
    history
        The recorded pass.
    statistics, measurements
        Statistics of the activations, costs of the operations; without them, rules that need them find nothing.
    facts
        Facts about the model; None if it no longer exists.
    """

    history: HistoryRecord
    statistics: ActivationStatistics | None = None
    measurements: Measurements | None = None
    facts: ModelFacts | None = None

    @cached_property
    def calls(self) -> tuple[Operation, ...]:
        """The tensors that function calls made, in order."""
        return tuple(op for op in self.history.operations if op.call_id >= 0)

    @cached_property
    def _by_label(self) -> dict[str, Operation]:
        return {key: op for op in self.history.operations for key in (op.layer_label_w_pass, op.label)}

    def parents(self, op: Operation) -> list[Operation]:
        """Return the operations whose tensors an operation reads."""
        return [self._by_label[label] for label in op.parent_layers if label in self._by_label]

    def origins(self, marked: set[str]) -> Iterator[Operation]:
        """Yield the marked operations (by label) that have no marked parent."""
        for op in self.calls:
            if op.label in marked and not any(parent.label in marked for parent in self.parents(op)):
                yield op

    @cached_property
    def numbers(self) -> dict[str, ActivationNumbers]:
        """Statistics of the activations, by label."""
        found = self.statistics
        if found is None:
            return {}
        nans = found.nan or (0.0,) * len(found.operations)
        rows = zip(found.minimum, found.maximum, found.zeros, found.not_finite, nans, strict=True)
        return {label: ActivationNumbers(*row) for label, row in zip(found.operations, rows, strict=True)}

    @cached_property
    def used_parameters(self) -> frozenset[str]:
        """Names of the parameters that some operation read."""
        return frozenset(name for op in self.history.operations for name in op.parent_param_addresses)


def place(op: Operation, detail: str = "") -> AuditPlace:
    """Return the place of an operation."""
    module = op.containing_module_origin or ""
    return AuditPlace(operation=op.label, module=module, source_line=op.source_line, detail=detail)


def is_floating(op: Operation) -> bool:
    """Whether an operation's tensor holds floating-point numbers."""
    return op.tensor_dtype.startswith(("torch.float", "torch.bfloat"))


def num_elements(op: Operation) -> int:
    """Return how many elements an operation's tensor has."""
    return prod(op.tensor_shape)


def arguments(op: Operation) -> dict[str, str]:
    """Return the non-tensor arguments as text, by place or name."""
    texts = (*op.func_position_args_non_tensor, *op.func_keyword_args_non_tensor)
    return {name: value for name, _, value in (text.partition("=") for text in texts)}
