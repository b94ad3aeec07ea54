"""What a user may get wrong about a zoo."""

from __future__ import annotations


class ZooError(ValueError):
    """A zoo, a model or a zoo file that is not as it should be; the message says what to do."""
