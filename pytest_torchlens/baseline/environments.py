"""Sorts environments into classes, and lists how two environments differ.

Snapshots store their numbers by class.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping

from pytest_torchlens.records import Environment

LIBRARIES = ("torchvision", "timm", "transformers", "numpy")
"""Packages that contain code of models; only their versions are compared."""


def class_of(environment: Environment) -> str:
    """Return the class of an environment: device, CPU capability and number of threads, as one name.

    Numbers differ more between classes than between versions of PyTorch, so a snapshot stores each class apart.
    """
    threads = environment.num_threads
    count = f"{threads} thread{'s' * (threads != 1)}"
    return " ".join(filter(None, (environment.device, environment.cpu_capability, count)))


def nearest_class(wanted: Environment, known: Mapping[str, Environment]) -> str | None:
    """Return the known class most like that of `wanted`; None if no known class has its device."""
    same_device = [name for name, environment in known.items() if environment.device == wanted.device]
    return max(sorted(same_device), key=lambda name: _common_facts(wanted, known[name]), default=None)


def _common_facts(one: Environment, other: Environment) -> tuple[bool, bool]:
    return one.cpu_capability == other.cpu_capability, one.num_threads == other.num_threads


def axes(before: Environment, after: Environment) -> tuple[str, ...]:
    """Return how two environments differ, each item as ``"torch 2.13.0 → 2.14.1"``; the machine comes first."""
    return (*machine_axes(before, after), *version_axes(before, after))


def machine_axes(before: Environment, after: Environment) -> tuple[str, ...]:
    """Return the differences in device, CPU capability, threads and settings."""
    facts = {
        "device": (before.device, after.device),
        "CPU capability": (before.cpu_capability, after.cpu_capability),
        "threads": (before.num_threads, after.num_threads),
    }
    facts |= _in_both(before.settings, after.settings, sorted(before.settings))
    return tuple(_differing(facts))


def version_axes(before: Environment, after: Environment) -> tuple[str, ...]:
    """Return the differences in versions of PyTorch, Python and the libraries that models and kernels come from."""
    facts: dict[str, tuple[object, object]] = {"torch": (_plain(before.torch), _plain(after.torch))}
    facts["Python"] = _minor(before.python), _minor(after.python)
    facts |= {name: (before.packages.get(name, ""), after.packages.get(name, "")) for name in LIBRARIES}
    kernels = ("CUDA",) if after.device == "cuda" else ("BLAS", "MKL")
    return tuple(_differing(facts | _in_both(before.packages, after.packages, kernels)))


def _in_both(before: dict[str, str], after: dict[str, str], names: Iterable[str]) -> dict[str, tuple[object, object]]:
    """Return the facts that both sides have: a fact that only a later pytest-torchlens records has not changed."""
    return {name: (before[name], after[name]) for name in names if name in before and name in after}


def _differing(facts: dict[str, tuple[object, object]]) -> Iterator[str]:
    for name, (old, new) in facts.items():
        if old != new:
            yield f"{name} {old or 'none'} → {new or 'none'}"


def _plain(version: str) -> str:
    return version.partition("+")[0]


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
