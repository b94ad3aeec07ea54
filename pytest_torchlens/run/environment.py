"""Where this process runs."""

from __future__ import annotations

import platform
from importlib import metadata

import torch

from pytest_torchlens.records import Environment

PACKAGES = (
    "pytest",
    "pytest-torchlens",
    "numpy",
    "torchvision",
    "timm",
    "transformers",
    "torchaudio",
    "torch_geometric",
    "segmentation_models_pytorch",
)


def find_environment() -> Environment:
    """Return the versions and settings of this process that can change a number."""
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        torch=torch.__version__,
        packages={name: version for name in PACKAGES if (version := _version(name))},
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        num_threads=torch.get_num_threads(),
        settings={
            "default_dtype": str(torch.get_default_dtype()),
            "deterministic_algorithms": str(torch.are_deterministic_algorithms_enabled()),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "mkldnn": str(torch.backends.mkldnn.enabled),
        },
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
