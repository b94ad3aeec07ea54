"""What each module cost: the sums over its operations."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from pytest_torchlens.capture import Recording
from pytest_torchlens.records import ModuleMeasurements

Costs = dict[str, tuple[Any, ...]]
"""By field of `ModuleMeasurements`, what each call cost."""


def by_module(recording: Recording, costs: Costs) -> tuple[ModuleMeasurements, ...]:
    """Return the sums for each module that was called, the model itself first; of all its calls."""
    found: dict[str, dict[str, Any]] = {call.address: defaultdict(int) for call in recording.module_calls}
    for number, call in enumerate(recording.calls):
        addresses = list(dict.fromkeys(around.address for around in call.module.stack())) if call.module else []
        for name, each in costs.items():
            for address in addresses if each else ():
                found[address][name] += each[number]
            if each and addresses:
                found[addresses[0]][f"self_{name}"] += each[number]
    return tuple(ModuleMeasurements(address=address, **sums) for address, sums in found.items())
