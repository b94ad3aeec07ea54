"""Describes this process: its devices, and the versions and settings that can change a number."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import torch

from pytest_torchlens.baseline.environments import class_of
from pytest_torchlens.baseline.source_files import version_of
from pytest_torchlens.records import Environment
from pytest_torchlens.records import nearest

DEVICES = ("cpu", "cuda", "mps", "xpu")


def check_device(name: str) -> torch.device:
    """Return the device of a name such as ``"cuda:1"``.

    Raises
    ------
    ValueError
        If PyTorch does not know the device, or cannot make a tensor with values there on this machine.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"expected a device, got {name!r}; {nearest(name.partition(':')[0], DEVICES)}") from None
    if device.type == "meta":
        raise ValueError("expected a device such as cpu or cuda, got 'meta', whose tensors have no values")
    try:
        torch.empty(1, device=device)
    except Exception as error:  # noqa: BLE001 - each backend raises its own errors
        reason = str(error).partition("\n")[0]
        raise ValueError(f"torch {torch.__version__} has no device {name} on this machine: {reason}") from None
    return device


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished its work: GPU kernels run asynchronously."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


PACKAGES = (
    "pytest",
    "pytest-torchlens",
    "numpy",
    "torchvision",
    "timm",
    "transformers",
    "torchaudio",
    "torch_geometric",
    "diffusers",
    "peft",
    "segmentation_models_pytorch",
)
_BUILT_WITH = {"MKL": r"Math Kernel Library Version (\S+)", "oneDNN": r"MKL-DNN v(\S+)", "BLAS": r"BLAS_INFO=(\w+)"}
"""Patterns of library versions in `torch.__config__.show()`."""


def find_environment() -> Environment:
    """Return the versions and settings of this process that can change a number."""
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        torch=torch.__version__,
        packages={name: version for name in PACKAGES if (version := version_of(name))} | _built_with(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        num_threads=torch.get_num_threads(),
        settings={
            "default_dtype": str(torch.get_default_dtype()),
            "deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled()),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "mkldnn": str(torch.backends.mkldnn.enabled),
            **_tf32(),
        },
    )


def machine_of(environment: Environment) -> str:
    """Return the machine as text; times are compared only between equal texts."""
    import psutil  # only runs with baselines name the machine

    memory = round(psutil.virtual_memory().total / 2**30)
    card = [torch.cuda.get_device_name()] if environment.device == "cuda" else []
    return ", ".join([_processor(), f"{os.cpu_count()} cores", f"{memory} GiB", *card, class_of(environment)])


def _built_with() -> dict[str, str]:
    config = torch.__config__.show()
    versions = {name: match.group(1) for name, pattern in _BUILT_WITH.items() if (match := re.search(pattern, config))}
    return versions | ({"CUDA": torch.version.cuda} if torch.version.cuda else {})


def _tf32() -> dict[str, str]:
    """Return whether a GPU may multiply in TF32; PyTorch has an old and a new name for this setting."""
    if not torch.cuda.is_available():
        return {}
    try:
        allowed = torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
    except RuntimeError:  # the old names cannot be read once the new ones were set
        new = torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
        allowed = "tf32" in new
    return {"tf32": str(allowed)}


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.exists() else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
