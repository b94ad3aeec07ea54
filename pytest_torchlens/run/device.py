"""The device that models are run on: checked by making a tensor there, and waited for."""

from __future__ import annotations

import torch

from pytest_torchlens.records import nearest

KNOWN = ("cpu", "cuda", "mps", "xpu")


def check_device(name: str) -> torch.device:
    """Return the device of a name such as ``"cuda:1"``.

    Raises
    ------
    ValueError
        If the name is none of PyTorch's, or no tensor with values can be made there on this machine.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"{name!r} is no device; {nearest(name.partition(':')[0], KNOWN)}") from None
    if device.type == "meta":
        raise ValueError("tensors on meta have no values to record; write cpu or cuda")
    try:
        torch.empty(1, device=device)
    except Exception as error:  # noqa: BLE001 - each backend has errors of its own
        reason = str(error).partition("\n")[0]
        raise ValueError(f"torch {torch.__version__} has no device {name} on this machine: {reason}") from None
    return device


def wait_for(device: torch.device) -> None:
    """Wait until all that was asked of the device is done: a GPU's kernels run while Python goes on."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
