"""Makes the configuration of a large model of the library ``transformers`` small."""

from __future__ import annotations

import dataclasses
import itertools
import re
from functools import cached_property
from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Iterator
    from collections.abc import Mapping


VOCABULARY = 128
FIRST_SPECIAL = 96
"""Ids from here on stand for an image, a sound or a control token; ids from 5 to here are text."""
LOWEST_TEXT = 5
"""Low ids are padding, begin, end, and the like, in nearly all vocabularies."""
WIDTH = 64
IMAGE_SIZE = 64
LAYERS = 2
MOST_KINDS = 4
"""Kinds of layers that are kept, one layer of each."""
WIDTH_DIVISOR = 8
"""Widths that differ from stage to stage are divided by this, so that they still fit each other."""

_HEAD = 16
_ROTARY_HEAD = 8

AMOUNTS = [
    (re.compile(pattern), most)
    for pattern, most in (
        (r"^(index_topk|num_encoder_blocks)$", 16),
        (r"^feature_projection_input_dim$", 160),
        (r"^(codebook_size|num_embeddings|num_codevectors_per_group)$", 32),
        (r"^(max_(2d_)?position_embeddings|n_positions|max_(source|target|speech|text)_positions|n_ctx)$", 128),
        (r"^(max_seq(uence)?_len(gth)?|block_size|model_max_length)$", 128),
        (r"^sliding_window(_size)?$", 8),
        (r"(^qk_rope|^rope)_head_dim$", _ROTARY_HEAD),
        (r"(head_dim|head_size|d_kv|kv_channels|d_head|rotary_dim)$", _HEAD),
        (r"(key_value|kv)_heads$", 2),
        (r"(^|_)(heads?|num_attention_groups)$", 4),
        (r"(^|_)(hidden_)?(layers?|blocks|depth|depths|repeats|groups_of_layers|blocks_per_stage)$", LAYERS),
        (r"(shared_experts?|^num_dense_layers|topk_group|first_k_dense_replace)$", 1),
        (r"(expert_groups?|^n_group|top_?k|experts_per_tok(en)?|moe_k)$", 2),
        (r"experts?$", 4),
        (r"image_size$", IMAGE_SIZE),
        (r"patch_size$", 16),
        (r"num_pos_feats$", WIDTH // 2),
        (r"num_queries$", 10),
        (r"^num_filters$", 8),
        (r"lora_rank$", 16),
    )
]
"""Names of fields that count something, and the most that each may be; the first name that fits decides."""
_VOCABULARY = re.compile(r"(^|_)vocab_size(_per_layer_input)?$")
_TOKEN = re.compile(r"(_token_ids?|_token_index)$")
_WIDE = re.compile(
    r"(intermediate|ffn?|inner|mlp|feed_forward|linear)(_hidden)?_(sizes?|dims?|units|channels)$"
    r"|^(d_ff|d_inner|n_inner|ffn_hidden_size|filter_size)$"
)
"""Names of widths inside a layer, which are twice as wide."""
_WIDTH = re.compile(
    r"(^|_)(d_model|n_embd|dims?|dimension|hidden_sizes?|width|channels|channel_list|filters|feature_sizes"
    r"|upsample_groups)(_per_stage)?$|(?<!kernel)_size$"
)
_KEY_VALUE_HEADS = re.compile(r"num_key_value_heads$")
_QUERY_HEADS = re.compile(r"(attention|num|n)_heads$")
_LAYER_COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth", "encoder_layers")
_LAYER_INDICES = re.compile(r"(_indexes|_indices|_idxs|_layer_ids|_layers|_blocks)$")
_INPUT_CHANNELS = 4
"""Lists of widths begin with the three colours of the image in some configurations."""
_FIXED: dict[str, Any] = {"image_grid_pinpoints": [[IMAGE_SIZE, IMAGE_SIZE]]}


def small_config(kind: Callable[..., Any], fields: Mapping[str, Any]) -> Any:
    """Return a configuration of class `kind` with small values, except for those in `fields`."""
    default = kind()
    return kind(**_Shrinker(default).arguments(default, kind(), fields))


class _Shrinker:
    """Shrinks a configuration and those inside it so that they fit each other."""

    def __init__(self, root: Any) -> None:
        self._root = root

    def arguments(self, config: Any, default: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a small configuration: fields that are given, shrink, or differ from the default."""
        layers = _Layers(config)
        small: dict[str, Any] = {}
        for name, value in _fields(config):
            if _is_config(value):
                small[name] = self._inner(value, given.get(name) or {})
            elif name not in given:
                shrunk = self._shrink(name, value, layers)
                small |= {name: shrunk} if shrunk != value or value != vars(default).get(name) else {}
        if vars(config).get("_out_features") != vars(default).get("_out_features"):
            small["out_features"] = given.get("out_features", layers.stages(config.out_features))
        return {**given, **small}

    def _inner(self, value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return a small configuration inside another one, or the one that is given in its place."""
        kind = given.get("model_type", value.model_type)
        own = self.arguments(value, type(value)(), given) if kind == value.model_type else given
        return {**own, "model_type": kind}

    def _shrink(self, name: str, value: Any, layers: _Layers) -> Any:
        if _VOCABULARY.search(name):
            return VOCABULARY
        if name == layers.name:
            return len(layers.kept)
        if _KEY_VALUE_HEADS.search(name) and value in layers.heads:
            return self._shrink("num_attention_heads", value, layers)
        if isinstance(value, dict) and "mrope_section" in value:
            return {**value, "mrope_section": layers.sections(value["mrope_section"])}
        if isinstance(value, list | tuple) and value:
            return _FIXED.get(name) or self._shrink_list(name, layers.of_kept(name, value))
        return self._shrink_number(name, value) if type(value) is int else value

    def _shrink_list(self, name: str, values: Any) -> Any:
        shrink = {list: self._shrink_list, tuple: self._shrink_list, int: self._shrink_number}
        return [shrink[type(value)](name, value) if type(value) in shrink else value for value in values]

    def _shrink_number(self, name: str, value: int) -> int:
        if _TOKEN.search(name):
            return self._tokens.get(value, value)
        if name == "window_size":
            return min(value, 2) if self._staged else value
        most = next((most for pattern, most in AMOUNTS if pattern.search(name)), None)
        return self._shrink_width(name, value) if most is None else min(value, most)

    def _shrink_width(self, name: str, value: int) -> int:
        wide = _WIDE.search(name)
        if value <= _INPUT_CHANNELS or not (wide or _WIDTH.search(name)):
            return value
        if self._staged:
            return max(1, value // WIDTH_DIVISOR)
        return min(value, 2 * WIDTH if wide else WIDTH)

    @cached_property
    def _tokens(self) -> dict[int, int]:
        """Small ids of the tokens in all configurations: the same id for the same token."""
        ids = sorted({value for name, value in _all_numbers(self._root) if _TOKEN.search(name)})
        return dict(zip((old for old in ids if old >= LOWEST_TEXT), itertools.count(FIRST_SPECIAL), strict=False))

    @cached_property
    def _staged(self) -> bool:
        """Whether widths differ from stage to stage somewhere."""
        return any(_is_staged(name, value) for config in _all_configs(self._root) for name, value in _fields(config))


def _is_staged(name: str, value: Any) -> bool:
    if not isinstance(value, list | tuple) or "tdnn" in name:
        return False
    return name in ("num_heads", "depths") or (bool(_WIDTH.search(name)) and len(set(map(str, value))) > 1)


class _Layers:
    """The layers of a configuration that are kept: the first of each kind.

    Two layers are of one kind if all lists with an item for each layer, and all lists of indices of layers, say the
    same of both.
    """

    def __init__(self, config: Any) -> None:
        self._known = dict(_fields(config))
        self.name = next((name for name in _LAYER_COUNTS if type(self._known.get(name)) is int), None)
        self._count = self._known[self.name] if self.name else 0
        self.heads = [value for name, value in self._known.items() if _QUERY_HEADS.search(name)]

    @cached_property
    def kept(self) -> list[int]:
        """Indices of the layers."""
        kinds: dict[str, int] = {}
        for index in range(self._count):
            kinds.setdefault(self._kind(index), index)
        chosen = sorted(kinds.values())[:MOST_KINDS]
        return chosen if len(chosen) >= LAYERS else list(range(min(self._count, LAYERS)))

    def of_kept(self, name: str, values: Any) -> Any:
        """Return the items of the kept layers, or their new indices; any other list as it is."""
        if self._is_by_layer(values):
            return [values[index] for index in self.kept]
        if self._is_indices(name, values):
            return [new for new, old in enumerate(self.kept) if old in values]
        return values

    def stages(self, names: list[str]) -> list[str]:
        """Return the outputs that are left, where each layer is a stage: ``stage2`` is the second."""
        return names if self.name is None else [name for name in names if int(name[5:] or 0) <= len(self.kept)]

    def sections(self, sections: list[int]) -> list[int]:
        """Return how many pairs of channels rotate with time, row and column, for a small head."""
        rotary = self._known.get("qk_rope_head_dim")
        usual = rotary or self._known.get("head_dim") or _quotient(self._known, "hidden_size", "num_attention_heads")
        total = sum(sections) * (_ROTARY_HEAD if rotary else _HEAD) // usual if usual else sum(sections)
        parts = [max(1, section * total // sum(sections)) for section in sections[:-1]]
        return [*parts, total - sum(parts)]

    def _kind(self, index: int) -> str:
        lists = {name: value for name, value in self._known.items() if isinstance(value, list | tuple) and value}
        return repr([self._says(name, value, index) for name, value in lists.items()])

    def _says(self, name: str, values: Any, index: int) -> Any:
        if self._is_by_layer(values):
            return values[index]
        return index in values if self._is_indices(name, values) else None

    def _is_by_layer(self, values: Any) -> bool:
        return len(values) == self._count > MOST_KINDS

    def _is_indices(self, name: str, values: Any) -> bool:
        if not _LAYER_INDICES.search(name) or not all(type(value) is int for value in values):
            return False
        return sorted(set(values)) == list(values) and values[0] >= 0 and values[-1] < self._count


def _quotient(known: Mapping[str, Any], width: str, count: str) -> int:
    """Return the width of a head, or 0 where the configuration does not say it in numbers."""
    whole, parts = known.get(width), known.get(count)
    return whole // parts if isinstance(whole, int) and isinstance(parts, int) else 0


def _is_config(value: Any) -> bool:
    return hasattr(value, "to_diff_dict")


def _fields(config: Any) -> Iterator[tuple[str, Any]]:
    common = {field.name for field in dataclasses.fields(_base(type(config)))}
    for field in dataclasses.fields(config):
        if field.name not in common:
            # Not `getattr`: a field that differs from layer to layer raises.
            yield field.name, vars(config).get(field.name)


def _base(kind: type) -> Any:
    """Return the library's base class of configurations."""
    return next(base for base in reversed(kind.__mro__) if _is_config(base) and dataclasses.is_dataclass(base))


def _all_configs(config: Any) -> Iterator[Any]:
    yield config
    for _, value in _fields(config):
        if _is_config(value):
            yield from _all_configs(value)


def _all_numbers(root: Any) -> Iterator[tuple[str, int]]:
    for config in _all_configs(root):
        for name, value in _fields(config):
            for item in value if isinstance(value, list | tuple) else [value]:
                if type(item) is int:
                    yield name, item
