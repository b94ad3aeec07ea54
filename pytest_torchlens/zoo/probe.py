"""Finds the smallest image that a model accepts, and what the model costs."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace
from typing import TYPE_CHECKING
from typing import Any

import torch

from pytest_torchlens.zoo.catalog import covering_globs
from pytest_torchlens.zoo.inputs import TensorSpec

if TYPE_CHECKING:
    from pytest_torchlens.zoo.case import ModelCase
    from pytest_torchlens.zoo.zoo_file import Zoo

IMAGE_SIZES = (32, 64, 96, 128, 160, 192, 224, 256)
"""Pixels to try, the smallest first."""
PASSES_PER_VALIDATION = 10
"""About how many forward passes a validation takes."""
SECONDS_BY_SIZE = {"fast": 10.0, "slow": 120.0, "huge": float("inf")}
"""Most seconds of a model in each size class."""


@dataclass(frozen=True)
class Probe:
    """The result for one model.

    Attributes
    ----------
    name
        The model.
    settings
        Its settings, for a rule of a zoo file.
    seconds
        CPU time of building it and calling it once.
    reason
        Why the probe failed; empty where it succeeded.
    """

    name: str
    settings: dict[str, Any]
    seconds: float = 0.0
    reason: str = ""


def probe(case: ModelCase, sizes: Iterable[int] = IMAGE_SIZES) -> Probe:
    """Call a model with larger and larger images on the meta device until it accepts one, then measure it.

    A model of a fixed size is built for another size by ``img_size``, if its constructor takes that.
    """
    try:
        found = next(filter(_accepts, _candidates(case, sizes)), case)
        seconds, size = _cost(found)
    except Exception as error:  # noqa: BLE001 - a model may raise anything
        return Probe(case.name, {}, reason=f"{type(error).__name__}: {error}".partition("\n")[0])
    settings: dict[str, Any] = {} if found is case else {"input": {"shape": list(found.settings.input.shape)}}
    settings |= {"kwargs": found.settings.kwargs} if found.settings.kwargs != case.settings.kwargs else {}
    return Probe(case.name, {**settings, **({} if size == "fast" else {"size": size})}, seconds)


def rules(probes: Iterable[Probe], zoo: Zoo) -> list[dict[str, Any]]:
    """Return the rules of a zoo file: one for each set of settings, with few globs for the models that share it."""
    groups: dict[str, list[Probe]] = defaultdict(list)
    for one in probes:
        if one.settings:
            groups[repr(one.settings)].append(one)
    return [
        {"match": covering_globs([one.name for one in group], zoo.names), **group[0].settings}
        for group in groups.values()
    ]


def _candidates(case: ModelCase, sizes: Iterable[int]) -> Iterator[ModelCase]:
    """Yield the case with smaller images, each unchanged and built for that size; nothing for other inputs."""
    with torch.device("meta"):
        usual = case.settings.input or case.provider.default_input(_build(case), case.settings.kwargs)
    if not isinstance(usual, TensorSpec) or len(usual.shape) != 4:  # noqa: PLR2004 - batch, channels, height, width
        return
    for size in sizes:
        if size < usual.shape[-1]:
            image = replace(usual, shape=(*usual.shape[:-2], size, size))
            for kwargs in (case.settings.kwargs, {**case.settings.kwargs, "img_size": size}):
                yield replace(case, settings=replace(case.settings, input=image, kwargs=kwargs))


def _accepts(case: ModelCase) -> bool:
    """Whether a model can be called with this input; only shapes are computed."""
    try:
        with torch.device("meta"), torch.no_grad():
            _build(case)(torch.empty(case.settings.input.shape))
    except Exception:  # noqa: BLE001 - a model may raise anything for a size that it rejects
        return False
    return True


def _build(case: ModelCase) -> torch.nn.Module:
    return case.provider.build(case.name, case.settings.kwargs, pretrained=False).eval()


def _cost(case: ModelCase) -> tuple[float, str]:
    """Return the CPU seconds of building a model and calling it, and the size class that follows."""
    start = time.process_time()
    model = _build(case)
    inputs = case.make_inputs(model)
    build_end = time.process_time()
    with torch.no_grad():
        model(*inputs.args, **inputs.kwargs)
    call_end = time.process_time()
    validation = build_end - start + PASSES_PER_VALIDATION * (call_end - build_end)
    return call_end - start, next(size for size, limit in SECONDS_BY_SIZE.items() if validation <= limit)
