"""Where a run took place."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Versions and settings that can change a number."""

    python: str = ""
    platform: str = ""
    torch: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    """Versions of further packages (torchvision, timm, numpy, pytest, pytest-torchlens), and of what PyTorch was built
    with: BLAS, MKL, oneDNN, CUDA."""
    device: str = "cpu"
    cpu_capability: str = ""
    num_threads: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    """Default dtype, deterministic algorithms, matmul precision, oneDNN; with a GPU, whether it may round to TF32."""
