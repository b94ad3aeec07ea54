"""Few globs for many names."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterator

_END = "\n"


def covering_globs(group: Collection[str], names: Collection[str]) -> list[str]:
    """Return globs that fit all of `group` and no other of `names`, each as short as whole words allow.

    Examples
    --------
    >>> covering_globs({"beit_base", "beit_large", "cait"}, ["beit_base", "beit_large", "beitv2", "cait", "coat"])
    ['beit_*', 'cait']
    """
    others = set(names) - set(group)
    found: dict[str, None] = {}
    for name in sorted(group):
        fits = next(prefix for prefix in _prefixes(name) if not any(other.startswith(prefix) for other in others))
        alone = sum(other.startswith(fits) for other in group) == 1
        found[name if alone or fits.endswith(_END) else f"{fits}*"] = None
    return list(found)


def _prefixes(name: str) -> Iterator[str]:
    """Yield beginnings of a name that end with a word of it, then the others, then what no other name begins with."""
    ends = [end for end in range(1, len(name)) if name[end - 1] == "_" or name[end] == "_" or name[end].isdigit()]
    for end in (*ends, *range(1, len(name) + 1)):
        yield name[:end]
    yield f"{name}{_END}"
