"""What a glob means among names that may look like globs, and few globs for many names."""

from __future__ import annotations

import glob as literal
from collections.abc import Collection
from collections.abc import Iterator
from fnmatch import fnmatchcase

_END = "\n"


def fits(name: str, glob: str, names: Collection[str]) -> bool:
    """Tell whether a glob means one of `names`; where it is the exact name of one, it means no other.

    Examples
    --------
    >>> [name for name in ("net", "net[v2]", "net2") if fits(name, "net[v2]", {"net", "net[v2]", "net2"})]
    ['net[v2]']
    """
    return name == glob if glob in names else fnmatchcase(name, glob)


def parted(text: str, names: Collection[str]) -> Iterator[str]:
    """Yield the globs of a list with commas; a name that holds commas itself stays whole.

    Examples
    --------
    >>> list(parted("x,y, a*", {"x", "x,y", "abc"}))
    ['x,y', 'a*']
    """
    parts = text.split(",")
    longest = 1 + max((name.count(",") for name in names), default=0)
    while parts:
        counts = range(min(longest, len(parts)), 1, -1)
        count = next((count for count in counts if ",".join(parts[:count]).strip() in names), 1)
        yield ",".join(parts[:count]).strip()
        parts = parts[count:]


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
        prefix = next(
            prefix
            for prefix in _prefixes(name)
            if f"{prefix}*" not in names and not any(other.startswith(prefix) for other in others)
        )
        alone = sum(other.startswith(prefix) for other in group) == 1
        found[name if alone or prefix.endswith(_END) else f"{literal.escape(prefix)}*"] = None
    return list(found)


def _prefixes(name: str) -> Iterator[str]:
    """Yield beginnings of a name that end with a word of it, then the others, then what no other name begins with."""
    ends = [end for end in range(1, len(name)) if name[end - 1] == "_" or name[end] == "_" or name[end].isdigit()]
    for end in (*ends, *range(1, len(name) + 1)):
        yield name[:end]
    yield f"{name}{_END}"
