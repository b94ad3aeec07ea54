"""Inputs of a model of the library ``transformers``, from the arguments of its ``forward`` and its configuration."""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING
from typing import Any

import torch

from pytest_torchlens.capture.generators import Generators
from pytest_torchlens.zoo.inputs import TensorSpec
from pytest_torchlens.zoo.shrink import FIRST_SPECIAL
from pytest_torchlens.zoo.shrink import IMAGE_SIZE
from pytest_torchlens.zoo.shrink import LOWEST_TEXT

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator
    from collections.abc import Mapping

    from torch import nn


LENGTH = 16
"""Tokens of a text."""
SAMPLES = 2000
"""Of a sound."""
FRAMES = 64
"""Of a spectrogram."""
GRID = (1, 4, 4)
"""Frames, rows and columns of patches, where a model takes an image as a list of patches."""
CLIP = 4
"""Images of a video."""


def default_arguments(model: nn.Module) -> dict[str, TensorSpec]:
    """Return the arguments of ``forward``: what it requires, and a text, an image and a sound where it takes these."""
    generators = Generators()
    try:
        frames_first = _arguments(_Inputs(model, bands_first=False))
        if "input_features" in frames_first and _runs(model, frames_first):
            return _with_placeholders(model, frames_first)
        return _with_placeholders(model, _arguments(_Inputs(model, bands_first=True)))
    finally:
        generators.restore()  # layers that were tried may draw


def _arguments(inputs: _Inputs) -> dict[str, TensorSpec]:
    return {name: make(inputs) for name, make in _MAKERS.items() if inputs.takes(name)}


def _runs(model: nn.Module, arguments: dict[str, TensorSpec]) -> bool:
    """Whether a copy of a model accepts arguments.

    Neither its configuration nor its layers tell which axis of a spectrogram comes first: some transpose it before the
    first layer.
    """
    model = copy.deepcopy(model)
    try:
        with torch.no_grad():
            model(**_examples(_with_placeholders(model, arguments)))
    except Exception:  # noqa: BLE001 - whatever a layer raises for a wrong shape
        return False
    return True


def _with_placeholders(model: Any, arguments: dict[str, TensorSpec]) -> dict[str, TensorSpec]:
    """Return arguments with a token in the text for each feature of an image, a video or a sound."""
    text = [LOWEST_TEXT + 7 * index % 64 for index in range(LENGTH)]
    kinds = [0] * LENGTH
    for number, kind in enumerate(("image", "video", "audio"), 1):
        token = _token(model.config, kind)
        absent = vars(model.config).get(f"{kind}_config", kind) is None
        if token is None or absent or "input_ids" not in arguments:
            continue
        if hasattr(model, f"get_{kind}_features"):
            count = _feature_count(getattr(model, f"get_{kind}_features"), arguments)
            text[2:2] = [token] * count
            kinds[2:2] = [number] * count
    if not any(kinds):
        return arguments
    special = {"input_ids": text, "mm_token_type_ids": kinds}
    names = [name for name in special if name in inspect.signature(model.forward).parameters]
    return arguments | {name: _values([special[name]]) for name in names}


def _token(config: Any, kind: str) -> int | None:
    ids = (getattr(config, f"{kind}_token_{name}", None) for name in ("id", "index"))
    return next((token for token in ids if token is not None), None)


