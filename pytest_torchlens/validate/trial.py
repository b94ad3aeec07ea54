"""One call run again with other values for some of its tensor arguments."""

from __future__ import annotations

import torch

from pytest_torchlens.capture import Call
from pytest_torchlens.capture import Value
from pytest_torchlens.capture import edges_in
from pytest_torchlens.capture import fingerprint
from pytest_torchlens.capture.opaque import OpaqueModule
from pytest_torchlens.capture.values import value_of
from pytest_torchlens.replay import Player
from pytest_torchlens.validate.contents import Attributes


class Trial:
    """A call that has just been replayed, ready to be run with changed arguments; the replay itself is not touched.

    Parameters
    ----------
    player
        The replay, after it ran the call and before it stored the result.
    call
        The call.
    outputs
        What it gave.
    originals
        What it overwrote, as it was before, by slot (see `originals_of`).
    """

    def __init__(
        self, player: Player, call: Call, outputs: tuple[torch.Tensor, ...], originals: dict[int, torch.Tensor]
    ) -> None:
        self.call = call
        self.outputs = outputs
        self.edges = [(path, value_of(read)) for path, read in edges_in(call)]
        self._player = player
        self._originals = originals
        returned = {value.slot for value in call.outputs}
        self._also_written = [slot for slot in call.writes if slot not in returned]
        written = [fingerprint(player.at(slot)) for slot in self._also_written]
        self._reference = [value.fingerprint for value in call.outputs] + written

    def argument(self, place: int) -> torch.Tensor:
        """Return the tensor of the edge at `place` as the call read it."""
        slot = self.edges[place][1].slot
        return self._originals[slot] if slot in self._originals else self._player.at(slot)

    def reacts(self, changed: dict[int, torch.Tensor]) -> bool:
        """Return whether the call gives or writes something else with ``changed[place]`` for these edges."""
        outcome = self.outcome(changed)
        return outcome is None or outcome != self._reference  # values that the function refuses it has read

    def outcome(self, changed: dict[int, torch.Tensor]) -> list[str] | None:
        """Return the fingerprints of what the call gives and writes with ``changed[place]``; None if it raises."""
        overwritten = {slot: copied(tensor) for slot, tensor in self._originals.items()}
        places = iter(range(len(self.edges)))

        def swap(value: Value) -> torch.Tensor:
            place = next(places)
            if place not in changed:
                return overwritten[value.slot] if value.slot in overwritten else self._player.at(value.slot)
            if value.slot in overwritten:
                overwritten[value.slot] = changed[place]
            return changed[place]

        module = self.call.info.func.module() if isinstance(self.call.info.func, OpaqueModule) else None
        attributes = Attributes(module) if module is not None else None
        try:
            returned = self._player.run(self.call, self._player.arguments(self.call, swap))
        except Exception:  # noqa: BLE001 - whatever a function raises at values that it cannot take
            return None
        finally:
            if attributes is not None:
                attributes.restore()
        outputs = returned if self.call.returned else tuple([overwritten[value.slot] for value in self.call.outputs])
        written = tuple([overwritten[slot] for slot in self._also_written])
        return [fingerprint(tensor) for tensor in outputs + written]


def originals_of(player: Player, call: Call) -> dict[int, torch.Tensor]:
    """Return copies of the tensors that a call is about to overwrite, by slot."""
    return {slot: copied(player.at(slot)) for slot in call.writes}


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a detached copy with the same strides."""
    with torch.no_grad():
        tensor = tensor.detach()
        if tensor.layout is not torch.strided or tensor.is_quantized or not tensor.numel():
            return tensor.clone()
        size = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
        block = tensor.as_strided((size,), (1,), tensor.storage_offset()).clone()
        return block.as_strided(tensor.shape, tensor.stride(), 0)
