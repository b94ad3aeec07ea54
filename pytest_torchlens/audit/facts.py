"""What an audit asks the model itself, for a record of one pass cannot know it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from dataclasses import field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_PYTORCH = "torch."


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Parameters and modules of a model."""

    is_training: bool = False
    """Mode of the model itself."""
    parameters: dict[str, int] = field(default_factory=dict)
    """Elements of each distinct parameter, by its first name."""
    trainable: frozenset[str] = frozenset()
    """Names of those that are trained."""
    in_training: frozenset[str] = frozenset()
    """Addresses of modules in train mode."""
    lines: dict[str, str] = field(default_factory=dict)
    """``file:line, in function`` of the forward method of each module that is not PyTorch's own."""

    @classmethod
    def of(cls, model: torch.nn.Module) -> ModelFacts:
        """Look at a model; nothing is run."""
        parameters = dict(model.named_parameters())
        modules = dict(model.named_modules())
        return cls(
            is_training=model.training,
            parameters={name: parameter.numel() for name, parameter in parameters.items() if not _is_lazy(parameter)},
            trainable=frozenset(name for name, parameter in parameters.items() if parameter.requires_grad),
            in_training=frozenset(address for address, module in modules.items() if module.training),
            lines={address: line for address, module in modules.items() if (line := _line(type(module)))},
        )

    def line_around(self, address: str) -> str:
        """Return where the innermost module of the model's own around an address runs."""
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
