"""What a user may get wrong about a zoo."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

FEW = 6
"""So many names are listed whole."""


class ZooError(ValueError):
    """A zoo, a model or a zoo file that is not as it should be; the message says what to do."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint with the known words most like `word`, or with all where they are few.

    Examples
    --------
    >>> nearest("resnet81", ["resnet18", "resnet34", "vgg11", "vgg13", "vgg16", "vgg19", "alexnet"])
    "did you mean 'resnet18' or 'resnet34'?"
    """
    words = sorted(known)
    if close := difflib.get_close_matches(word, words, n=3, cutoff=0.6):
        return f"did you mean {' or '.join(map(repr, close))}?"
    if len(words) <= FEW:
        return f"known are {', '.join(words)}" if words else "there is none"
    return f"{len(words)} are known, for example {', '.join(words[:3])}"
