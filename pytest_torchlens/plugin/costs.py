"""What models took in earlier runs, in pytest's cache: a hint for order and estimates, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

KEY = "lens/costs"


def known_costs(config: pytest.Config) -> dict[str, float]:
    """Return seconds by node id, as far as pytest's cache knows."""
    cache = getattr(config, "cache", None)  # -p no:cacheprovider
    found = cache.get(KEY, {}) if cache else {}
    return found if isinstance(found, dict) else {}


def keep_costs(config: pytest.Config, costs: Mapping[str, float]) -> None:
    """Add what models took in this run."""
    cache = getattr(config, "cache", None)
    if cache and costs:
        cache.set(KEY, {**known_costs(config), **costs})