def _feature_count(features_of: Callable[..., Any], arguments: Mapping[str, TensorSpec]) -> int:
    """Return how many vectors a model makes of an image, a video or a sound."""
    known = inspect.signature(features_of).parameters
    values = _examples({name: spec for name, spec in arguments.items() if name in known})
    if not values:
        return 0
    with torch.no_grad():
        found = features_of(**values)
    return sum(tensor.numel() // tensor.shape[-1] for tensor in _tensors(found))


def _examples(arguments: Mapping[str, TensorSpec]) -> dict[str, torch.Tensor]:
    return {name: _example(spec) for name, spec in arguments.items()}


def _example(spec: TensorSpec) -> torch.Tensor:
    dtype = getattr(torch, spec.dtype)
    middle = (spec.low + spec.high) / 2
    return torch.full(spec.shape, middle, dtype=dtype) if spec.values is None else torch.tensor(spec.values)


def _tensors(found: Any) -> Iterator[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, list | tuple):
        for item in found:
            yield from _tensors(item)
    else:
        pooled = getattr(found, "pooler_output", None)
        yield from _tensors(found.last_hidden_state if pooled is None else pooled)


def _values(values: Any) -> TensorSpec:
    return TensorSpec(tuple(torch.tensor(values).shape), "int64", values=values)


def _ones(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "bool", 1, 2)


def _lookup(config: Any, *names: str) -> Any:
    """Return the first of the fields in a configuration, else in one inside it."""
    for name in names:
        if (value := vars(config).get(name)) is not None:
            return value
    inner = (_lookup(value, *names) for value in vars(config).values() if hasattr(value, "to_diff_dict"))
    return next((value for value in inner if value is not None), None)


class _Inputs:
    """Makes each input of one model."""

    def __init__(self, model: Any, *, bands_first: bool) -> None:
        self._model = model
        self._bands_first = bands_first
        self._parameters = inspect.signature(model.forward).parameters
        self._vision = self._part("vision_config", "image_config", "backbone_config", "encoder_config")
        self._audio = self._part("audio_config", "audio_encoder", "encoder_config", "audio_encoder_config")

    def _part(self, *names: str) -> Any:
        """Return the configuration inside the model's that has one of the names, else the model's."""
        found = (vars(self._model.config).get(name) for name in names)
        return next((value for value in found if hasattr(value, "to_diff_dict")), self._model.config)

    def takes(self, name: str) -> bool:
        """Whether ``forward`` has the argument and uses it."""
        if name not in self._parameters:
            return False
        if any(name in names and self._lacks(part) for part, names in _PARTS.items()):
            return False
        return name not in _IF_REQUIRED or name == self._model.main_input_name or self._requires(name)

    def _requires(self, name: str) -> bool:
        """Whether forward, or the method that it looks at an image with, has no default for the argument."""
        look = getattr(self._model, "get_image_features", self._model.forward)
        found = (parameters.get(name) for parameters in (self._parameters, inspect.signature(look).parameters))
        return any(parameter and parameter.default is parameter.empty for parameter in found)

    def _lacks(self, part: str) -> bool:
        """Whether the model is built without one of its parts, such as ``vision_config``."""
        return vars(self._model.config).get(part, part) is None

    def tokens(self) -> TensorSpec:
        return TensorSpec((1, LENGTH), "int64", LOWEST_TEXT, FIRST_SPECIAL)

    def boxes(self) -> TensorSpec:
        return _values([[[index, index, index + 8, index + 4] for index in range(LENGTH)]])

    def image(self) -> TensorSpec:
        if {"image_grid_thw", "grid_thw"} & set(self._parameters):
            return TensorSpec((GRID[0] * GRID[1] * GRID[2], self._numbers_of_patch()))
        if "spatial_shapes" in self._parameters:
            return TensorSpec((1, GRID[1] * GRID[2], self._numbers_of_patch()))
        return TensorSpec((1, *self._images(), self._channels(), *self._size()))

    def _images(self) -> list[int]:
        """Return how many images a model takes as one, if it takes several."""
        if _lookup(self._model.config, "image_grid_pinpoints"):
            return [2]
        frames = 1 if "pixel_attention_mask" in self._parameters else _lookup(self._vision, "num_frames")
        return [frames] if frames else []

    def _size(self) -> tuple[int, ...]:
        size = _lookup(self._vision, "image_size") or IMAGE_SIZE
        return (size, size) if isinstance(size, int) else tuple(size)

    def _channels(self) -> int:
        channels = _lookup(self._vision, "num_channels", "in_channels")
        return channels if isinstance(channels, int) else 3

    def _numbers_of_patch(self) -> int:
        patch = _lookup(self._vision, "patch_size") or 16
        frames = _lookup(self._vision, "temporal_patch_size", "patch_temporal") or 1
        return int(self._channels() * frames * patch * patch)

    def image_mask(self) -> TensorSpec:
        shape = self.image().shape
        return _ones(*(shape[:-1] if "spatial_shapes" in self._parameters else (1, 1, *shape[-2:])))

    def pixels(self) -> TensorSpec:
        return _values([list(self._size())])

    def grid(self) -> TensorSpec:
        return _values([list(GRID)])

    def rows_and_columns(self) -> TensorSpec:
        return _values([list(GRID[1:])])

    def merge_sizes(self) -> TensorSpec:
        return _values([2])

    def video(self) -> TensorSpec:
        frames = _lookup(self._vision, "num_frames", "frames_per_clip") or CLIP
        return TensorSpec((1, frames, self._channels(), *self._size()))

    def sound(self) -> TensorSpec:
        channels = _lookup(self._model.config, "audio_channels")
        return TensorSpec((1, *([channels] if channels else []), SAMPLES), low=-1.0)

    def _bands(self) -> int:
        names = ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim", "feature_size", "input_dim")
        return int(_lookup(self._audio, *names, "input_feat_size") or 80)

    def spectrogram(self) -> TensorSpec:
        if not self._bands_first:
            return TensorSpec((1, FRAMES, self._bands()))
        positions = _lookup(self._audio, "max_source_positions")
        return TensorSpec((1, self._bands(), 2 * positions if positions else FRAMES))

    def frames_mask(self) -> TensorSpec:
        return _ones(1, self.spectrogram().shape[2 if self._bands_first else 1])


_MAKERS: dict[str, Callable[[_Inputs], TensorSpec]] = {
    "input_ids": _Inputs.tokens,
    "decoder_input_ids": _Inputs.tokens,
    "qformer_input_ids": _Inputs.tokens,
    "bbox": _Inputs.boxes,
    "pixel_values": _Inputs.image,
    "hidden_states": _Inputs.image,
    "high_res_pixel_values": _Inputs.image,
    "pixel_attention_mask": _Inputs.image_mask,
    "image_sizes": _Inputs.pixels,
    "spatial_shapes": _Inputs.rows_and_columns,
    "image_grid_thw": _Inputs.grid,
    "grid_thw": _Inputs.grid,
    "image_merge_sizes": _Inputs.merge_sizes,
    "merge_sizes": _Inputs.merge_sizes,
    "pixel_values_videos": _Inputs.video,
    "input_values": _Inputs.sound,
    "input_features": _Inputs.spectrogram,
    "input_features_mask": _Inputs.frames_mask,
    "feature_attention_mask": _Inputs.frames_mask,
}
_PARTS = {
    "vision_config": ("pixel_values", "pixel_attention_mask", "image_sizes", "spatial_shapes", "image_grid_thw"),
    "audio_config": ("input_features", "input_features_mask", "feature_attention_mask"),
}
"""Arguments for a part that a model may be built without."""
_IF_REQUIRED = ("hidden_states", "image_sizes", "pixel_values_videos", "input_values", "qformer_input_ids")
"""Arguments that only some models need, or in place of others."""
