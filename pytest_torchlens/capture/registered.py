"""What a model has registered: modules, parameters and buffers, with their addresses, found in one walk."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch

from pytest_torchlens.capture.leaves import is_lazy
from pytest_torchlens.capture.storage import storage_key
from pytest_torchlens.capture.tensor_table import Named


@dataclass(frozen=True)
class Registered:
    """The modules of a model by address, and its buffers and parameters by id, each by its first name."""

    modules: dict[str, torch.nn.Module]
    tensors: Named

    @classmethod
    def of(cls, model: torch.nn.Module) -> Registered:
        """Return what a model has registered now."""
        modules = dict(model.named_modules())
        tensors: Named = {}
        for kind in ("buffer", "parameter"):
            for address, module in modules.items():
                members = module._buffers if kind == "buffer" else module._parameters
                for name, tensor in members.items():
                    if tensor is not None and id(tensor) not in tensors:
                        tensors[id(tensor)] = tensor, kind, f"{address}.{name}" if address else name
        return cls(modules, tensors)

    def parameters(self) -> list[tuple[str, torch.Tensor]]:
        """Return name and tensor of each parameter."""
        return [(name, tensor) for tensor, kind, name in self.tensors.values() if kind == "parameter"]

    def sharing_memory(self, inputs: list[torch.Tensor]) -> list[tuple[torch.Tensor, str, str]]:
        """Return parameters and buffers over memory of others: a write to one shows in all, read before or not."""
        keys = [(storage_key(entry[0]), entry) for entry in self.tensors.values() if not is_lazy(entry[0])]
        uses = Counter([key for key, _ in keys])
        uses.update(map(storage_key, inputs))
        return [entry for key, entry in keys if key and uses[key] > 1]
