"""Describes a run: the model, its weights, the versions, and what each stored layer is in the model."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import datetime
from datetime import timezone

import torch

import pytest_torchlens
from pytest_torchlens.capture.looks import named_parameters
from pytest_torchlens.extraction.batches import TakeInputs
from pytest_torchlens.extraction.batches import device_of
from pytest_torchlens.extraction.batches import digest_of_weights
from pytest_torchlens.extraction.batches import name_of
from pytest_torchlens.extraction.index import Index
from pytest_torchlens.extraction.index import LayerRecord
from pytest_torchlens.extraction.index import Provenance
from pytest_torchlens.extraction.transforms import Transformer
from pytest_torchlens.records import Operation


def now() -> str:
    """Return the time as ISO 8601, UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def provenance_of(
    model: torch.nn.Module, inputs: TakeInputs | None, labels: int | str | None, seed: int | None
) -> Provenance:
    """Return where the activations of a run that begins now come from."""
    return Provenance(
        model=f"{type(model).__module__}.{type(model).__qualname__}",
        weights=digest_of_weights(model),
        parameters=sum(parameter.numel() for _, parameter in named_parameters(model)),
        evaluated=not model.training,
        random_seed=seed,
        inputs="" if inputs is None else name_of(inputs),
        labels="" if labels is None else repr(labels),
        device=str(device_of(model) or "cpu"),
        torch=torch.__version__,
        python=platform.python_version(),
        pytest_torchlens=pytest_torchlens.__version__,
        threads=torch.get_num_threads(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        created=now(),
    )


def index_of(provenance: Provenance, operations: Mapping[str, Operation], transformer: Transformer) -> Index:
    """Return the index of a folder in which nothing is stored yet; `operations` are the chosen ones by label."""
    layers = {label: _record(op, transformer.name(label)) for label, op in operations.items()}
    return Index(provenance, layers)


def _record(op: Operation, transform: str) -> LayerRecord:
    short = (op.layer_label_short,) if op.layer_passes_total == 1 else (f"{op.layer_label_short}:{op.pass_num}",)
    names = [key for key in op.lookup_keys if isinstance(key, str)]  # those that find it alone
    keys = dict.fromkeys((op.label, *short, *names))
    return LayerRecord(
        keys=tuple(key for key in keys if key.removesuffix(":1") == key or key.removesuffix(":1") not in keys),
        function=op.func_applied_name,
        modules=tuple(dict.fromkeys((*op.containing_module_origin_nested, *op.modules_exited))),
        source_line=op.source_line,
        parameters=op.parent_param_addresses,
        parents=op.parent_layers,
        shape=op.tensor_shape,
        dtype=op.tensor_dtype,
        transform=transform,
    )
